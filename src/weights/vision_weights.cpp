#include "unsloth/weights/vision_weights.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "unsloth/core/error.h"
#include "unsloth/formats/peft.h"
#include "unsloth/ops/rows.h"
#include "unsloth/ops/upload.h"
#include "weights/base_buffers.h"
#include "weights/quant4_rows.h"
#include "weights/vision_list.h"

namespace unsloth::weights {
namespace {

constexpr const char* group = "tower weights";
constexpr const char* expanded_linear = "a linear of the tower";  // in the compute type, of those in 4 bit

/// Pixels from 0 to 1 in fp32, less the mean, by the deviation, as transformers computes them.
at::Tensor values_of_bytes(const spec::VisionSpec& spec) {
    const at::Tensor values = at::empty({spec::VisionSpec::channels, 256}, at::kFloat);
    auto* const out = values.mutable_data_ptr<float>();
    for (std::size_t channel = 0; channel < 3; ++channel)
        for (int byte = 0; byte < 256; ++byte) {
            const auto pixel = static_cast<float>(byte * (1.0 / 255));
            out[channel * 256 + static_cast<std::size_t>(byte)] =
                (pixel - static_cast<float>(spec.image_mean[channel])) / static_cast<float>(spec.image_std[channel]);
        }
    return values;
}

/// A half of a head's pairs turns by the row, the other by the column, with the same frequencies.
void fill_rotation(const spec::VisionSpec& spec, const VisionWeights& weights) {
    const int64_t half = spec.head_dim() / 4;
    const at::Tensor frequencies = at::empty({2 * half}, at::kFloat), axes = at::empty({2 * half}, at::kInt);
    for (int64_t i = 0; i < 2 * half; ++i) {
        const double share = static_cast<double>(i % half) / static_cast<double>(half);
        frequencies.mutable_data_ptr<float>()[i] = static_cast<float>(1.0 / std::pow(spec.rope_theta, share));
        axes.mutable_data_ptr<int32_t>()[i] = i < half ? 0 : 1;
    }
    weights.inv_freq_p.copy_(frequencies);
    weights.axis_p.copy_(axes);
}

void order_by_layers(const spec::VisionSpec& spec, const at::Tensor& weight_NK) {
    const auto layers = static_cast<int64_t>(spec.tiles->chosen.size());
    layer_columns(weight_NK, layers).chosen_NLC.copy_(folder_columns(weight_NK, layers).chosen_NLC.clone());
}

void copy_columns(const ProjectorColumns& from, const ProjectorColumns& to) {
    to.last_NC.copy_(from.last_NC);
    to.chosen_NLC.copy_(from.chosen_NLC);
}

std::string a_copy(const spec::TowerLora& linear) {
    return cat("A of ", linear.name());
}
std::string b_copy(const spec::TowerLora& linear) {
    return cat("B of ", linear.name());
}
/// Rows of 16-bit values begin at multiples of 16 bytes.
int64_t aligned(int64_t columns) {
    return (columns + 7) / 8 * 8;
}

}  // namespace

ProjectorColumns folder_columns(const at::Tensor& x_NK, int64_t layers) {
    const int64_t c = x_NK.size(1) / (1 + layers);
    return {x_NK.narrow(1, 0, c), x_NK.narrow(1, c, c * layers).unflatten(1, {c, layers}).transpose(1, 2)};
}

ProjectorColumns layer_columns(const at::Tensor& x_NK, int64_t layers) {
    const int64_t c = x_NK.size(1) / (1 + layers);
    return {x_NK.narrow(1, 0, c), x_NK.narrow(1, c, c * layers).unflatten(1, {layers, c})};
}

int64_t widest_tower_rank(const std::vector<spec::TowerLora>& lora) {
    int64_t widest = 0;
    for (const spec::TowerLora& linear : lora) widest = std::max(widest, padded_tower_rank(linear.lora.r));
    return widest;
}

void VisionWeights::plan_adapters(const std::vector<spec::TowerLora>& lora, at::ScalarType dtype,
                                  memory::Plan& resident) {
    const auto each = static_cast<int64_t>(c10::elementSize(dtype));
    for (const spec::TowerLora& linear : lora) {
        const int64_t r = padded_tower_rank(linear.lora.r);
        resident.add(group, a_copy(linear), r * aligned(linear.k) * each);
        resident.add(group, b_copy(linear), linear.n * r * each);
    }
}

void VisionWeights::adapt(const spec::VisionSpec& spec, const std::vector<spec::TowerLora>& lora,
                          const Parameters& parameters, const memory::Arena& arena) {
    std::map<std::string, const Parameter*> by_name;
    for (const Parameter& p : parameters.table().parameters()) by_name.emplace(p.name, &p);
    const at::ScalarType dtype = patch_CK.scalar_type();
    const auto copy = [&](const std::string& name, int64_t rows, int64_t columns) {
        return arena.tensor(arena.plan().find(name), {rows, columns}, dtype).zero_();
    };
    const VisionList list(spec, dtype, {}, *this);
    for (const VisionList::Linear& linear : list.linears())
        for (std::size_t i = 0; i < linear.modules.size(); ++i) {
            const auto adapted = std::ranges::find(lora, linear.modules[i], &spec::TowerLora::module);
            if (adapted == lora.end()) continue;
            const int64_t r = padded_tower_rank(adapted->lora.r);
            linear.to->adapters.push_back(
                {by_name.at(formats::tower_lora_a_name(*adapted)), by_name.at(formats::tower_lora_b_name(*adapted)),
                 adapted->lora.scale * linear.to->gate, static_cast<int64_t>(i) * linear.rows_each,
                 copy(a_copy(*adapted), r, aligned(adapted->k)).narrow(1, 0, adapted->k),
                 copy(b_copy(*adapted), adapted->n, r)});
            if (linear.to == &projector) linear.to->adapters.back().chosen = std::ssize(spec.tiles->chosen);
        }
    adapted_ = !lora.empty();
}

void VisionWeights::refresh(const Parameters& parameters) {
    if (!adapted_ || version_ == parameters.version) return;
    const auto fill = [&](const VisionLinear& linear) {
        for (const VisionAdapter& adapter : linear.adapters) {
            const int64_t r = adapter.a->shape[0];
            const at::Tensor value = parameters.value(*adapter.a), a = adapter.a_RK.narrow(0, 0, r);
            if (adapter.chosen > 0)
                copy_columns(folder_columns(value, adapter.chosen), layer_columns(a, adapter.chosen));
            else
                a.copy_(value);
            at::Tensor b = adapter.b_NR.narrow(1, 0, r);
            at::mul_out(b, parameters.value(*adapter.b), at::scalar_tensor(adapter.scale));
        }
    };
    for (const std::vector<VisionBlock>* const some : {&blocks, &global_blocks})
        for (const VisionBlock& block : *some)
            for (const VisionLinear* const linear : {&block.qkv, &block.proj, &block.in, &block.out}) fill(*linear);
    fill(merger.in), fill(merger.out), fill(projector);
    for (const VisionMerger& of_layer : deepstack) fill(of_layer.in), fill(of_layer.out);
    version_ = parameters.version;
}

const at::Tensor& VisionLinear::values(ops::Context& ctx) const {
    if (parts.empty()) return weight_NK;
    std::vector<spec::Quant4View> weights;
    std::vector<at::Tensor> outs;
    int64_t elements = 0;
    for (const VisionPart& part : parts) {
        weights.push_back(part.weight.view());
        outs.push_back(part.out_NK);
        elements += weights.back().elements();
    }
    if (elements < weight_NK.numel()) ops::zero_2d(ctx, weight_NK);
    ops::dequantize_4bit(ctx, weights, outs);
    return weight_NK;
}

void VisionWeights::plan(const spec::VisionSpec& spec, at::ScalarType dtype, const Sources& sources,
                         memory::Plan& resident) {
    VisionWeights weights;
    const VisionList list(spec, dtype, sources, weights);
    const auto add = [&](const std::string& name, int64_t bytes) { resident.add(group, name, bytes); };
    for (const VisionBuffer& buffer : list.buffers()) {
        if (buffer.in_4bit == nullptr) {
            add(buffer.name, buffer.bytes());
            continue;
        }
        for (const std::string& name : buffer.from)
            quant4_arrays(list.source(name).quant4()->view, [&](const char* what, at::ScalarType type, int64_t count) {
                add(part_name(name, what), count * static_cast<int64_t>(c10::elementSize(type)));
            });
    }
    if (list.expanded_bytes() > 0) add(expanded_linear, list.expanded_bytes());
}

namespace {

/// Brings a buffer's tensors from the folder to where `arena` has them.
class VisionLoader {
  public:
    VisionLoader(const VisionList& list, const memory::Arena& arena) : list_(list), arena_(arena) {}

