#include "unsloth/model/activations.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "unsloth/core/error.h"
#include "unsloth/model/decoder_layer.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/norm.h"

namespace unsloth::model {
namespace {

/// Layers whose kept matrices are on the device at once when they live in host memory: one computes while the other
/// moves. The layer inputs have one more, because a layer writes the next one's.
constexpr int64_t slots = 2, input_slots = 3;

/// One buffer: how it is planned and where its tensor goes (layers may share it). The plan and the constructor walk the
/// same list.
struct Spec {
    std::string group, name;
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
    uint8_t phases;
    std::vector<at::Tensor*> targets;
    bool host = false;
};

struct Owner {
    std::vector<LayerSaved>&layers, &host_layers;
    at::Tensor& output;
    Scratch& scratch;
    HeadBuffers& head;
    TokenBuffers& tokens;
    std::vector<KvCache>& caches;
};

class Lister {
  public:
    Lister(const spec::ModelSpec& spec, const LayerLayout& layout, const ActivationSizes& sizes, at::ScalarType dtype)
        : spec_(spec), layout_(layout), sizes_(sizes), dtype_(dtype) {}

    std::vector<Spec> list(Owner owner) {
        for (int64_t i = 0; i < spec_.num_layers; ++i)
            saved(i, owner.layers[static_cast<std::size_t>(i)], owner.host_layers[static_cast<std::size_t>(i)]);
        add("layer inputs", "x out", {sizes_.tokens, spec_.hidden_size}, dtype_, memory::forward | memory::head,
            owner.output);
        scratch(owner.scratch);
        head(owner.head);
        tokens(owner.tokens);
        if (sizes_.cache_tokens > 0) caches(owner.caches);
        return std::move(specs_);
    }

  private:
    void add(std::string group, std::string name, std::vector<int64_t> shape, at::ScalarType dtype, uint8_t phases,
             at::Tensor& target, bool host = false) {
        const auto [at, fresh] = index_.try_emplace((host ? "host " : "") + name, specs_.size());
        if (fresh) {
            specs_.push_back({std::move(group), std::move(name), std::move(shape), dtype, phases, {&target}, host});
        } else {
            specs_[at->second].targets.push_back(&target);
        }
    }

    /// A matrix or statistic of layer i: its own when the layer keeps it, one for all otherwise; in slots, with a place
    /// in host memory, when it is offloaded.
    void keep(int64_t i, const std::string& name, std::vector<int64_t> shape, at::ScalarType dtype, bool kept,
              at::Tensor& target, at::Tensor* host, int64_t slot_count = slots) {
        constexpr uint8_t through_head = memory::forward | memory::head | memory::backward;
        if (!sizes_.training || !kept) {
            // A recomputed layer's buffers are dead while the head runs.
            add("live layer", name, std::move(shape), dtype, memory::forward | memory::backward, target);
        } else if (sizes_.checkpointing.offload && host != nullptr) {
            add("offloaded layers' slots", cat(name, " slot ", i % slot_count), shape, dtype, through_head, target);
            add("offloaded", cat(name, " ", i), std::move(shape), dtype, memory::always, *host, /*host=*/true);
        } else {
            add("kept of layers", cat(name, " ", i), std::move(shape), dtype, through_head, target);
        }
    }

    void saved(int64_t i, LayerSaved& a, LayerSaved& host) {
        const int64_t t = sizes_.tokens, d = spec_.hidden_size, heads = spec_.num_heads, kv_heads = spec_.num_kv_heads;
        const spec::Keep keeps = sizes_.checkpointing.keep;
        const bool attention = keeps != spec::Keep::input,
                   rest = keeps == spec::Keep::everything || keeps == spec::Keep::but_mlp;
        const auto matrix = [&](const char* name, int64_t columns, bool kept, at::Tensor LayerSaved::* member) {
            keep(i, name, {t, columns}, dtype_, kept, a.*member, &(host.*member));
        };
        const auto small = [&](const char* name, std::vector<int64_t> shape, at::ScalarType dtype, bool kept,
                               at::Tensor& target) { keep(i, name, std::move(shape), dtype, kept, target, nullptr); };
        if (sizes_.training) {
            keep(i, "x", {t, d}, dtype_, true, a.x_TD, &host.x_TD, input_slots);
        } else {  // without a backward pass two buffers take turns
            add("layer inputs", cat("x slot ", i % 2), {t, d}, dtype_, memory::always, a.x_TD);
        }
        small("rstd1", {t}, at::kFloat, rest, a.rstd1_T);
        small("u_qkv", {t, layout_[Group::qkv].r}, dtype_, rest, a.u_qkv_TR);
        if (spec_.qk_norm) {
            matrix("qk_raw", spec_.q_size() + spec_.kv_size(), rest, &LayerSaved::qk_raw_TN);
            small("rstd_q", {t, heads}, at::kFloat, rest, a.rstd_q_TH);
            small("rstd_k", {t, kv_heads}, at::kFloat, rest, a.rstd_k_TK);
        }
        matrix("qkv", layout_[Group::qkv].n, rest, &LayerSaved::qkv_TN);
        small("lse", {lse_elements_}, at::kFloat, attention, a.lse);
        matrix("o", row_stride(spec_.q_size() + layout_[Group::o].r), attention, &LayerSaved::o_full);
        matrix("mid", d, rest, &LayerSaved::mid_TD);
        small("rstd2", {t}, at::kFloat, rest, a.rstd2_T);
        small("u_gate_up", {t, layout_[Group::gate_up].r}, dtype_, rest, a.u_gate_up_TR);
        matrix("gate_up", row_stride(2 * spec_.intermediate_size + layout_[Group::gate_up].r),
               keeps == spec::Keep::everything, &LayerSaved::gate_up_full);
        small("u_down", {t, layout_[Group::down].r}, dtype_, true,
              a.u_down_TR);  // so that a recompute ends before the activation
    }

