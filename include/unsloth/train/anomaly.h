// What is kept of a step whose update was skipped, so that `replay` can look at it again: anomalies/step-N.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/train/spikes.h"

namespace unsloth::train {

inline constexpr const char* anomalies_folder = "anomalies";  ///< in a run's output_dir

/// What one rank saw of it.
struct RankView {
    int64_t rank = 0;
    std::string place;             ///< the first that was not finite, in words; empty: none of this rank's own
    std::optional<int64_t> layer;  ///< of that place
    std::vector<int64_t> rows;     ///< that it had in the step, by their numbers in the source
};

struct Anomaly {
    enum class Kind : uint8_t { not_finite, spike };
    Kind kind = Kind::not_finite;
    int64_t step = 0;
    double epoch = 0, learning_rate = 0, loss_scale = 1;
    double loss = 0, grad_norm = 0;  ///< null in the file where they are not finite
    SpikeLimits limits;              ///< of a spike
    int64_t seed = 0;                ///< of dropout and noise, with step, epoch and rows
    int64_t world_size = 1, gradient_accumulation_steps = 1;
    std::string config;  ///< hash of the run's run_config.json
    std::vector<RankView> ranks;
};

/// As a line of text, for comm::Group::gather.
std::string view_text(const RankView& view);
RankView parse_view(const std::string& text);

/// Hash of a configuration's text.
std::string config_hash(const std::string& text);

/// Writes output_dir/anomalies/step-N.json and returns its path.
std::filesystem::path write_anomaly(const std::filesystem::path& output_dir, const Anomaly& anomaly);
/// input Error, naming file and key, for a file that is none.
Anomaly read_anomaly(const std::filesystem::path& file);

}  // namespace unsloth::train