    float gate(const std::string& name) const {
        float value = 0;
        list_.source(name).read_f32(&value);
        return std::tanh(value);
    }

    void load(const VisionBuffer& buffer) const {
        *buffer.to = arena_.tensor(arena_.plan().find(buffer.in_4bit ? expanded_linear : buffer.name), buffer.shape,
                                   buffer.dtype);
        if (buffer.rows_each > 0 || buffer.columns > 0) buffer.to->zero_();
        const int64_t columns = buffer.columns > 0 ? buffer.columns : buffer.shape.back();
        const float factor = buffer.gate.empty() ? 1 : gate(buffer.gate);
        int64_t row = 0;
        for (const std::string& name : buffer.from) {
            const formats::TensorSource& source = list_.source(name);
            const int64_t count = buffer.shape.size() == 2 ? source.rows() * source.cols() / columns : source.cols();
            at::Tensor rows = buffer.to->narrow(0, row, count);
            if (buffer.columns > 0) rows = rows.narrow(1, 0, columns);
            if (buffer.in_4bit != nullptr)
                buffer.in_4bit->parts.push_back({part(name, factor), rows});
            else
                copy_values(source, factor, rows);
            row += buffer.rows_each > 0 ? buffer.rows_each : count;
            source.drop();
        }
    }

