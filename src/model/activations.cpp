#include "unsloth/model/activations.h"

#include <algorithm>

#include "model/activation_list.h"
#include "model/workspace.h"
#include "unsloth/core/error.h"
#include "unsloth/model/decoder_layer.h"

namespace unsloth::model {
namespace {

/// As many tokens as the ranks divide.
ActivationSizes padded(ActivationSizes sizes, const spec::TensorRank& tp) {
    sizes.tokens = (sizes.tokens + tp.size - 1) / tp.size * tp.size;
    return sizes;
}

ActivationList list_of(const spec::ModelSpec& spec, const weights::LayerLayout& layout, const ActivationSizes& sizes,
                       const spec::RunPlan& run, at::ScalarType dtype) {
    return {spec, layout, sizes, run, dtype, ops::attention_lse_elements(attention_shape(spec, 0), sizes.tokens)};
}

}  // namespace

void Activations::plan(const spec::ModelSpec& spec, const weights::LayerLayout& layout, const ActivationSizes& asked,
                       const spec::RunPlan& run, at::ScalarType dtype, at::Device device, memory::Plan& plan,
                       memory::Plan& host_plan) {
    const ActivationSizes sizes = padded(asked, layout.tp);
    ActivationList list = list_of(spec, layout, sizes, run, dtype);
    const std::vector<Alike> layers = plan.named() ? list.all_layers() : list.kinds_of_layers();
    ActivationTensors tensors(static_cast<int64_t>(layers.size()));
    const std::vector<Buffer> buffers = list.buffers(layers, tensors);
    for (int64_t micro = 0; micro < run.in_flight; ++micro)
        for (const Buffer& b : buffers) {
            memory::Plan& to = b.host ? host_plan : plan;
            if (micro > 0 && !b.own) continue;
            if (to.named()) {
                to.add(b.group, b.name_of(micro), b.bytes(), b.phases);
            } else {
                to.add_sizes(b.bytes(), b.phases, b.alike);
            }
        }
    plan.add("workspace", "workspace", workspace_bytes(spec, layout, sizes, run, dtype, device));
}

Activations::Activations(const spec::ModelSpec& spec, const weights::LayerLayout& layout, const ActivationSizes& sizes,
                         const spec::RunPlan& run, at::ScalarType dtype, const memory::Arena& arena,
                         const memory::Arena* host, int64_t micro)
    : sizes_(padded(sizes, layout.tp)), run_(run), tensors_(spec.num_layers) {
    ActivationList list = list_of(spec, layout, sizes_, run, dtype);
    for (const Buffer& b : list.buffers(list.all_layers(), tensors_)) {
        const memory::Arena& from = b.host ? *host : arena;
        const at::Tensor whole = from.tensor(from.plan().find(b.name_of(micro)), b.sizes, b.dtype);
        for (at::Tensor* tensor : b.tensors) {
            *tensor = whole;
            if (b.rows != Rows::fixed) cuts_.push_back({tensor, whole, b.rows == Rows::slice ? layout.tp.size : 1});
        }
    }
    workspace_ = arena.tensor(arena.plan().find("workspace"),
                              {workspace_bytes(spec, layout, sizes_, run, dtype, arena.device())}, at::kByte);
}

void Activations::resize(int64_t tokens) {
    UNSLOTH_CHECK(tokens <= sizes_.tokens, tokens, " tokens planned for ", sizes_.tokens);
    if (tokens == current_tokens_) return;
    current_tokens_ = tokens;
    for (const Cut& cut : cuts_) *cut.tensor = cut.whole.narrow(0, 0, std::min(tokens / cut.ranks, cut.whole.size(0)));
}

}  // namespace unsloth::model
