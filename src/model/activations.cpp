#include "unsloth/model/activations.h"

#include <algorithm>
#include <set>

#include "unsloth/core/error.h"
#include "unsloth/model/decoder_layer.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/norm.h"

namespace unsloth::model {
namespace {

/// One buffer: how it is planned and where its tensor goes. The plan and the constructor walk the same list.
struct Spec {
    std::string group, name;
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
    uint8_t phases;
    at::Tensor* target;  ///< null while planning
};

struct Owner {
    std::vector<LayerSaved>& layers;
    at::Tensor& output;
    Scratch& scratch;
    HeadBuffers& head;
    TokenBuffers& tokens;
};

class Lister {
  public:
    Lister(const ModelSpec& spec, const LayerLayout& layout, const ActivationSizes& sizes, at::ScalarType dtype)
        : spec_(spec), layout_(layout), sizes_(sizes), dtype_(dtype) {}

    std::vector<Spec> list(Owner owner) {
        residual_stream(owner);
        const bool shared = !keeps_everything();
        for (int64_t i = 0; i < spec_.num_layers; ++i)
            if (i == 0 || !shared) saved(owner.layers[static_cast<std::size_t>(i)], shared ? "" : cat(" ", i));
        scratch(owner.scratch);
        head(owner.head);
        tokens(owner.tokens);
        return std::move(specs_);
    }

    bool keeps_everything() const { return sizes_.training && sizes_.keep == Keep::everything; }

  private:
    void add(std::string group, std::string name, std::vector<int64_t> shape, at::ScalarType dtype, uint8_t phases,
             at::Tensor& target) {
        specs_.push_back({std::move(group), std::move(name), std::move(shape), dtype, phases, &target});
    }

    /// Training keeps each layer's input; without a backward pass two buffers take turns.
    void residual_stream(Owner& owner) {
        const std::vector<int64_t> shape{sizes_.tokens, spec_.hidden_size};
        const auto count = sizes_.training ? spec_.num_layers : std::min<int64_t>(spec_.num_layers, 2);
        for (int64_t i = 0; i < count; ++i)
            add("layer inputs", cat("x ", i), shape, dtype_, memory::always, owner.layers[static_cast<std::size_t>(i)].x_TD);
        add("layer inputs", "x out", shape, dtype_, memory::forward | memory::head, owner.output);
    }

    void saved(LayerSaved& a, const std::string& suffix) {
        const char* group = suffix.empty() ? "live layer" : "layer activations";
        // A recomputed layer's buffers are dead while the head runs.
        const uint8_t phases = suffix.empty() ? memory::forward | memory::backward : memory::forward | memory::head | memory::backward;
        const int64_t t = sizes_.tokens, d = spec_.hidden_size, heads = spec_.num_heads, kv_heads = spec_.num_kv_heads;
        const auto activation = [&](const char* name, int64_t columns, at::Tensor& target) {
            add(group, name + suffix, {t, columns}, dtype_, phases, target);
        };
        const auto statistic = [&](const char* name, std::vector<int64_t> shape, at::Tensor& target) {
            add(group, name + suffix, std::move(shape), at::kFloat, phases, target);
        };
        statistic("rstd1", {t}, a.rstd1_T);
        activation("u_qkv", layout_[Group::qkv].r, a.u_qkv_TR);
        if (spec_.qk_norm) {
            activation("qk_raw", spec_.q_size() + spec_.kv_size(), a.qk_raw_TN);
            statistic("rstd_q", {t, heads}, a.rstd_q_TH);
            statistic("rstd_k", {t, kv_heads}, a.rstd_k_TK);
        }
        activation("qkv", layout_[Group::qkv].n, a.qkv_TN);
        add(group, "lse" + suffix, {lse_elements_}, at::kFloat, phases, a.lse);
        activation("o", spec_.q_size() + layout_[Group::o].r, a.o_full);
        activation("mid", d, a.mid_TD);
        statistic("rstd2", {t}, a.rstd2_T);
        activation("u_gate_up", layout_[Group::gate_up].r, a.u_gate_up_TR);
        activation("gate_up", 2 * spec_.intermediate_size + layout_[Group::gate_up].r, a.gate_up_full);
        activation("u_down", layout_[Group::down].r, a.u_down_TR);
    }

