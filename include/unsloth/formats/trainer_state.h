// trainer_state.json as the transformers Trainer writes it, so that people's tools keep reading it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace unsloth::formats {

/// One row of log_history: {epoch, step} and named numbers (loss, grad_norm, learning_rate; eval_loss, …).
inline constexpr const char* trainer_state_file = "trainer_state.json";

struct TrainerLogRow {
    int64_t step = 0;
    double epoch = 0;
    std::map<std::string, double> values;
};

struct TrainerState {
    std::optional<int64_t> best_global_step;
    std::optional<double> best_metric;
    std::optional<std::string> best_model_checkpoint;
    double epoch = 0;
    int64_t eval_steps = 0;
    int64_t global_step = 0;
    std::vector<TrainerLogRow> log_history;
    int64_t logging_steps = 1;
    int64_t max_steps = 0;
    int64_t num_input_tokens_seen = 0;
    double num_train_epochs = 1;
    int64_t save_steps = 0;
    double total_flos = 0;
    int64_t train_batch_size = 1;
};

/// The file's text: sorted keys, indent 2. A number that is not finite is written as null, which JSON readers accept.
std::string trainer_state_json(const TrainerState& state);
/// Atomically writes folder/trainer_state.json.
void write_trainer_state(const std::filesystem::path& folder, const TrainerState& state);
/// Input Error, naming file and key, for a text that is no trainer state. Keys that we do not know are ignored.
TrainerState read_trainer_state(const std::filesystem::path& folder);

}  // namespace unsloth::formats
