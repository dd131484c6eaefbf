#include "unsloth/train/checkpoint.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

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

/// A file's tensor, of so many elements, in place in its map.
at::Tensor mapped(const formats::TensorView& view, const at::Tensor& like, int64_t elements) {
    if (view.dtype != ops::dtype_of(like) || view.elements() != elements)
        throw input_error(cat(view.file->path().string(), ": ", view.name, " has ", view.elements(), " elements of ",
                              formats::safetensors_name(view.dtype), ", the run needs ", elements, " of ",
                              formats::safetensors_name(ops::dtype_of(like))));
    UNSLOTH_CHECK(view.is_aligned(static_cast<std::size_t>(like.element_size())), view.name, " is not aligned");
    return at::from_blob(const_cast<std::byte*>(view.data.data()), {view.elements()},
                         at::TensorOptions(like.scalar_type()));
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> trained_tensors(const ops::AdamwState& s) {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const SavedTensor& saved : saved_tensors) tensors.emplace_back(saved.name, s.*saved.member);
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

std::string optimizer_file(weights::Share share) {
    if (share.size == 1) return "optimizer.safetensors";
    std::array<char, 64> name;
    std::snprintf(name.data(), name.size(), "optimizer-%05d-of-%05d.safetensors", share.rank + 1, share.size);
    return name.data();
}

void save_optimizer(const std::filesystem::path& path, const Snapshot& snapshot, weights::ParameterSlice own,
                    bool with_values) {
    std::map<std::string, at::Tensor> tensors(snapshot.tensors().begin(), snapshot.tensors().end());
    if (!with_values || own.elements() == 0)
        tensors.erase("params");
    else if (at::Tensor& values = tensors.at("params"); values.numel() > own.elements())
        values = values.narrow(0, own.begin, own.elements());
    if (tensors.empty()) return;
    std::vector<formats::TensorDecl> declared;
    for (const auto& [name, tensor] : tensors) declared.push_back({name, ops::dtype_of(tensor), {tensor.numel()}});
    formats::SafetensorsWriter writer(path, declared);
    for (const formats::TensorDecl& decl : writer.tensors()) writer.append(decl.name, bytes_of(tensors.at(decl.name)));
    writer.finish();
}

namespace {

/// How many ranks shared the optimizer that the checkpoint holds.
int shares_of(const std::filesystem::path& checkpoint) {
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
        int rank = 0, size = 0;
        if (std::sscanf(entry.path().filename().c_str(), "optimizer-%5d-of-%5d", &rank, &size) == 2 && rank >= 1 &&
            rank <= size && entry.path().filename() == optimizer_file({rank - 1, size}))
            return size;
    }
    return 1;
}

}  // namespace

void restore_optimizer(const std::filesystem::path& checkpoint, const weights::ParameterTable& table,
                       weights::Parameters& parameters, config::Optimizer optimizer, bool with_values) {
    using weights::Parameters, weights::Share, weights::ParameterSlice;
    const int shares = shares_of(checkpoint);
    for (int rank = 0; rank < shares; ++rank) {
        const Share share{rank, shares};
        if (table.slice(share).elements() == 0) continue;
        const formats::SafetensorsFile file(checkpoint / optimizer_file(share));
        for (const SavedTensor& saved : saved_tensors) {
            const bool values = saved.member == &ops::AdamwState::params_P;
            if (values && !with_values) continue;
            const at::Tensor to = values ? parameters.values_P : parameters.state().*saved.member;
            const ParameterSlice there = Parameters::state_slice(table, optimizer, share, saved.member),
                                 here = values ? parameters.held()
                                               : Parameters::state_slice(parameters.table(), optimizer,
                                                                         parameters.share(), saved.member);
            for (const weights::CommonStretch& stretch :
                 Parameters::common(table, parameters.table(), optimizer, saved.member)) {
                // By places in the file's layout.
                const int64_t shift = stretch.own - stretch.all;
                const int64_t begin = std::max({there.begin, stretch.all, here.begin - shift}),
                              end = std::min({there.end, stretch.all + stretch.elements, here.end - shift});
                if (begin >= end) continue;
                to.narrow(0, begin + shift - here.begin, end - begin)
                    .copy_(
                        mapped(file.at(saved.name), to, there.elements()).narrow(0, begin - there.begin, end - begin));
            }
        }
    }
}

ReadValues values_of_parts(const std::filesystem::path& checkpoint, const weights::ParameterTable& table, int shares) {
    struct Part {
        weights::ParameterSlice slice;
        std::unique_ptr<formats::SafetensorsFile> file;
    };
    auto parts = std::make_shared<std::vector<Part>>();
    for (int rank = 0; rank < shares; ++rank) {
        const weights::ParameterSlice slice = table.slice({rank, shares});
        if (slice.elements() > 0)
            parts->push_back(
                {slice, std::make_unique<formats::SafetensorsFile>(checkpoint / optimizer_file({rank, shares}))});
    }
    return [parts](const weights::Parameter& p) {
        const at::Tensor values = at::empty({p.elements()}, at::kFloat);
        for (const auto& [slice, file] : *parts) {
            const weights::ParameterSlice part = slice.with({p.offset, p.offset + p.elements()});
            if (part.elements() == 0) continue;
            values.narrow(0, part.begin - p.offset, part.elements())
                .copy_(mapped(file->at("params"), values, slice.elements())
                           .narrow(0, part.begin - slice.begin, part.elements()));
        }
        return values;
    };
}

void restore_adapter(const std::filesystem::path& folder, const weights::Parameters& parameters) {
    const formats::SafetensorsFile file(folder / "adapter_model.safetensors");
    for (const weights::Parameter& p : parameters.table().parameters())
        parameters.assign(p, mapped(file.at(p.name), parameters.values_P, p.elements()));
}

struct BackgroundSaver::Job {
    Write write;
    std::optional<c10::Event> copied;
};

BackgroundSaver::BackgroundSaver(const ops::Context& ctx, const ops::AdamwState& state,
                                 const std::optional<ops::AdamwState>& copies, bool in_place)
    : ctx_(ctx),
      state_(state),
      in_place_(in_place),
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

void BackgroundSaver::save(Write write, const Fill& fill) {
    wait();
    try {
        if (!snapshot_) snapshot_ = std::make_unique<Snapshot>(state_, ctx_.device());
    } catch (...) {
        failure_ = std::current_exception();  // nothing is under way that could set it
        if (fill) fill(nullptr);
        return;
    }
    if (fill)
        fill(snapshot_.get());
    else if (!in_place_)
        for (const auto& [name, tensor] : trained_tensors(state_))
            snapshot_->at(name).copy_(tensor, /*non_blocking=*/true);
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
    if (!in_place_) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return job_ == nullptr; });
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
