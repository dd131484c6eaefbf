#include "unsloth/weights/vision_weights.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "unsloth/core/error.h"
#include "unsloth/formats/peft.h"

namespace unsloth::weights {
namespace {

/// A buffer, and the tensors of the folder that are its rows, by their names below the tower.
struct VisionBuffer {
    std::string name;
    std::vector<int64_t> shape;
    at::ScalarType dtype;
    std::vector<std::string> from;
    at::Tensor* to;
    std::string gate = {};  ///< the values are multiplied by this tensor's tanh; empty: by nothing
    int64_t rows_each = 0;  ///< that a tensor has here, its own and zeros; 0: its own
    int64_t columns = 0;    ///< of the tensors, to which zeros are added here; 0: as many as the buffer's
};

/// Every tensor of the weights with its buffer: what is planned and what is loaded follow from this list.
class VisionList {
  public:
    VisionList(const spec::VisionSpec& spec, at::ScalarType dtype, VisionWeights& weights)
        : spec_(spec), dtype_(dtype) {
        for (const spec::VisionTensor& tensor : spec::vision_tensors(spec)) shapes_.emplace(tensor.name, tensor.shape);
        buffers_.push_back({"values of bytes", {spec::VisionSpec::channels, 256}, at::kFloat, {}, &weights.value_CB});
        if (spec.tiles)
            tiles(*spec.tiles, weights);
        else
            patches(weights);
    }

    const std::vector<VisionBuffer>& buffers() const { return buffers_; }

    /// A linear, and the folder's linears that make up its rows, `rows_each` each where there are several.
    struct Linear {
        VisionLinear* to;
        std::vector<std::string> modules;
        int64_t rows_each = 0;
        std::string gate = {};  ///< as VisionBuffer's
    };
    const std::vector<Linear>& linears() const { return linears_; }

