// Saving during training: the state at the end of a step is copied to the host, and a thread writes it.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "unsloth/ops/context.h"
#include "unsloth/spec/stage.h"
#include "unsloth/train/save.h"
#include "unsloth/weights/parameters.h"

namespace unsloth::train {

/// What a checkpoint keeps of the optimizer's state, by the names of its file.
struct SavedTensor {
    const char* name;
    at::Tensor ops::AdamwState::* member;
};
inline constexpr std::array<SavedTensor, 7> saved_tensors{{{"params", &ops::AdamwState::params_P},
                                                           {"m32", &ops::AdamwState::m32},
                                                           {"v32", &ops::AdamwState::v32},
                                                           {"m8", &ops::AdamwState::m8},
                                                           {"v8", &ops::AdamwState::v8},
                                                           {"absmax_m8", &ops::AdamwState::absmax_m8},
                                                           {"absmax_v8", &ops::AdamwState::absmax_v8}}};

/// The flat buffers that training changes, as named tensors: values ("params", fp32) and AdamW's moments. Those without
/// elements are omitted.
std::vector<std::pair<std::string, at::Tensor>> trained_tensors(const ops::AdamwState& state);

/// Changes whenever the flat buffers would be laid out otherwise: names, shapes, places, and how moments are kept.
std::string layout_fingerprint(const weights::ParameterTable& table, config::Optimizer optimizer);

/// Host copies of trained_tensors, allocated once and reused: pinned with a GPU, or with a warning ordinary memory
/// where the system gives none.
class Snapshot {
  public:
    Snapshot(const ops::AdamwState& state, at::Device device);
    /// Into the host memory of these.
    explicit Snapshot(const ops::AdamwState& copies) : tensors_(trained_tensors(copies)) {}
    const at::Tensor& at(const std::string& name) const;
    const at::Tensor& params() const { return at("params"); }
    const std::vector<std::pair<std::string, at::Tensor>>& tensors() const { return tensors_; }

  private:
    std::vector<std::pair<std::string, at::Tensor>> tensors_;
};

/// What one of a checkpoint's files of the optimizer has: of what a pipeline's stage trains, the share's slice.
struct StatePart {
    spec::Stage stage;
    weights::Share share;
    /// How many files all parts are, and which of them this is: the stages' in turn.
    int count() const { return stage.size * share.size; }
    int number() const { return stage.rank * share.size + share.rank; }
    StatePart with_number(int number) const;
    /// Of a run's `ranks` the one that writes it: the first that has it.
    int writer(int ranks) const { return number() * ranks / count(); }
    /// Of all that is trained, what the stage does, laid out as its ranks do.
    weights::ParameterTable table(const weights::ParameterTable& all) const;
};

/// Its name: optimizer.safetensors, or of several optimizer-00002-of-00004.safetensors.
std::string optimizer_file(int number, int count);
/// AdamW's moments, and with `with_values` the values of the part too, to a safetensors file in the folder; none where
/// there is nothing to write. Its metadata say which stage's it is.
void save_optimizer(const std::filesystem::path& folder, const Snapshot& snapshot, const StatePart& part,
                    const weights::ParameterTable& all, bool with_values);
/// Reads what save_optimizer wrote for all ranks, of whatever number, into the parameters' state, and with
/// `with_values` all values. `all`: what all ranks train. input Error when a tensor is missing or of another size or
/// type; that no file is missing, the checkpoint's manifest says.
void restore_optimizer(const std::filesystem::path& checkpoint, const weights::ParameterTable& all,
                       weights::Parameters& parameters, config::Optimizer optimizer, bool with_values);
/// The values that all ranks wrote into `checkpoint`, for callers that do not have all of them in memory.
ReadValues values_of_parts(const std::filesystem::path& checkpoint, const weights::ParameterTable& all);
/// Reads adapters and modules_to_save of a folder that save_adapter wrote (in fp32) into the values that the rank
/// holds, exactly.
void restore_adapter(const std::filesystem::path& folder, const weights::Parameters& parameters);

/// Writes in the background. One write at a time: a second one waits for the first.
class BackgroundSaver {
  public:
    using Write = std::function<void(const Snapshot&)>;

    /// `copies`: planned host memory of the snapshot, which lives as long as this; nothing: it is made with the first
    /// save. `in_place`: they are the state itself, and save() returns when it is written.
    BackgroundSaver(const ops::Context& ctx, const ops::AdamwState& state, const std::optional<ops::AdamwState>& copies,
                    bool in_place = false);
    /// Waits for the write in progress.
    ~BackgroundSaver();
    BackgroundSaver(const BackgroundSaver&) = delete;
    BackgroundSaver& operator=(const BackgroundSaver&) = delete;

    /// Copies the state as it is after the work issued so far (asynchronously on CUDA: later work waits for the copies,
    /// the host does not) and calls write(snapshot) on the saver's thread. What an earlier write threw is thrown here;
    /// where there is no memory for the copy, wait() throws that.
    void save(Write write);
    /// Waits for the write in progress; throws what it threw.
    void wait();

  private:
    void run();

    const ops::Context& ctx_;
    const ops::AdamwState& state_;
    bool in_place_;
    struct Job;
    std::unique_ptr<Snapshot> snapshot_;  ///< nullptr: not needed yet
    std::mutex mutex_;
    std::condition_variable changed_;
    std::unique_ptr<Job> job_;  ///< waiting or running
    std::exception_ptr failure_;
    bool ends_ = false;
    std::thread thread_;
};

}  // namespace unsloth::train
