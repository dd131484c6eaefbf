// Where a step's time goes: named regions, nested, timed by events on the context's stream (by the clock on the CPU).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "unsloth/ops/context.h"

namespace unsloth::ops {

/// A finished region. Times in microseconds since the first region began.
struct Span {
    std::string name;
    int64_t parent = -1;  ///< index of the region around it; -1: none
    int depth = 0;
    double begin_us = 0, end_us = 0;
};

/// Records regions of one thread on one context's stream. An event costs the device about a microsecond, so that very
/// small steps are measured a little longer than they are; recorded graphs are not used while a profiler is at work.
class Profiler {
  public:
    explicit Profiler(const Context& ctx);
    ~Profiler();
    Profiler(const Profiler&) = delete;
    Profiler& operator=(const Profiler&) = delete;

    void begin(std::string name);
    void end();
    /// Waits for the stream and returns the regions so far, in order of their begin; then starts empty. CheckError
    /// while a region is open.
    std::vector<Span> take();

  private:
    struct Clock;
    struct Open;
    std::unique_ptr<Clock> clock_;
    std::vector<Span> spans_;
    std::vector<int64_t> open_;
};

/// A region from construction to destruction; nothing without a profiler in the context.
class Region {
  public:
    Region(const Context& ctx, const char* name) : profiler_(ctx.profiler) {
        if (profiler_ != nullptr) profiler_->begin(name);
    }
    ~Region() {
        if (profiler_ != nullptr) profiler_->end();
    }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

  private:
    Profiler* profiler_;
};

/// A table: a line for each path of names (outermost region / operator), its calls, milliseconds and share of the
/// whole; operators are summed over the levels between (layers, numbered steps of a layer). Time of an outermost region
/// outside of any operator is a line of its own, so that the lines add up to the step.
std::string region_table(const std::vector<Span>& spans);

/// Chrome's trace event format (chrome://tracing, Perfetto). Throws as write_file_atomically.
void write_chrome_trace(const std::filesystem::path& path, const std::vector<Span>& spans);

/// Runs `step` with a profiler: logs its regions' times and writes a Chrome trace. Waits for the device.
void profile(Context& ctx, const std::filesystem::path& trace, const std::function<void()>& step);

}  // namespace unsloth::ops