  private:
    void patches(VisionWeights& weights) {
        const spec::VisionSpec& spec = spec_;
        add(weights.patch_CK, {"patch_embed.proj.weight"}, dtype_);
        if (spec.patch_bias) add(weights.patch_bias_C, {"patch_embed.proj.bias"}, dtype_);
        if (spec.position_side > 0) add(weights.positions_NC, {"pos_embed.weight"}, dtype_);
        weights.blocks.resize(static_cast<std::size_t>(spec.depth));
        for (std::size_t i = 0; i < weights.blocks.size(); ++i) block(cat("blocks.", i, "."), weights.blocks[i]);
        merger("merger.", weights.merger);
        weights.deepstack.resize(spec.deepstack.size());
        for (std::size_t i = 0; i < weights.deepstack.size(); ++i)
            merger(cat("deepstack_merger_list.", i, "."), weights.deepstack[i]);
        const int64_t pairs = spec.head_dim() / 2;
        buffers_.push_back({"inverse frequencies of patches", {pairs}, at::kFloat, {}, &weights.inv_freq_p});
        buffers_.push_back({"axes of patches", {pairs}, at::kInt, {}, &weights.axis_p});
    }
    void add(at::Tensor& to, std::vector<std::string> from, at::ScalarType dtype) {
        std::vector<int64_t> shape = shapes_.at(from.front());
        for (std::size_t i = 1; i < from.size(); ++i) shape[0] += shapes_.at(from[i])[0];
        for (; shape.size() > 2; shape.pop_back()) shape[shape.size() - 2] *= shape.back();
        buffers_.push_back(
            {(spec_.tiles ? "" : "visual.") + from.front(), std::move(shape), dtype, std::move(from), &to});
    }
    void linear(VisionLinear& to, const std::vector<std::string>& modules) {
        std::vector<std::string> weights, biases;
        for (const std::string& module : modules) {
            weights.push_back(module + ".weight");
            biases.push_back(module + ".bias");
        }
        add(to.weight_NK, std::move(weights), dtype_);
        add(to.bias_N, std::move(biases), dtype_);
        linears_.push_back({&to, modules, modules.size() > 1 ? spec_.inner_size() : 0});
    }
    void norm(VisionNorm& to, const std::string& module) {
        add(to.weight, {module + ".weight"}, at::kFloat);
        if (!spec_.rms_norm) add(to.bias, {module + ".bias"}, at::kFloat);
    }
    void block(const std::string& name, VisionBlock& to) {
        norm(to.norm1, name + "norm1");
        linear(to.qkv, {name + "attn.qkv"});
        linear(to.proj, {name + "attn.proj"});
        norm(to.norm2, name + "norm2");
        if (spec_.gated_mlp) return gated_mlp(name, to);
        linear(to.in, {name + "mlp.linear_fc1"});
        linear(to.out, {name + "mlp.linear_fc2"});
    }
    /// Inner values that are not there are zeros: gate, up and down have VisionSpec::inner_size() of them.
    void gated_mlp(const std::string& name, VisionBlock& to) {
        const std::size_t first = buffers_.size();
        linear(to.in, {name + "mlp.gate_proj", name + "mlp.up_proj"});
        for (std::size_t i = first; i < buffers_.size(); ++i) {
            buffers_[i].rows_each = spec_.inner_size();
            buffers_[i].shape[0] = 2 * spec_.inner_size();
        }
        const std::size_t down = buffers_.size();
        linear(to.out, {name + "mlp.down_proj"});
        buffers_[down].columns = spec_.intermediate_size;
        buffers_[down].shape[1] = spec_.inner_size();
    }
    void tiles(const spec::TilesSpec& tiles, VisionWeights& weights) {
        const std::string root = "vision_model.", learned = root + "gated_positional_embedding.";
        add(weights.patch_CK, {root + "patch_embedding.weight"}, dtype_);
        const auto ids = static_cast<int64_t>(tiles.arrangements.size()) + 1;
        const int64_t rows = tiles.rows() + ids * tiles.most * (tiles.rows() + 2) + 1;
        buffers_.push_back({"places of tiles",
                            {rows, spec_.hidden_size},
                            dtype_,
                            {learned + "embedding", learned + "tile_embedding.weight", root + "class_embedding",
                             root + "pre_tile_positional_embedding.embedding.weight",
                             root + "post_tile_positional_embedding.embedding.weight"},
                            &weights.places_NC});
        norm(weights.norm_pre, root + "layernorm_pre");
        norm(weights.norm_post, root + "layernorm_post");
        weights.blocks.resize(static_cast<std::size_t>(spec_.depth));
        for (std::size_t i = 0; i < weights.blocks.size(); ++i)
            tile_block(cat(root, "transformer.layers.", i, "."), weights.blocks[i]);
        weights.global_blocks.resize(static_cast<std::size_t>(tiles.global_depth));
        for (std::size_t i = 0; i < weights.global_blocks.size(); ++i) {
            const std::string name = cat(root, "global_transformer.layers.", i, ".");
            const std::size_t first = buffers_.size(), first_linear = linears_.size();
            tile_block(name, weights.global_blocks[i]);
            const VisionBlock& block = weights.global_blocks[i];
            for (std::size_t b = first; b < buffers_.size(); ++b) {
                const at::Tensor* const to = buffers_[b].to;
                if (to == &block.proj.weight_NK) buffers_[b].gate = name + "gate_attn";
                if (to == &block.out.weight_NK || to == &block.out.bias_N) buffers_[b].gate = name + "gate_ffn";
            }
            for (std::size_t l = first_linear; l < linears_.size(); ++l) {
                if (linears_[l].to == &block.proj) linears_[l].gate = name + "gate_attn";
                if (linears_[l].to == &block.out) linears_[l].gate = name + "gate_ffn";
            }
        }
        linear(weights.projector, {"multi_modal_projector"});
    }
    void tile_block(const std::string& name, VisionBlock& to) {
        norm(to.norm1, name + "input_layernorm");
        const std::string attention = name + "self_attn.";
        unbiased(to.qkv, {attention + "q_proj", attention + "k_proj", attention + "v_proj"});
        unbiased(to.proj, {attention + "o_proj"});
        norm(to.norm2, name + "post_attention_layernorm");
        linear(to.in, {name + "mlp.fc1"});
        linear(to.out, {name + "mlp.fc2"});
    }
    void unbiased(VisionLinear& to, const std::vector<std::string>& modules) {
        std::vector<std::string> weights;
        for (const std::string& module : modules) weights.push_back(module + ".weight");
        add(to.weight_NK, std::move(weights), dtype_);
        linears_.push_back({&to, modules, spec_.hidden_size});
    }
    void merger(const std::string& name, VisionMerger& to) {
        norm(to.norm, name + (spec_.gated_mlp ? "ln_q" : "norm"));
        linear(to.in, {name + (spec_.gated_mlp ? "mlp.0" : "linear_fc1")});
        linear(to.out, {name + (spec_.gated_mlp ? "mlp.2" : "linear_fc2")});
    }