    void scratch(Scratch& s) {
        const int64_t t = sizes_.tokens, widest = std::max(spec_.hidden_size, spec_.q_size());
        const uint8_t layers = memory::forward | memory::backward;
        const auto add_scratch = [&](const char* name, int64_t columns, uint8_t phases, at::Tensor& target) {
            add("scratch", name, {t, row_stride(columns)}, dtype_, phases, target);
        };
        add_scratch("h", widest + std::max(layout_[Group::qkv].r, layout_[Group::gate_up].r), layers, s.h_full);
        add_scratch("act", spec_.intermediate_size + layout_[Group::down].r, layers, s.act_full);
        if (sizes_.dropout) add_scratch("dropped", std::max(widest, spec_.intermediate_size), layers, s.dropped);
        if (sizes_.fp8) {
            const int64_t columns = std::max({widest, sizes_.training ? layout_[Group::qkv].n : 0,
                                              (sizes_.training ? 2 : 1) * spec_.intermediate_size});
            add("scratch", "fp8 codes", {t, columns}, at::kFloat8_e4m3fn, layers, s.fp8.codes);
            add("scratch", "fp8 scales", {t}, at::kFloat, layers, s.fp8.scales);
        }
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
        add("tokens", "inverse frequencies", {spec_.head_dim / 2}, at::kFloat, memory::always, b.inv_freq_p);
        add("tokens", "cos", {t, spec_.head_dim / 2}, at::kFloat, memory::always, b.cos_Tp);
        add("tokens", "sin", {t, spec_.head_dim / 2}, at::kFloat, memory::always, b.sin_Tp);
    }

    void caches(std::vector<KvCache>& all) {
        for (std::size_t i = 0; i < all.size(); ++i) {
            const std::vector<int64_t> shape{sizes_.cache_tokens, spec_.kv_size()};
            add("kv cache", cat("cached k ", i), shape, dtype_, memory::always, all[i].k_SN);
            add("kv cache", cat("cached v ", i), shape, dtype_, memory::always, all[i].v_SN);
        }
    }

    const spec::ModelSpec& spec_;
    const LayerLayout& layout_;
    const ActivationSizes& sizes_;
    at::ScalarType dtype_;
    std::vector<Spec> specs_;
    std::unordered_map<std::string, std::size_t> index_;

  public:
    int64_t lse_elements_ = 0;
};

/// The most that any layer's attention asks for (layers differ in their window at most).
template <class Ask>
int64_t over_windows(const spec::ModelSpec& spec, const Ask& ask) {
    int64_t most = 0;
    std::set<int64_t> seen;
    for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
        const ops::AttentionShape shape = attention_shape(spec, layer);
        if (seen.insert(shape.window).second) most = std::max(most, ask(shape));
    }
    return most;
}

Lister make_lister(const spec::ModelSpec& spec, const LayerLayout& layout, const ActivationSizes& sizes,
                   at::ScalarType dtype, at::Device device) {
    Lister lister(spec, layout, sizes, dtype);
    lister.lse_elements_ = over_windows(spec, [&](const ops::AttentionShape& shape) {
        return ops::attention_lse_elements(shape, dtype, device, sizes.deterministic, sizes.tokens, sizes.segments,
                                           sizes.longest);
    });
    return lister;
}

/// Of the largest product: a group's with its adapters, or lm_head's.
int64_t products_workspace(const spec::ModelSpec& spec, const LayerLayout& layout, const ActivationSizes& sizes,
                           at::ScalarType dtype, at::Device device) {
    if (!device.is_cpu()) return ops::gemm_workspace(device);
    int64_t most = ops::gemm_cpu_workspace(dtype, sizes.head_chunk, spec.vocab_size, spec.hidden_size);
    for (const Group g : all_groups)
        most = std::max(
            most, ops::gemm_cpu_workspace(dtype, sizes.tokens, layout[g].n + layout[g].r, layout[g].k + layout[g].r));
    return most;
}

int64_t workspace_bytes(const spec::ModelSpec& spec, const LayerLayout& layout, const ActivationSizes& sizes,
                        at::ScalarType dtype, at::Device device) {
    const int64_t attention = over_windows(spec, [&](const ops::AttentionShape& shape) {
        return ops::attention_workspace(shape, dtype, device, sizes.deterministic, sizes.tokens, sizes.segments,
                                        sizes.longest);
    });
    const int64_t norm = ops::norm_backward_workspace(device, std::max(sizes.tokens * spec.num_heads, sizes.head_rows),
                                                      std::max(spec.hidden_size, spec.head_dim));
    return std::max({attention, norm, products_workspace(spec, layout, sizes, dtype, device)});
}

}  // namespace

