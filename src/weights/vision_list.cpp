#include "weights/vision_list.h"

#include <algorithm>

#include "unsloth/core/error.h"

namespace unsloth::weights {

VisionList::VisionList(const spec::VisionSpec& spec, at::ScalarType dtype, const Sources& sources,
                       VisionWeights& weights)
    : spec_(spec), dtype_(dtype) {
    const std::vector<spec::VisionTensor> tensors = spec::vision_tensors(spec);
    UNSLOTH_CHECK(sources.empty() || sources.size() == tensors.size(), sources.size(), " tensors of a tower of ",
                  tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        shapes_.emplace(tensors[i].name, tensors[i].shape);
        if (!sources.empty()) sources_.emplace(tensors[i].name, &sources[i]);
    }
    buffers_.push_back({"values of bytes", {spec::VisionSpec::channels, 256}, at::kFloat, {}, &weights.value_CB});
    if (spec.tiles)
        tiles(*spec.tiles, weights);
    else
        patches(weights);
    if (!sources.empty()) keep_in_4bit(&weights.projector);
}

/// Where all of its rows are. The projector's columns have another order here than its blocks have.
void VisionList::keep_in_4bit(const VisionLinear* but) {
    const auto in_4bit = [&](const std::string& name) { return source(name).quant4() != nullptr; };
    for (const Linear& linear : linears_) {
        const auto weight = std::ranges::find(buffers_, &linear.to->weight_NK, &VisionBuffer::to);
        if (linear.to != but && std::ranges::all_of(weight->from, in_4bit)) weight->in_4bit = linear.to;
    }
}

int64_t VisionList::expanded_bytes() const {
    int64_t most = 0;
    for (const VisionBuffer& buffer : buffers_)
        if (buffer.in_4bit != nullptr) most = std::max(most, buffer.bytes());
    return most;
}

void VisionList::patches(VisionWeights& weights) {
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

void VisionList::add(at::Tensor& to, std::vector<std::string> from, at::ScalarType dtype) {
    std::vector<int64_t> shape = shapes_.at(from.front());
    for (std::size_t i = 1; i < from.size(); ++i) shape[0] += shapes_.at(from[i])[0];
    for (; shape.size() > 2; shape.pop_back()) shape[shape.size() - 2] *= shape.back();
    buffers_.push_back({(spec_.tiles ? "" : "visual.") + from.front(), std::move(shape), dtype, std::move(from), &to});
}

void VisionList::linear(VisionLinear& to, const std::vector<std::string>& modules) {
    std::vector<std::string> weights, biases;
    for (const std::string& module : modules) {
        weights.push_back(module + ".weight");
        biases.push_back(module + ".bias");
    }
    add(to.weight_NK, std::move(weights), dtype_);
    add(to.bias_N, std::move(biases), dtype_);
    linears_.push_back({&to, modules, modules.size() > 1 ? spec_.inner_size() : 0});
}

void VisionList::norm(VisionNorm& to, const std::string& module) {
    add(to.weight, {module + ".weight"}, at::kFloat);
    if (!spec_.rms_norm) add(to.bias, {module + ".bias"}, at::kFloat);
}

void VisionList::block(const std::string& name, VisionBlock& to) {
    norm(to.norm1, name + "norm1");
    linear(to.qkv, {name + "attn.qkv"});
    linear(to.proj, {name + "attn.proj"});
    norm(to.norm2, name + "norm2");
    if (spec_.gated_mlp) return gated_mlp(name, to);
    linear(to.in, {name + "mlp.linear_fc1"});
    linear(to.out, {name + "mlp.linear_fc2"});
}

/// Inner values that are not there are zeros: gate, up and down have VisionSpec::inner_size() of them.
void VisionList::gated_mlp(const std::string& name, VisionBlock& to) {
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

void VisionList::tiles(const spec::TilesSpec& tiles, VisionWeights& weights) {
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

void VisionList::tile_block(const std::string& name, VisionBlock& to) {
    norm(to.norm1, name + "input_layernorm");
    const std::string attention = name + "self_attn.";
    unbiased(to.qkv, {attention + "q_proj", attention + "k_proj", attention + "v_proj"});
    unbiased(to.proj, {attention + "o_proj"});
    norm(to.norm2, name + "post_attention_layernorm");
    linear(to.in, {name + "mlp.fc1"});
    linear(to.out, {name + "mlp.fc2"});
}

void VisionList::unbiased(VisionLinear& to, const std::vector<std::string>& modules) {
    std::vector<std::string> weights;
    for (const std::string& module : modules) weights.push_back(module + ".weight");
    add(to.weight_NK, std::move(weights), dtype_);
    linears_.push_back({&to, modules, spec_.hidden_size});
}

void VisionList::merger(const std::string& name, VisionMerger& to) {
    norm(to.norm, name + (spec_.gated_mlp ? "ln_q" : "norm"));
    linear(to.in, {name + (spec_.gated_mlp ? "mlp.0" : "linear_fc1")});
    linear(to.out, {name + (spec_.gated_mlp ? "mlp.2" : "linear_fc2")});
}

}  // namespace unsloth::weights