  private:
    static void copy_values(const formats::TensorSource& source, float factor, const at::Tensor& rows) {
        const at::Tensor values = at::empty(source.rule.shape, at::kFloat);
        source.read_f32(values.mutable_data_ptr<float>());
        if (factor != 1) values.mul_(factor);
        rows.copy_(values.view(rows.sizes()));
    }

    /// Its factor is in its code.
    ops::Quant4Tensor part(const std::string& name, float factor) const {
        ops::Quant4Tensor made =
            quant4_rows(list_.source(name).quant4()->view, [&](const char* what, const at::Tensor& values) {
                at::Tensor to =
                    arena_.tensor(arena_.plan().find(part_name(name, what)), values.sizes(), values.scalar_type());
                ops::copy_from_host(values, to);
                return to;
            });
        if (factor != 1) made.tables.narrow(0, 0, 16).mul_(factor);
        return made;
    }

    const VisionList& list_;
    const memory::Arena& arena_;
};

}  // namespace

VisionWeights VisionWeights::load(const spec::VisionSpec& spec, at::ScalarType dtype, const Sources& sources,
                                  const memory::Arena& arena) {
    VisionWeights weights;
    const VisionList list(spec, dtype, sources, weights);
    const VisionLoader loader(list, arena);
    for (const VisionBuffer& buffer : list.buffers()) loader.load(buffer);
    for (const VisionList::Linear& linear : list.linears())
        if (!linear.gate.empty()) linear.to->gate = loader.gate(linear.gate);
    weights.value_CB.copy_(values_of_bytes(spec));
    if (!spec.tiles) {
        fill_rotation(spec, weights);
        return weights;
    }
    weights.place_gate = loader.gate("vision_model.gated_positional_embedding.gate");
    weights.before_gate = loader.gate("vision_model.pre_tile_positional_embedding.gate");
    weights.behind_gate = loader.gate("vision_model.post_tile_positional_embedding.gate");
    order_by_layers(spec, weights.projector.weight_NK);
    return weights;
}

}  // namespace unsloth::weights