void Activations::plan(const spec::ModelSpec& spec, const LayerLayout& layout, const ActivationSizes& sizes,
                       at::ScalarType dtype, at::Device device, memory::Plan& plan, memory::Plan& host_plan) {
    std::vector<LayerSaved> layers(static_cast<std::size_t>(spec.num_layers)), host_layers(layers.size());
    at::Tensor output;
    Scratch scratch;
    HeadBuffers head;
    TokenBuffers tokens;
    std::vector<KvCache> caches(layers.size());
    for (const Spec& buffer : make_lister(spec, layout, sizes, dtype, device)
                                  .list({layers, host_layers, output, scratch, head, tokens, caches}))
        (buffer.host ? host_plan : plan)
            .add(buffer.group, buffer.name,
                 c10::multiply_integers(buffer.sizes) * static_cast<int64_t>(c10::elementSize(buffer.dtype)),
                 buffer.phases);
    plan.add("workspace", "workspace", workspace_bytes(spec, layout, sizes, dtype, device));
}

Activations::Activations(const spec::ModelSpec& spec, const LayerLayout& layout, const ActivationSizes& sizes,
                         at::ScalarType dtype, const memory::Arena& arena, const memory::Arena* host)
    : sizes_(sizes),
      full_layers_(static_cast<std::size_t>(spec.num_layers)),
      host_layers_(full_layers_.size()),
      moved_(full_layers_.size()),
      caches_(full_layers_.size()) {
    Lister lister = make_lister(spec, layout, sizes, dtype, arena.device());
    for (const Spec& buffer :
         lister.list({full_layers_, host_layers_, full_output_, full_scratch_, head_, tokens_, caches_})) {
        const memory::Arena& from = buffer.host ? *host : arena;
        const at::Tensor tensor = from.tensor(from.plan().find(buffer.name), buffer.sizes, buffer.dtype);
        for (at::Tensor* target : buffer.targets) *target = tensor;
    }
    workspace_ = arena.tensor(arena.plan().find("workspace"),
                              {workspace_bytes(spec, layout, sizes, dtype, arena.device())}, at::kByte);
    layers_ = full_layers_;
    scratch_ = full_scratch_;  // of which fp8 is not cut: its shape changes from product to product
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
        for (const auto member : {&LayerSaved::x_TD, &LayerSaved::rstd1_T, &LayerSaved::u_qkv_TR,
                                  &LayerSaved::qk_raw_TN, &LayerSaved::rstd_q_TH, &LayerSaved::rstd_k_TK,
                                  &LayerSaved::qkv_TN, &LayerSaved::o_full, &LayerSaved::mid_TD, &LayerSaved::rstd2_T,
                                  &LayerSaved::u_gate_up_TR, &LayerSaved::gate_up_full, &LayerSaved::u_down_TR})
            a.*member = cut(full.*member);
        moved_[i].clear();
        for (const auto member : {&LayerSaved::x_TD, &LayerSaved::qk_raw_TN, &LayerSaved::qkv_TN, &LayerSaved::o_full,
                                  &LayerSaved::mid_TD, &LayerSaved::gate_up_full})
            if ((host_layers_[i].*member).defined()) moved_[i].push_back({a.*member, cut(host_layers_[i].*member)});
    }
    for (const auto member :
         {&Scratch::h_full, &Scratch::act_full, &Scratch::g_full, &Scratch::dqkv_full, &Scratch::dropped})
        scratch_.*member = cut(full_scratch_.*member);
    output_TD_ = cut(full_output_);
}

}  // namespace unsloth::model