    void scratch(Scratch& s) {
        const int64_t t = sizes_.tokens, widest = std::max(spec_.hidden_size, spec_.q_size());
        const uint8_t layers = memory::forward | memory::backward;
        const auto add_scratch = [&](const char* name, int64_t columns, uint8_t phases, at::Tensor& target) {
            add("scratch", name, {t, columns}, dtype_, phases, target);
        };
        add_scratch("h", widest + std::max(layout_[Group::qkv].r, layout_[Group::gate_up].r), layers, s.h_full);
        add_scratch("act", spec_.intermediate_size + layout_[Group::down].r, layers, s.act_full);
        if (sizes_.dropout)
            add_scratch("dropped", std::max(widest, spec_.intermediate_size), layers, s.dropped);
        if (!sizes_.training) return;
        const int64_t rank = std::max(layout_[Group::o].r, layout_[Group::down].r);
        add_scratch("g", spec_.hidden_size + rank, memory::head | memory::backward, s.g_full);
        add_scratch("dqkv", layout_[Group::qkv].n + layout_[Group::qkv].r, memory::backward, s.dqkv_full);
    }

    void head(HeadBuffers& h) {
        const int64_t n = sizes_.head_rows, d = spec_.hidden_size;
        const uint8_t phase = memory::head;
        add("lm_head", "head x", {n, d}, dtype_, phase, h.x_nD);
        add("lm_head", "head h", {n, d}, dtype_, phase, h.h_nD);
        if (sizes_.training) add("lm_head", "head dx", {n, d}, dtype_, phase, h.dx_nD);
        add("lm_head", "head rstd", {n}, at::kFloat, phase, h.rstd_n);
        add("lm_head", "head losses", {n}, at::kFloat, phase, h.loss_n);
        add("lm_head", "logits", {sizes_.head_chunk, spec_.vocab_size}, dtype_, phase, h.logits_CV);
    }

    void tokens(TokenBuffers& b) {
        const int64_t t = sizes_.tokens;
        const auto add_ints = [&](const char* name, int64_t count, at::Tensor& target) {
            add("tokens", name, {count}, at::kInt, memory::always, target);
        };
        add_ints("ids", t, b.ids_T);
        add_ints("positions", t, b.positions_T);
        if (sizes_.dropout) {
            add_ints("rows", t, b.row_T);
            add_ints("offsets", t, b.offset_T);
        }
        add_ints("target index", sizes_.head_rows, b.target_index_n);
        add_ints("target ids", sizes_.head_rows, b.target_ids_n);
        if (sizes_.trains_embedding) {
            add_ints("token order", t, b.order_T);
            add_ints("distinct ids", t, b.unique_u);
            add_ints("run starts", t + 1, b.starts_u1);
        }
        add_ints("segment offsets", sizes_.segments + 1, b.q_offsets);
        add("tokens", "cos", {t, spec_.head_dim / 2}, at::kFloat, memory::always, b.cos_Tp);
        add("tokens", "sin", {t, spec_.head_dim / 2}, at::kFloat, memory::always, b.sin_Tp);
    }

    const ModelSpec& spec_;
    const LayerLayout& layout_;
    const ActivationSizes& sizes_;
    at::ScalarType dtype_;
    std::vector<Spec> specs_;

  public:
    int64_t lse_elements_ = 0;
};

/// The most that any layer's attention asks for (layers differ in their window at most).
template <class Ask>
int64_t over_windows(const ModelSpec& spec, const Ask& ask) {
    int64_t most = 0;
    std::set<int64_t> seen;
    for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
        const ops::AttentionShape shape = attention_shape(spec, layer);
        if (seen.insert(shape.window).second) most = std::max(most, ask(shape));
    }
    return most;
}

Lister make_lister(const ModelSpec& spec, const LayerLayout& layout, const ActivationSizes& sizes, at::ScalarType dtype,
                   at::Device device) {
    Lister lister(spec, layout, sizes, dtype);
    lister.lse_elements_ = over_windows(spec, [&](const ops::AttentionShape& shape) {
        return ops::attention_lse_elements(shape, dtype, device, sizes.deterministic, sizes.tokens, sizes.segments, sizes.longest);
    });
    return lister;
}

int64_t workspace_bytes(const ModelSpec& spec, const ActivationSizes& sizes, at::ScalarType dtype, at::Device device) {
    const int64_t attention = over_windows(spec, [&](const ops::AttentionShape& shape) {
        return ops::attention_workspace(shape, dtype, device, sizes.deterministic, sizes.tokens, sizes.segments, sizes.longest);
    });
    const int64_t norm = ops::norm_backward_workspace(device, std::max(sizes.tokens * spec.num_heads, sizes.head_rows),
                                                      std::max(spec.hidden_size, spec.head_dim));
    return std::max({attention, norm, ops::gemm_workspace(device)});
}

}  // namespace

