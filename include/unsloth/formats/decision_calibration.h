// decision_calibration.json of an adapter or a model: how the probabilities of its decisions are scaled.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace unsloth::formats {

inline constexpr const char* decision_calibration_file = "decision_calibration.json";

struct DecisionCalibration {
    double temperature = 1;  ///< divides the logits of a question's options
    int64_t rows = 0;        ///< held-out rows that it was fitted on
    /// On these rows without it and with it: the mean of -log p of the answers, the expected calibration error.
    double nll_before = 0, nll_after = 0, ece_before = 0, ece_after = 0;
};

std::string write_decision_calibration(const DecisionCalibration& calibration);
/// nullopt: the folder has none. Input Error, with the file's name, for what is none, or of another version.
std::optional<DecisionCalibration> read_decision_calibration(const std::filesystem::path& folder);

}  // namespace unsloth::formats