    const spec::VisionSpec& spec_;
    at::ScalarType dtype_;
    std::map<std::string, std::vector<int64_t>> shapes_;
    std::vector<VisionBuffer> buffers_;
    std::vector<Linear> linears_;
};

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
        resident.add("tower weights", a_copy(linear), r * aligned(linear.k) * each);
        resident.add("tower weights", b_copy(linear), linear.n * r * each);
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
    const VisionList list(spec, dtype, *this);
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

void VisionWeights::plan(const spec::VisionSpec& spec, at::ScalarType dtype, memory::Plan& resident) {
    VisionWeights weights;
    const VisionList list(spec, dtype, weights);
    for (const VisionBuffer& buffer : list.buffers())
        resident.add("tower weights", buffer.name,
                     c10::multiply_integers(buffer.shape) * static_cast<int64_t>(c10::elementSize(buffer.dtype)));
}

VisionWeights VisionWeights::load(const spec::VisionSpec& spec, at::ScalarType dtype,
                                  const std::vector<formats::TensorSource>& sources, const memory::Arena& arena) {
    std::map<std::string, const formats::TensorSource*> by_name;
    const std::vector<spec::VisionTensor> tensors = spec::vision_tensors(spec);
    UNSLOTH_CHECK(sources.size() == tensors.size(), sources.size(), " tensors of a tower of ", tensors.size());
    for (std::size_t i = 0; i < sources.size(); ++i) by_name.emplace(tensors[i].name, &sources[i]);
    const auto gate_of = [&](const std::string& name) {
        float value = 0;
        by_name.at(name)->read_f32(&value);
        return std::tanh(value);
    };
    VisionWeights weights;
    const VisionList list(spec, dtype, weights);
    for (const VisionBuffer& buffer : list.buffers()) {
        *buffer.to = arena.tensor(arena.plan().find(buffer.name), buffer.shape, buffer.dtype);
        if (buffer.rows_each > 0 || buffer.columns > 0) buffer.to->zero_();
        const int64_t columns = buffer.columns > 0 ? buffer.columns : buffer.shape.back();
        int64_t row = 0;
        for (const std::string& name : buffer.from) {
            const formats::TensorSource& source = *by_name.at(name);
            at::Tensor values = at::empty(source.rule.shape, at::kFloat);
            source.read_f32(values.mutable_data_ptr<float>());
            if (buffer.shape.size() == 2) values = values.view({-1, columns});
            if (!buffer.gate.empty()) values.mul_(gate_of(buffer.gate));
            at::Tensor rows = buffer.to->narrow(0, row, values.size(0));
            if (buffer.columns > 0) rows = rows.narrow(1, 0, columns);
            rows.copy_(values);
            row += buffer.rows_each > 0 ? buffer.rows_each : values.size(0);
            source.drop();
        }
    }
    for (const VisionList::Linear& linear : list.linears())
        if (!linear.gate.empty()) linear.to->gate = gate_of(linear.gate);
    weights.value_CB.copy_(values_of_bytes(spec));
    if (!spec.tiles) {
        fill_rotation(spec, weights);
        return weights;
    }
    weights.place_gate = gate_of("vision_model.gated_positional_embedding.gate");
    weights.before_gate = gate_of("vision_model.pre_tile_positional_embedding.gate");
    weights.behind_gate = gate_of("vision_model.post_tile_positional_embedding.gate");
    order_by_layers(spec, weights.projector.weight_NK);
    return weights;
}

}  // namespace unsloth::weights