void Activations::plan(const ModelSpec& spec, const LayerLayout& layout, const ActivationSizes& sizes, at::ScalarType dtype,
                       at::Device device, memory::Plan& plan) {
    std::vector<LayerSaved> layers(static_cast<std::size_t>(spec.num_layers));
    at::Tensor output;
    Scratch scratch;
    HeadBuffers head;
    TokenBuffers tokens;
    for (const Spec& buffer : make_lister(spec, layout, sizes, dtype, device).list({layers, output, scratch, head, tokens}))
        plan.add(buffer.group, buffer.name,
                 c10::multiply_integers(buffer.sizes) * static_cast<int64_t>(c10::elementSize(buffer.dtype)), buffer.phases);
    plan.add("workspace", "workspace", workspace_bytes(spec, sizes, dtype, device));
}

Activations::Activations(const ModelSpec& spec, const LayerLayout& layout, const ActivationSizes& sizes, at::ScalarType dtype,
                         const memory::Arena& arena)
    : sizes_(sizes), full_layers_(static_cast<std::size_t>(spec.num_layers)) {
    Lister lister = make_lister(spec, layout, sizes, dtype, arena.device());
    for (const Spec& buffer : lister.list({full_layers_, full_output_, full_scratch_, head_, tokens_}))
        *buffer.target = arena.tensor(arena.plan().find(buffer.name), buffer.sizes, buffer.dtype);
    workspace_ = arena.tensor(arena.plan().find("workspace"), {workspace_bytes(spec, sizes, dtype, arena.device())}, at::kByte);
    if (!lister.keeps_everything()) {
        for (std::size_t i = 1; i < full_layers_.size(); ++i) {
            const at::Tensor x = sizes.training ? full_layers_[i].x_TD : full_layers_[i % 2].x_TD;
            full_layers_[i] = full_layers_[0];
            full_layers_[i].x_TD = x;
        }
    }
    layers_ = full_layers_;
    scratch_ = full_scratch_;
    output_TD_ = full_output_;
}

void Activations::resize(int64_t tokens) {
    UNSLOTH_CHECK(tokens <= sizes_.tokens, tokens, " tokens planned for ", sizes_.tokens);
    if (tokens == current_tokens_) return;
    current_tokens_ = tokens;
    const auto cut = [&](const at::Tensor& full) { return full.defined() ? full.narrow(0, 0, tokens) : full; };
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        const LayerSaved& full = full_layers_[i];
        LayerSaved& a = layers_[i];
        for (const auto member : {&LayerSaved::x_TD, &LayerSaved::rstd1_T, &LayerSaved::u_qkv_TR, &LayerSaved::qk_raw_TN,
                                  &LayerSaved::rstd_q_TH, &LayerSaved::rstd_k_TK, &LayerSaved::qkv_TN, &LayerSaved::o_full,
                                  &LayerSaved::mid_TD, &LayerSaved::rstd2_T, &LayerSaved::u_gate_up_TR, &LayerSaved::gate_up_full,
                                  &LayerSaved::u_down_TR})
            a.*member = cut(full.*member);
    }
    for (const auto member : {&Scratch::h_full, &Scratch::act_full, &Scratch::g_full, &Scratch::dqkv_full, &Scratch::dropped})
        scratch_.*member = cut(full_scratch_.*member);
    output_TD_ = cut(full_output_);
}

}  // namespace unsloth::model
