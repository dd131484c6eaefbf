// What a run writes into its output folder: checkpoints while it goes on, the result at its end.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/formats/run_state.h"
#include "unsloth/formats/trainer_state.h"
#include "unsloth/spec/model_spec.h"
#include "unsloth/train/checkpoint.h"

namespace unsloth::train {

/// What does not change over a run.
struct RunFiles {
    std::filesystem::path output_dir;
    const weights::ParameterTable* table = nullptr;  ///< not owned
    std::optional<spec::LoraSpec> lora;              ///< nothing: full training, the whole model is saved
    std::string base;                                ///< model.path as the user gave it
    spec::ModelSpec spec;
    std::filesystem::path model_folder;  ///< of full training's config.json
    std::vector<std::filesystem::path> tokenizer_files;
    std::filesystem::path tokenizer_folder;
    std::string config;  ///< run_config.json
    int64_t save_total_limit = 0;
};

/// What belongs to one moment of it, beside the tensors.
struct RunMoment {
    formats::TrainerState trainer;
    formats::RunState run;
};

class RunSaver {
  public:
    /// `copies`: as BackgroundSaver's.
    RunSaver(RunFiles files, const ops::Context& ctx, const ops::AdamwState& state,
             const std::optional<ops::AdamwState>& copies);

    /// Saves checkpoint-N (N = the moment's step) in the background, from a copy of the state after the work issued so
    /// far. Older ones beyond the limit are removed once it is complete. A failure is a warning: the run is worth more
    /// than one checkpoint, and the one before is whole.
    void checkpoint(RunMoment moment);
    /// Waits for the checkpoint under way; whether the last one asked for is complete.
    bool wait();
    /// The adapter or model, with tokenizer and trainer_state.json, in the output folder itself. runtime Error when it
    /// cannot be written.
    void result(const formats::TrainerState& trainer) const;
    std::optional<int64_t> last_checkpoint() const { return last_; }  ///< the last one asked for

  private:
    void write_result(const std::filesystem::path& folder, const at::Tensor& params_P,
                      const formats::TrainerState& trainer) const;
    void write_checkpoint(const Snapshot& snapshot, const RunMoment& moment) const;

    RunFiles files_;
    const ops::AdamwState& state_;
    std::optional<int64_t> last_;
    BackgroundSaver background_;  ///< ends first: its thread reads what stands above
};

}  // namespace unsloth::train
