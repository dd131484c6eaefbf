#include "unsloth/train/run_saver.h"

#include <fcntl.h>

#include <memory>
#include <thread>
#include <utility>

#include "train/output_folder.h"
#include "unsloth/core/awake_clock.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/checkpoint_folder.h"
#include "unsloth/formats/decision_calibration.h"
#include "unsloth/placement/kernels.h"
#include "unsloth/train/save.h"

namespace unsloth::train {
namespace {

constexpr const char* failed_suffix = ".failed";

/// Why a part is missing. A disk without room for the reason may have some for an empty file.
void leave_reason(const std::filesystem::path& file, const std::string& reason) {
    try {
        write_file_atomically(file, reason);
    } catch (const std::exception&) {
        const Descriptor without = open_own_file(file, O_WRONLY | O_CREAT);
    }
}

std::string reason_in(const std::filesystem::path& file) {
    const std::string reason = read_file(file);
    return reason.empty() ? "there was no room for the reason, which its log has" : reason;
}

/// Whether its temporary file is there.
bool is_being_written(const std::filesystem::path& file) {
    const std::string begin = file.filename().string() + ".tmp-";
    for (const auto& entry : std::filesystem::directory_iterator(file.parent_path()))
        if (entry.path().filename().string().starts_with(begin)) return true;
    return false;
}

}  // namespace

RunSaver::RunSaver(RunFiles files, const ops::Context& ctx, const ops::AdamwState& state,
                   const std::optional<ops::AdamwState>& copies)
    : files_(std::move(files)),
      state_(state),
      background_(ctx, state_, files_.in_place ? std::optional(state_) : copies, files_.in_place) {}

RunSaver::~RunSaver() {
    leaves_ = true;
}

void RunSaver::write_result(const std::filesystem::path& folder, const ReadValues& values,
                            const RunMoment& moment) const {
    if (files_.lora) {
        save_adapter(folder, *files_.table, values, {*files_.lora, files_.base, files_.rope_scaling, files_.base_mark},
                     files_.stand_ins);
    } else {
        save_model(folder, *files_.table, values, files_.spec, files_.model_folder);
    }
    copy_files(files_.tokenizer_files, files_.tokenizer_folder, folder);
    if (!moment.calibration.empty())
        write_file_atomically(folder / formats::decision_calibration_file, moment.calibration);
    formats::write_trainer_state(folder, moment.trainer);
}

/// This rank's part of the optimizer. A model is saved in its own type, which may hold less than the fp32 values that
/// training continues with.
void RunSaver::write_share(const std::filesystem::path& folder, const Snapshot& snapshot) const {
    const StatePart& part = files_.part;
    try {
        save_optimizer(folder, snapshot, part, *files_.table, /*with_values=*/!files_.lora || !files_.holds_all);
    } catch (const std::exception& error) {
        if (part.number() > 0)
            leave_reason(folder / (optimizer_file(part.number(), part.count()) + failed_suffix), error.what());
        throw;
    }
}

/// A file is there when it is whole. Parts differ in size, as a pipeline's stages do: one that is written is waited
/// for.
void RunSaver::await_others(const std::filesystem::path& folder) const {
    const auto give_up = AwakeClock::now() + files_.patience;
    for (int number = 1; number < files_.part.count(); ++number) {
        const StatePart part = files_.part.with_number(number);
        if (part.table(*files_.table).slice(part.share).elements() == 0) continue;
        const std::filesystem::path file = folder / optimizer_file(number, part.count()),
                                    failed = file.string() + failed_suffix;
        const auto rank = [&] { return cat("rank ", part.writer(files_.ranks)); };
        while (!std::filesystem::exists(file)) {
            if (std::filesystem::exists(failed))
                throw Error("rank.failed", cat(rank(), " could not write its part: ", reason_in(failed)));
            if (leaves_ || (AwakeClock::now() >= give_up && !is_being_written(file)))
                throw Error("rank.late",
                            cat(rank(), " did not begin ", file.filename().string(), " within ",
                                files_.patience.count(), " s (distributed.ddp_timeout)"),
                            "Do all ranks see the same training.output_dir?");
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    }
}

void RunSaver::write_checkpoint(formats::CheckpointWriter& writer, const Snapshot& snapshot,
                                const RunMoment& moment) const {
    write_share(writer.folder(), snapshot);
    write_file_atomically(writer.folder() / "run_config.json", files_.config);
    if (!files_.kernels.empty()) write_file_atomically(writer.folder() / placement::kernels_file, files_.kernels);
    formats::write_run_state(writer.folder(), moment.run);
    if (!moment.rollouts.empty()) write_file_atomically(writer.folder() / rollout_file, moment.rollouts);
    await_others(writer.folder());
    write_result(writer.folder(),
                 files_.holds_all ? values_in(snapshot.params()) : values_of_parts(writer.folder(), *files_.table),
                 moment);
    writer.commit();
    log::info("saved ", writer.path().string());
    const bool has_best = moment.run.progress.best.value.has_value();
    formats::remove_old_checkpoints(files_.output_dir, files_.save_total_limit,
                                    has_best ? std::optional(moment.run.progress.best.step) : std::nullopt);
}

void RunSaver::checkpoint(RunMoment moment, const std::function<std::string(const std::string&)>& agree) {
    wait();
    last_ = moment.run.progress.step;
    std::shared_ptr<formats::CheckpointWriter> writer;
    std::exception_ptr failure;
    std::string folder;
    try {
        if (files_.part.number() == 0) {
            writer = std::make_shared<formats::CheckpointWriter>(files_.output_dir, *last_);
            folder = writer->folder().string();
        }
    } catch (const std::exception&) {
        failure = std::current_exception();  // as one of the writing: a warning
    }
    if (agree) folder = agree(folder);
    if (folder.empty() && !failure) return;  // the first rank says why
    background_.save([this, moment = std::move(moment), writer, failure, folder](const Snapshot& snapshot) {
        if (failure) std::rethrow_exception(failure);
        writer ? write_checkpoint(*writer, snapshot, moment) : write_share(folder, snapshot);
    });
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

void RunSaver::result(const RunMoment& moment, const ReadValues& values) const {
    const auto before = files_.replaces ? result_files(files_.output_dir) : std::vector<ResultFile>();
    write_result(files_.output_dir, values, moment);
    remove_stale(files_.output_dir, before);
}

}  // namespace unsloth::train
