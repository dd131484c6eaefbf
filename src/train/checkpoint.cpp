#include "unsloth/train/checkpoint.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>

#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/safetensors.h"
#include "unsloth/ops/dtype.h"

namespace unsloth::train {
namespace {

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
    return {static_cast<const std::byte*>(tensor.const_data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

/// A file's tensor, in place in its map.
at::Tensor mapped(const formats::TensorView& view, const at::Tensor& like) {
    if (view.dtype != ops::dtype_of(like) || view.elements() != like.numel())
        throw input_error(cat(view.file->path().string(), ": ", view.name, " has ", view.elements(), " elements of ",
                              formats::safetensors_name(view.dtype), ", the run needs ", like.numel(), " of ",
                              formats::safetensors_name(ops::dtype_of(like))));
    UNSLOTH_CHECK(view.is_aligned(static_cast<std::size_t>(like.element_size())), view.name, " is not aligned");
    return at::from_blob(const_cast<std::byte*>(view.data.data()), {view.elements()},
                         at::TensorOptions(like.scalar_type()));
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> trained_tensors(const ops::AdamwState& s) {
    std::vector<std::pair<std::string, at::Tensor>> tensors{{"params", s.params_P},
                                                            {"m32", s.m32},
                                                            {"v32", s.v32},
                                                            {"m8", s.m8},
                                                            {"v8", s.v8},
                                                            {"absmax_m8", s.absmax_m8},
                                                            {"absmax_v8", s.absmax_v8}};
    std::erase_if(tensors, [](const auto& named) { return !named.second.defined() || named.second.numel() == 0; });
    return tensors;
}

std::string layout_fingerprint(const weights::ParameterTable& table, config::Optimizer optimizer) {
    ContentHash hash;
    hash.add_field(std::to_string(static_cast<int>(optimizer)));
    for (const weights::Parameter& p : table.parameters()) {
        hash.add_field(p.name);
        hash.add_field(formats::shape_text(p.shape));
        hash.add_field(std::to_string(p.offset));
    }
    return hash.hex();
}

Snapshot::Snapshot(const ops::AdamwState& state, at::Device device) {
    bool page_locked = device.is_cuda();
    for (const auto& [name, tensor] : trained_tensors(state)) {
        const at::TensorOptions options(tensor.scalar_type());
        at::Tensor copy;
        try {
            if (page_locked) copy = at::empty({tensor.numel()}, options.pinned_memory(true));
        } catch (const c10::Error& error) {
            const std::string reason = error.what_without_backtrace();
            log::warning("no page-locked memory for the copies that checkpoints are written from (",
                         reason.substr(0, reason.find('\n')),
                         "); ordinary memory takes its place: training stands still "
                         "while a copy is made");
            page_locked = false;
        }
        tensors_.emplace_back(name, copy.defined() ? copy : at::empty({tensor.numel()}, options));
    }
}

const at::Tensor& Snapshot::at(const std::string& name) const {
    for (const auto& [own, tensor] : tensors_)
        if (own == name) return tensor;
    UNSLOTH_CHECK(false, "a snapshot has no ", name);
    return tensors_.front().second;
}

void save_optimizer(const std::filesystem::path& path, const Snapshot& snapshot, bool with_values) {
    std::vector<formats::TensorDecl> declared;
    for (const auto& [name, tensor] : snapshot.tensors())
        if (with_values || name != "params") declared.push_back({name, ops::dtype_of(tensor), {tensor.numel()}});
    formats::SafetensorsWriter writer(path, declared);
    for (const formats::TensorDecl& decl : writer.tensors()) writer.append(decl.name, bytes_of(snapshot.at(decl.name)));
    writer.finish();
}

void restore_optimizer(const std::filesystem::path& path, const ops::AdamwState& state, bool with_values) {
    const formats::SafetensorsFile file(path);
    for (const auto& [name, tensor] : trained_tensors(state))
        if (with_values || name != "params") tensor.copy_(mapped(file.at(name), tensor));
}

void restore_adapter(const std::filesystem::path& folder, const weights::ParameterTable& table,
                     const at::Tensor& params_P) {
    const formats::SafetensorsFile file(folder / "adapter_model.safetensors");
    for (const weights::Parameter& p : table.parameters()) {
        const at::Tensor values = params_P.narrow(0, p.offset, p.elements());
        values.copy_(mapped(file.at(p.name), values));
    }
}

struct BackgroundSaver::Job {
    Write write;
    std::optional<c10::Event> copied;
};

BackgroundSaver::BackgroundSaver(const ops::Context& ctx, const ops::AdamwState& state,
                                 const std::optional<ops::AdamwState>& copies)
    : ctx_(ctx),
      state_(state),
      snapshot_(copies ? std::make_unique<Snapshot>(*copies) : nullptr),
      thread_([this] { run(); }) {}

BackgroundSaver::~BackgroundSaver() {
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void BackgroundSaver::save(Write write) {
    wait();
    try {
        if (!snapshot_) snapshot_ = std::make_unique<Snapshot>(state_, ctx_.device());
    } catch (...) {
        failure_ = std::current_exception();  // nothing is under way that could set it
        return;
    }
    for (const auto& [name, tensor] : trained_tensors(state_)) snapshot_->at(name).copy_(tensor, /*non_blocking=*/true);
    auto job = std::make_unique<Job>();
    job->write = std::move(write);
    if (ctx_.is_cuda()) {
        job->copied.emplace(c10::DeviceType::CUDA);
        job->copied->record(c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(ctx_.device()));
    }
    {
        const std::lock_guard lock(mutex_);
        job_ = std::move(job);
    }
    changed_.notify_all();
}

void BackgroundSaver::wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return job_ == nullptr; });
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void BackgroundSaver::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return job_ != nullptr || ends_; });
        if (job_ == nullptr) return;
        lock.unlock();
        std::exception_ptr failure;
        try {
            if (job_->copied) job_->copied->synchronize();
            job_->write(*snapshot_);
        } catch (...) {
            failure = std::current_exception();
        }
        lock.lock();
        job_.reset();
        failure_ = failure;
        changed_.notify_all();
    }
}

}  // namespace unsloth::train
