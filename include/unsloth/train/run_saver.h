// What a run writes into its output folder: checkpoints during training, the result at its end.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/formats/checkpoint_folder.h"
#include "unsloth/formats/run_state.h"
#include "unsloth/formats/trainer_state.h"
#include "unsloth/spec/model_spec.h"
#include "unsloth/train/checkpoint.h"
#include "unsloth/train/step_source.h"

namespace unsloth::train {

/// What does not change over a run.
struct RunFiles {
    std::filesystem::path output_dir;
    const weights::ParameterTable* table = nullptr;     ///< not owned
    std::optional<spec::LoraSpec> lora;                 ///< nothing: full training, the whole model is saved
    std::string base;                                   ///< model.path as the user gave it
    std::string rope_scaling;                           ///< that the base's config.json has not; empty: none
    std::vector<const formats::TensorView*> stand_ins;  ///< that the adapter brings for the base's; not owned
    std::string base_mark;                              ///< formats/base_mark.h
    spec::ModelSpec spec;
    std::filesystem::path model_folder;  ///< of full training's config.json
    std::vector<std::filesystem::path> tokenizer_files;
    std::filesystem::path tokenizer_folder;
    std::string config;     ///< run_config.json
    std::string kernels;    ///< kernels.json; empty: none
    bool replaces = false;  ///< a result that output_dir holds makes way for this one
    int64_t save_total_limit = 0;
    StatePart part;                 ///< of the optimizer: its first rank writes each, that of the first all else
    int ranks = 1;                  ///< of the run
    bool holds_all = true;          ///< each rank all values; else those of its part, which it writes too
    bool in_place = false;          ///< the state is in host memory, and is written from there
    std::chrono::seconds patience;  ///< of the first with the others' files
};

/// The data of one moment of the run, in addition to the tensors.
struct RunMoment {
    formats::TrainerState trainer;
    formats::RunState run;
    std::string rollouts = {};     ///< StepSource::progress(); empty: none
    std::string calibration = {};  ///< decision_calibration.json of these values; empty: none
};

class RunSaver {
  public:
    /// `state`: Parameters::saved(). `copies`: as BackgroundSaver's.
    RunSaver(RunFiles files, const ops::Context& ctx, const ops::AdamwState& state,
             const std::optional<ops::AdamwState>& copies);
    ~RunSaver();

    /// Saves checkpoint-N (N = the moment's step) in the background, from a copy of the state after the work issued so
    /// far. Older ones beyond the limit are removed once it is complete. A failure is a warning: the run is worth more
    /// than one checkpoint, and the one before is whole. Where several write, all call it together; `agree` then tells
    /// all what the first says: the folder that is filled. It appears when all of them have written.
    void checkpoint(RunMoment moment, const std::function<std::string(const std::string&)>& agree = nullptr);
    /// Waits for the checkpoint in progress; whether the last one asked for is complete.
    bool wait();
    /// The adapter or model of these values, with tokenizer and trainer_state.json, in the output folder itself.
    /// runtime Error when it cannot be written.
    void result(const RunMoment& moment, const ReadValues& values) const;
    std::optional<int64_t> last_checkpoint() const { return last_; }  ///< the last one asked for

  private:
    void write_result(const std::filesystem::path& folder, const ReadValues& values, const RunMoment& moment) const;
    void write_checkpoint(formats::CheckpointWriter& writer, const Snapshot& snapshot, const RunMoment& moment) const;
    void write_share(const std::filesystem::path& folder, const Snapshot& snapshot) const;
    void await_others(const std::filesystem::path& folder) const;

    RunFiles files_;
    ops::AdamwState state_;
    std::atomic<bool> leaves_{false};
    std::optional<int64_t> last_;
    BackgroundSaver background_;  ///< destroyed first: its thread reads the members above
};

}  // namespace unsloth::train
