// The interface of libunsloth_prometheus.so, which alone links prometheus-cpp: opened when a run has an endpoint, so
// that other runs do not pay for it. C, and no exception crosses it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>

#include "unsloth/report/sinks.h"

extern "C" {

struct UnslothMetrics;

/// Answers http://ADDRESS/metrics ("127.0.0.1:9400") from a thread of its own. Null on failure, with
/// the reason in `error` (at most `size` bytes with the ending zero).
UnslothMetrics* unsloth_metrics_open(const char* address, char* error, std::size_t size);
/// Sets a gauge, or raises a counter to a value that is not less than its own; `label` may be null.
void unsloth_metrics_set(UnslothMetrics* metrics, const char* name, const char* help, int is_counter, const char* label,
                         const char* label_value, double value);
void unsloth_metrics_close(UnslothMetrics* metrics);

}  // extern "C"

namespace unsloth::report {

/// Runtime Error when the library is missing or the port is taken.
std::unique_ptr<RowSink> make_prometheus_sink(const config::Config& config, const std::filesystem::path& folder,
                                              const std::string& gpu);

}  // namespace unsloth::report
