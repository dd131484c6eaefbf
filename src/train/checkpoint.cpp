#include "unsloth/train/checkpoint.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <sstream>

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

/// A file's tensor, of `elements` elements, in place in its map.
at::Tensor mapped(const formats::TensorView& view, const at::Tensor& like, int64_t elements) {
    if (view.dtype != ops::dtype_of(like) || view.elements() != elements)
        throw Error("checkpoint.wrong-tensors",
                    cat(view.file->path().string(), ": ", view.name, " has ", view.elements(), " elements of ",
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
            log::warning("could not pin memory for checkpoint snapshots (", reason.substr(0, reason.find('\n')),
                         "): training will pause briefly at each save");
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

StatePart StatePart::with_number(int number) const {
    StatePart other = *this;
    other.stage.rank = number / share.size;
    other.share.rank = number % share.size;
    return other;
}

weights::ParameterTable StatePart::table(const weights::ParameterTable& all) const {
    return stage.alone() ? all : all.of(stage, all.embeddings_are_head());
}

std::string optimizer_file(int number, int count) {
    if (count == 1) return "optimizer.safetensors";
    std::array<char, 64> name;
    std::snprintf(name.data(), name.size(), "optimizer-%05d-of-%05d.safetensors", number + 1, count);
    return name.data();
}

namespace {

constexpr const char* stage_key = "unsloth_stage";

/// "1 of 2: 0-16 16-32".
std::string stage_text(const spec::Stage& stage) {
    return cat(stage.rank, " of ", stage.size, ": ", spec::layer_ranges_text(stage.chunks));
}

spec::Stage stage_of(const formats::SafetensorsFile& file, int files) {
    spec::Stage stage;
    const auto text = file.metadata().find(stage_key);
    if (text == file.metadata().end()) return stage;
    std::istringstream in(text->second);
    std::string of, ranges;
    in >> stage.rank >> of >> stage.size;
    std::getline(in, of, ':');
    std::getline(in, ranges);
    stage.chunks = spec::parse_layer_ranges(ranges);
    if (stage.size < 1 || files % stage.size != 0 || stage.chunks.empty() || stage.chunks.size() % stage.size != 0)
        throw Error("checkpoint.damaged-file", cat(file.path().string(), ": ", stage_key, " is \"", text->second, "\""),
                    "It was changed since it was written.");
    return stage;
}

/// One of the files, with what it has.
struct PartFile {
    formats::SafetensorsFile file;
    StatePart part;
    weights::ParameterTable table;
};

/// The files that are there, in order.
std::vector<PartFile> part_files(const std::filesystem::path& checkpoint, const weights::ParameterTable& all) {
    int count = 1;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
        int number = 0, of = 0;
        if (std::sscanf(entry.path().filename().c_str(), "optimizer-%5d-of-%5d", &number, &of) == 2 && number >= 1 &&
            number <= of && entry.path().filename() == optimizer_file(number - 1, of))
            count = of;
    }
    std::vector<PartFile> files;
    for (int number = 0; number < count; ++number) {
        const std::filesystem::path path = checkpoint / optimizer_file(number, count);
        if (!std::filesystem::exists(path)) continue;  // nothing is trained there
        formats::SafetensorsFile file(path);
        StatePart part{.stage = stage_of(file, count), .share = {}};
        part.share.size = count / part.stage.size;
        part = part.with_number(number);
        weights::ParameterTable table = part.table(all);
        files.push_back({std::move(file), std::move(part), std::move(table)});
    }
    return files;
}

}  // namespace

void save_optimizer(const std::filesystem::path& folder, const Snapshot& snapshot, const StatePart& part,
                    const weights::ParameterTable& all, bool with_values) {
    const weights::ParameterSlice own = part.table(all).slice(part.share);
    std::map<std::string, at::Tensor> tensors(snapshot.tensors().begin(), snapshot.tensors().end());
    if (!with_values || own.elements() == 0)
        tensors.erase("params");
    else if (at::Tensor& values = tensors.at("params"); values.numel() > own.elements())
        values = values.narrow(0, own.begin, own.elements());
    if (tensors.empty()) return;
    std::vector<formats::TensorDecl> declared;
    for (const auto& [name, tensor] : tensors) declared.push_back({name, ops::dtype_of(tensor), {tensor.numel()}});
    formats::SafetensorsWriter::Metadata metadata = {{"format", "pt"}};
    if (!part.stage.alone()) metadata[stage_key] = stage_text(part.stage);
    formats::SafetensorsWriter writer(folder / optimizer_file(part.number(), part.count()), declared, metadata);
    for (const formats::TensorDecl& decl : writer.tensors()) writer.append(decl.name, bytes_of(tensors.at(decl.name)));
    writer.finish();
}

void restore_optimizer(const std::filesystem::path& checkpoint, const weights::ParameterTable& all,
                       weights::Parameters& parameters, config::Optimizer optimizer, bool with_values) {
    using weights::Parameters, weights::ParameterSlice, weights::CommonStretch;
    const std::vector<PartFile> files = part_files(checkpoint, all);
    for (const SavedTensor& saved : saved_tensors) {
        const bool values = saved.member == &ops::AdamwState::params_P;
        if (values && !with_values) continue;
        const at::Tensor to = values ? parameters.values_P : parameters.state().*saved.member;
        const ParameterSlice here =
            values ? parameters.held()
                   : Parameters::state_slice(parameters.table(), optimizer, parameters.share(), saved.member);
        const std::vector<CommonStretch> own = Parameters::common(all, parameters.table(), optimizer, saved.member);
        for (const auto& [file, part, table] : files) {
            const ParameterSlice there = Parameters::state_slice(table, optimizer, part.share, saved.member);
            for (const CommonStretch& from : Parameters::common(all, table, optimizer, saved.member))
                for (const CommonStretch& into : own) {
                    // By places in the layout of all: what is added gives those in the file and here.
                    const int64_t in_file = from.own - from.all - there.begin,
                                  in_here = into.own - into.all - here.begin;
                    const int64_t begin = std::max({from.all, into.all, -in_file, -in_here}),
                                  end = std::min({from.all + from.elements, into.all + into.elements,
                                                  there.elements() - in_file, here.elements() - in_here});
                    if (begin >= end) continue;
                    to.narrow(0, begin + in_here, end - begin)
                        .copy_(
                            mapped(file.at(saved.name), to, there.elements()).narrow(0, begin + in_file, end - begin));
                }
        }
    }
}

ReadValues values_of_parts(const std::filesystem::path& checkpoint, const weights::ParameterTable& all) {
    const auto files = std::make_shared<const std::vector<PartFile>>(part_files(checkpoint, all));
    return [files](const weights::Parameter& p) {
        const at::Tensor values = at::empty({p.elements()}, at::kFloat);
        for (const auto& [file, part, table] : *files) {
            const weights::Parameter* const own = table.find(p.role, p.id, p.kind);
            if (own == nullptr) continue;
            const weights::ParameterSlice slice = table.slice(part.share),
                                          piece = slice.with({own->offset, own->offset + own->elements()});
            if (piece.elements() == 0) continue;
            values.narrow(0, piece.begin - own->offset, piece.elements())
                .copy_(mapped(file.at("params"), values, slice.elements())
                           .narrow(0, piece.begin - slice.begin, piece.elements()));
        }
        return values;
    };
}

void restore_adapter(const std::filesystem::path& folder, const weights::Parameters& parameters) {
    const formats::SafetensorsFile file(folder / "adapter_model.safetensors");
    for (const weights::Parameter& p : parameters.table().parameters())
        parameters.assign(p, weights::from_stored(p, mapped(file.at(p.name), parameters.values_P, p.elements())));
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

void BackgroundSaver::save(Write write) {
    wait();
    try {
        if (!snapshot_) snapshot_ = std::make_unique<Snapshot>(state_, ctx_.device());
    } catch (...) {
        failure_ = std::current_exception();  // nothing is in flight that could set it
        return;
    }
    if (!in_place_)
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
