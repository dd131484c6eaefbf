// BasePlan's loading of the layers: from the mapped files to where the plan wants the values.
#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/ops/coded_rows.h"
#include "unsloth/ops/upload.h"
#include "unsloth/weights/base_plan.h"
#include "unsloth/weights/part.h"
#include "weights/base_buffers.h"
#include "weights/disk_loading.h"

namespace unsloth::weights {
namespace {

at::Tensor tensor_at(const memory::Arena& arena, const BaseBuffer& buffer) {
    return arena.tensor(arena.plan().find(buffer.name()), {buffer.rows, buffer.columns}, buffer.type);
}

int64_t most_linears(const spec::ModelSpec& spec) {
    std::size_t most = 0;
    for (int64_t layer = 0; layer < spec.num_layers; ++layer) most = std::max(most, spec.linears_of(layer).size());
    return static_cast<int64_t>(most);
}

/// A group's weights in full training: views of the masters.
std::vector<StoredWeight> views_of(const Parameters& masters, const MatrixGroup& group, int layer) {
    std::vector<StoredWeight> projections;
    for (const Slice& slice : group.slices) {
        const at::Tensor whole_NK =
            masters.value(*masters.table().find(spec::TensorRole::linear, slice.id(layer), Parameter::Kind::base));
        for (const RowRun& run : row_runs(slice.part))
            projections.emplace_back(columns_of(whole_NK.narrow(0, run.whole, run.rows), slice.part));
    }
    return projections;
}

/// 4-bit weights that were quantised by their reader: the one number that is kept on the host becomes the reader's for
/// everyone. `linears`: the most of a layer.
void share_nested_offsets(std::vector<StoredLayer>& layers, at::Device device,
                          const std::function<int(int64_t layer)>& reader_of, int64_t linears, SharedLoading& shared) {
    if (shared.alone()) return;
    const at::Tensor offsets = at::zeros({static_cast<int64_t>(layers.size()), linears}, at::kFloat);
    const auto each = [&](const auto& visit) {
        for (std::size_t layer = 0; layer < layers.size(); ++layer) {
            float* sent = offsets.data_ptr<float>() + layer * static_cast<std::size_t>(linears);
            for (auto& [name, group] : layers[layer].groups)
                if (auto* stored = std::get_if<std::vector<StoredWeight>>(&group))
                    for (StoredWeight& weight : *stored)
                        if (float* own = nested_offset(weight)) visit(*own, *sent++);
        }
    };
    each([](float own, float& sent) { sent = own; });
    const at::Tensor there = offsets.to(device);
    for (int64_t layer = 0; layer < there.size(0); ++layer) shared.expect(there[layer], reader_of(layer));
    shared.finish();
    offsets.copy_(there);
    each([](float& own, float sent) { own = sent; });
}

}  // namespace

/// A group in the compute type: dequantized or copied once, or filled later from masters.
Operand BasePlan::load_dense(ops::Context& ctx, const memory::Arena& arena, int layer, Group g,
                             SharedLoading& shared) const {
    const at::Tensor buffer = tensor_at(arena, dense_buffer(layout_[g], layer, g, request_.dtype));
    Operand operand = dense_operand(layout_[g], buffer);
    if (request_.masters) return operand;
    for (const Slice& slice : layout_[g].slices) {
        if (shared.reads(layer)) {
            const formats::TensorSource& linear = file_->tensors.linear(slice.id(layer));
            const at::Tensor w_NK = std::get<DenseBase>(operand.base).w_NK.narrow(0, slice.n_begin, slice.n);
            expand(ctx, frozen_weight(ctx, linear), w_NK);
            if (request_.mantissa_bits > 0) ops::round_mantissa(w_NK, request_.mantissa_bits);
            linear.drop();
        }
        shared.done();
    }
    shared.expect(buffer, shared.reader_of(layer));
    return operand;
}

/// The memory of the codes of W's transpose, and A's, which is zeroed: what no module uses stays 0 for good.
CodedTranspose BasePlan::transpose_at(const memory::Arena& arena, int layer, Group g) const {
    const std::vector<BaseBuffer> buffers =
        transpose_buffers(layout_[g], layer, g, request_.dtype, dx_codes(request_.coded));
    return {{tensor_at(arena, buffers[0]), tensor_at(arena, buffers[1]).squeeze(1),
             buffers.size() > 3 ? tensor_at(arena, buffers[3]).squeeze(1) : at::Tensor()},
            tensor_at(arena, buffers[2]).zero_()};
}

/// A group in 8 bits: its projections, with the values that their stored form represents, as one matrix that is
/// quantised in both directions.
void BasePlan::load_codes(ops::Context& ctx, const memory::Arena& arena, int layer, Group g, SharedLoading& shared,
                          StoredLayer& stored) const {
    std::vector<at::Tensor> made;
    for (const BaseBuffer& buffer : coded_buffers(layout_[g], layer, g, request_.dtype, forward_codes(request_.coded)))
        made.push_back(tensor_at(arena, buffer));
    Operand operand;
    const CodedBase base{{made[0], made[1].squeeze(1), made.size() > 4 ? made[4].squeeze(1) : at::Tensor()}};
    const CodedTranspose transpose = transpose_at(arena, layer, g);
    operand.base = base;
    operand.a_RK = made[2].zero_();
    operand.b_NR = made[3].zero_();
    if (shared.reads(layer)) {
        const at::Tensor joined_NK =
            at::empty({layout_[g].n, layout_[g].k}, at::TensorOptions().dtype(request_.dtype).device(ctx.device()));
        for (const Slice& slice : layout_[g].slices) {
            const formats::TensorSource& linear = file_->tensors.linear(slice.id(layer));
            expand(ctx, frozen_weight(ctx, linear), joined_NK.narrow(0, slice.n_begin, slice.n));
            linear.drop();
        }
        ops::quantize_rows(ctx, joined_NK, base.w_NK);
        ops::quantize_columns(ctx, joined_NK, transpose.w_KN);
    }
    for (const ops::CodedMatrix& codes : {base.w_NK, transpose.w_KN})
        for (const at::Tensor& part : {codes.codes, codes.scales, codes.factors})
            if (part.defined()) shared.expect(part, shared.reader_of(layer));
    shared.done(static_cast<int64_t>(layout_[g].slices.size()));
    stored.groups[g] = std::move(operand);
    stored.transposes[g] = transpose;
}

/// Codes for dx, made of the values of the codes that the forward products read.
void BasePlan::make_transposes(ops::Context& ctx, const memory::Arena& arena, std::vector<StoredLayer>& layers) const {
    for (const int layer : layout_.stage.layers(file_->spec.num_layers))
        for (const Group g : layout_.groups_of(layer)) {
            StoredLayer& stored = layers[static_cast<std::size_t>(layer)];
            const StoredGroup& group = stored.groups.at(g);
            at::Tensor w_NK;
            if (const auto* ready = std::get_if<Operand>(&group)) {
                w_NK = std::get<DenseBase>(ready->base).w_NK;
            } else {
                const auto options = at::TensorOptions().dtype(request_.dtype).device(ctx.device());
                w_NK = at::empty({layout_[g].n, layout_[g].k}, options);
                for (std::size_t i = 0; i < layout_[g].slices.size(); ++i) {
                    const Slice& slice = layout_[g].slices[i];
                    expand(ctx, std::get<std::vector<StoredWeight>>(group)[i], w_NK.narrow(0, slice.n_begin, slice.n));
                }
            }
            const CodedTranspose transpose = transpose_at(arena, layer, g);
            ops::quantize_columns(ctx, w_NK, transpose.w_KN);
            stored.transposes[g] = transpose;
        }
}

/// A norm, in fp32; a router, which is a matrix, in the compute type.
at::Tensor BasePlan::load_vector(const memory::Arena& arena, const formats::TensorSource* source) const {
    if (source == nullptr) return {};
    const at::Tensor values = at::empty(source->rule.shape, at::kFloat);
    source->read_f32(values.data_ptr<float>());
    if (source->rule.offset != 0) values.add_(source->rule.offset);
    const at::ScalarType type = source->rule.role == spec::TensorRole::router ? request_.dtype : at::kFloat;
    const at::Tensor out = arena.tensor(arena.plan().find(source->rule.hf_name), source->rule.shape, type);
    return out.copy_(values);
}

at::Tensor BasePlan::load_bias(const memory::Arena& arena, int layer, Group g) const {
    const MatrixGroup& group = layout_[g];
    if (!has_bias(g)) return {};
    const at::Tensor joined = at::zeros({group.n}, at::kFloat);
    for (const Slice& slice : group.slices)
        if (const formats::TensorSource* bias = file_->tensors.bias(slice.id(layer))) {
            const at::Tensor whole = at::empty({bias->cols()}, at::kFloat);
            bias->read_f32(whole.data_ptr<float>());
            joined.narrow(0, slice.n_begin, slice.n).copy_(joined_rows_of(whole, slice.part));
        }
    return arena.tensor(arena.plan().find(bias_name(layer, g)), {group.n}, request_.dtype).copy_(joined);
}

/// Norms of a model that is trained as a whole are read from its fp32 masters.
at::Tensor BasePlan::norm(const memory::Arena& arena, spec::TensorRole role, int layer,
                          const Parameters* masters) const {
    if (masters == nullptr) return load_vector(arena, &file_->tensors.of(role, layer));
    return masters->value(*masters->table().find(role, {layer}, Parameter::Kind::base));
}

/// Where a layer is in host memory, and the slot that it is copied into; nullopt: it is on the device. Layers take
/// the slots in turn, so that each has one address: passes can be recorded.
std::optional<StreamedImage> BasePlan::streamed_image(const BaseMemory& memory, int layer) const {
    if (!streams(layer)) return std::nullopt;
    const auto place = std::lower_bound(streamed_.begin(), streamed_.end(), layer) - streamed_.begin();
    const int slot = static_cast<int>(place) % slots();
    const int64_t bytes = image_bytes(layer);
    const memory::Arena& resident = memory.resident;
    at::Tensor image = peer_image(memory.peers, layer);
    if (!image.defined() && on_disk(layer)) {
        const memory::BufferId on_host = memory.host->plan().find(image_name(layer));
        image = memory.host->tensor(on_host, {memory.host->plan().entry(on_host).bytes}, at::kByte);
    } else if (!image.defined()) {
        image = memory.common->tensor(memory.common->plan().find(image_name(layer)));
    }
    StreamedImage streamed{
        .image = image,
        .slot_memory = resident.tensor(resident.plan().find(image_slot_name(slot)), {bytes}, at::kByte),
        .slot = slot};
    if (on_disk(layer)) streamed.disk = DiskImage{.rest_to = image_at(layer).rest};
    return streamed;
}

/// A layer's image in its owner's memory, which all peers lay out alike; undefined where it is elsewhere.
at::Tensor BasePlan::peer_image(const std::vector<at::Tensor>& peers, int layer) const {
    if (!at_peer(layer)) return {};
    memory::Plan plan;
    submit_peer(owner_of(layer), plan);
    plan.place();
    const memory::Entry& entry = plan.entry(plan.find(image_name(layer)));
    return peers.at(static_cast<std::size_t>(owner_of(layer))).narrow(0, entry.offset, entry.bytes);
}

BasePlan::ImageMemory BasePlan::memory_at(const at::Tensor& read, const at::Tensor& filled) {
    return {read, [filled](const PackedLayer& image, const std::string& part, const formats::TensorSource&,
                           const at::Tensor& values) { ops::copy_from_host(values, image.part(filled, part)); }};
}

/// The projections of a layer that is not ready; with `reads` their values, too.
StoredLayer BasePlan::load_image(ops::Context& ctx, const ImageMemory& memory, int layer, bool reads) const {
    const PackedLayer image = image_of(layer);
    StoredLayer stored;
    for (const Group g : layout_.groups_of(layer)) {
        std::vector<StoredWeight> projections;
        for (const Slice& slice : layout_[g].slices) {
            const formats::TensorSource& source = file_->tensors.linear(slice.id(layer));
            projections.push_back(load_stored(ctx, source, reads, [&](const char* what, const at::Tensor& values) {
                const std::string name = part_name(source.rule.hf_name, what);
                if (reads) memory.fill(image, name, source, values.view({-1}));
                return image.part(memory.read, name);
            }));
        }
        stored.groups[g] = std::move(projections);
    }
    return stored;
}

/// The one number of a weight that products are given by the host, from its image in `memory`.
void BasePlan::read_offset(const PackedLayer& image, const at::Tensor& memory, const formats::TensorSource& source,
                           StoredWeight& stored) const {
    const Held how = held(source);
    if ((how == Held::tiles || how == Held::quantised_here) && nested(source))
        *nested_offset(stored) = image.part(memory, part_name(source.rule.hf_name, nested_offset_part)).item<float>();
}

void BasePlan::read_offsets(const at::Tensor& memory, int layer, StoredLayer& stored) const {
    const PackedLayer image = image_of(layer);
    for (const Group g : layout_.groups_of(layer)) {
        auto& projections = std::get<std::vector<StoredWeight>>(stored.groups[g]);
        for (std::size_t i = 0; i < projections.size(); ++i)
            read_offset(image, memory, file_->tensors.linear(layout_[g].slices[i].id(layer)), projections[i]);
    }
}

void BasePlan::read_common(ops::Context& ctx, const std::string& name, const at::Tensor& memory,
                           SharedLoading& shared) const {
    for (const int layer : streamed_) {
        if (image_name(layer) != name) continue;
        load_image(ctx, memory_at(memory, memory), layer, /*reads=*/true);
        shared.done(static_cast<int64_t>(linears(layer).size()));
        return;
    }
    load_matrix(ctx, memory, file_->tensors.of(spec::TensorRole::embed_tokens), /*reads=*/true);
}

std::unique_ptr<WeightProvider> BasePlan::load_layers(ops::Context& ctx, const BaseMemory& memory,
                                                      const Adapters* adapters, const Parameters* masters,
                                                      SharedLoading& shared, comm::Communicator* slices) const {
    const memory::Arena& arena = memory.resident;
    // The owner of a layer says what its blocks' maxima are measured from.
    UNSLOTH_CHECK(
        memory.peers.empty() || (static_cast<int>(memory.peers.size()) == request_.peers.size && !shared.alone()),
        "peers load together");
    std::vector<StoredLayer> layers(static_cast<std::size_t>(file_->spec.num_layers));
    std::vector<std::optional<StreamedImage>> streamed;
    streamed.reserve(layers.size());
    DiskLoading loading(request_.offload_folder);
    for (int layer = 0; layer < static_cast<int>(layers.size()); ++layer) {
        StoredLayer& stored = layers[static_cast<std::size_t>(layer)];
        if (!has(layer)) {
            streamed.emplace_back();
            continue;
        }
        const at::Tensor at_peer = peer_image(memory.peers, layer);
        std::optional<StreamedImage>& image = streamed.emplace_back(streamed_image(memory, layer));
        const bool stays_packed = at_peer.defined() || image || (!is_ready(layer) && masters == nullptr);
        if (at_peer.defined()) {
            stored = load_image(ctx, memory_at(image ? image->slot_memory : at_peer, at_peer), layer, owns(layer));
        } else if (image && image->disk) {
            const auto fill = [&](const PackedLayer& of, const std::string& part, const formats::TensorSource& source,
                                  const at::Tensor& values) { loading.place(*image, of, part, source, values); };
            stored = load_image(ctx, {image->slot_memory, fill}, layer, /*reads=*/true);
        } else if (image) {
            stored = load_image(ctx, memory_at(image->slot_memory, {}), layer, /*reads=*/false);
            read_offsets(image->image, layer, stored);
        } else if (!is_ready(layer) && masters != nullptr) {
            for (const Group g : layout_.groups_of(layer)) stored.groups[g] = views_of(*masters, layout_[g], layer);
        } else if (!is_ready(layer)) {
            at::Tensor held;  // undefined where all of it stays in the file's map
            if (const int64_t bytes = image_bytes(layer); bytes > 0)
                held = arena.tensor(arena.plan().find(image_name(layer)), {bytes}, at::kByte);
            stored = load_image(ctx, memory_at(held, held), layer, shared.reads(layer));
            shared.expect(held, shared.reader_of(layer));
        }
        // What this process read into common memory has been counted.
        const bool counted = image && !at_peer.defined() && !image->disk &&
                             memory.common->filled_here(memory.common->plan().find(image_name(layer)));
        if (stays_packed && !counted) shared.done(static_cast<int64_t>(linears(layer).size()));
        for (const Group g : layout_.groups_of(layer)) {
            stored.biases[g] = load_bias(arena, layer, g);
            if (!is_ready(layer)) continue;
            if (forward_coded(request_.coded)) {
                load_codes(ctx, arena, layer, g, shared, stored);
            } else {
                stored.groups[g] = load_dense(ctx, arena, layer, g, shared);
            }
        }
        for (const spec::TensorRole role : file_->tensors.norms(layer))
            stored.norms[role] = norm(arena, role, layer, masters);
    }
    shared.finish();
    const auto reader_of = [&](int64_t layer) { return at_peer(layer) ? owner_of(layer) : shared.reader_of(layer); };
    share_nested_offsets(layers, ctx.device(), reader_of, most_linears(file_->spec), shared);
    if (request_.coded == spec::CodedProducts::dx) make_transposes(ctx, arena, layers);
    std::unique_ptr<LayerPrefetcher> images;
    if (!streamed_.empty()) {
        auto copies = std::make_unique<ops::CopyStream>(ctx, slots() + DiskStream::buffers);
        std::unique_ptr<DiskStream> disk;
        if (!recordable()) {
            const memory::BufferId buffers = memory.host->plan().find(disk_buffers_name);
            disk = std::make_unique<DiskStream>(loading.take_files(),
                                                memory.host->tensor(buffers, {DiskStream::memory_bytes}, at::kByte),
                                                *copies, slots(), ctx.device());
        }
        images = std::make_unique<LayerPrefetcher>(std::move(copies), std::move(streamed), std::move(disk));
    }
    return std::make_unique<WeightProvider>(
        ctx, layout_, request_.dtype, std::move(layers), arena, adapters, masters,
        TilePolicy{request_.nf4_chooser, request_.trains, margins_stay(),
                   file_->spec.experts ? most_tiled_rows * file_->spec.experts->count / file_->spec.experts->top_k : 0},
        std::move(images), slices, request_.grid);
}

}  // namespace unsloth::weights
