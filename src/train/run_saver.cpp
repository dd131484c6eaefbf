#include "unsloth/train/run_saver.h"

#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/checkpoint_folder.h"
#include "unsloth/train/save.h"

namespace unsloth::train {

RunSaver::RunSaver(RunFiles files, const ops::Context& ctx, const ops::AdamwState& state,
                   const std::optional<ops::AdamwState>& copies)
    : files_(std::move(files)), state_(state), background_(ctx, state, copies) {}

void RunSaver::write_result(const std::filesystem::path& folder, const at::Tensor& params_P,
                            const formats::TrainerState& trainer) const {
    if (files_.lora) {
        save_adapter(folder, *files_.table, params_P, *files_.lora, files_.base);
    } else {
        save_model(folder, *files_.table, params_P, files_.spec, files_.model_folder);
    }
    copy_files(files_.tokenizer_files, files_.tokenizer_folder, folder);
    formats::write_trainer_state(folder, trainer);
}

void RunSaver::write_checkpoint(const Snapshot& snapshot, const RunMoment& moment) const {
    formats::CheckpointWriter writer(files_.output_dir, moment.run.progress.step);
    write_result(writer.folder(), snapshot.params(), moment.trainer);
    // A model is saved in its own type, which may hold less than the fp32 values that training goes on with.
    save_optimizer(writer.folder() / "optimizer.safetensors", snapshot, /*with_values=*/!files_.lora);
    write_file_atomically(writer.folder() / "run_config.json", files_.config);
    formats::write_run_state(writer.folder(), moment.run);
    writer.commit();
    log::info("saved ", writer.path().string());
    const bool has_best = moment.run.progress.best.value.has_value();
    formats::remove_old_checkpoints(files_.output_dir, files_.save_total_limit,
                                    has_best ? std::optional(moment.run.progress.best.step) : std::nullopt);
}

void RunSaver::checkpoint(RunMoment moment) {
    wait();
    last_ = moment.run.progress.step;
    background_.save(
        [this, moment = std::move(moment)](const Snapshot& snapshot) { write_checkpoint(snapshot, moment); });
}

bool RunSaver::wait() {
    try {
        background_.wait();
        return true;
    } catch (const std::exception& error) {
        log::warning("checkpoint-", last_.value_or(0), " was not saved: ", error.what());
        return false;
    }
}

void RunSaver::result(const formats::TrainerState& trainer) const {
    write_result(files_.output_dir, state_.params_P, trainer);
}

}  // namespace unsloth::train
