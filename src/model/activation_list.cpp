#include "model/activation_list.h"

#include <algorithm>
#include <optional>

#include "unsloth/model/decoder_layer.h"
#include "unsloth/ops/coded_rows.h"

namespace unsloth::model {
namespace {

/// Layers whose kept matrices are on the device at once when they live in host memory: one computes while the other
/// moves. The layer inputs have one more, because a layer writes the next one's.
constexpr int64_t slots = 2, input_slots = 3;

Name of_layer(const char* name, int64_t layer) {
    return {name, Name::Of::layer, layer};
}
Name in_slot(const char* name, int64_t layer, int64_t slots) {
    return {name, Name::Of::slot, layer % slots};
}

}  // namespace

std::vector<Buffer> ActivationList::buffers(const std::vector<Alike>& layers, ActivationTensors& to) {
    const spec::Stage& stage = layout_.stage;
    buffers_.reserve(64 + 16 * layers.size());
    for (std::size_t i = 0; i < layers.size(); ++i) {
        const int64_t layer = layers[i].layer;
        alike_ = layers[i].count;
        if (stage.has(layer))
            saved(layer, to.layers[i], to.moved[i]);
        else if (receives(layer))
            border(layer, to.layers[i].x_tD);
        if (sizes_.cache_tokens == 0 || spec_.crosses(layer)) continue;
        spec_.has_delta(layer) ? states(layer, to.layers[i].kept) : cache(layer, to.caches[i]);
    }
    if (stage.last())
        own({"layer inputs", "x out", {slice_, spec_.hidden_size}, dtype_, memory::forward | memory::head, Rows::slice},
            to.output_tD);
    scratch(to.scratch);
    to.objective.resize(sizes_.objective.buffers.size());
    if (stage.last()) head(to.head, to.objective);
    tokens(to.tokens, to.objective);
    if (sizes_.patches > 0) vision(spec_.vision.value(), to.vision);
    return std::move(buffers_);
}

std::vector<Alike> ActivationList::kinds_of_layers() const {
    struct Kind {
        spec::Keep keep;
        spec::Place at;
        bool here, border, experts, crosses, delta;
        bool operator==(const Kind&) const = default;
    };
    std::vector<std::pair<Kind, int64_t>> listed;  // and its turn, of slots
    std::vector<Alike> alike;
    std::optional<Kind> last;  // of layers in a row
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
        const spec::LayerPlan& plan = run_.layers.at(static_cast<std::size_t>(layer));
        const Kind kind{plan.keep,
                        plan.activations_at,
                        layout_.stage.has(layer),
                        receives(layer),
                        spec_.has_experts(layer),
                        spec_.crosses(layer),
                        spec_.has_delta(layer)};
        const bool turns = !sizes_.training || plan.activations_at == spec::Place::host;
        const std::pair turn(kind, turns ? layer % (slots * input_slots) : 0);
        const bool fresh = std::find(listed.begin(), listed.end(), turn) == listed.end();
        if (fresh) listed.push_back(turn);
        if (!fresh && last == kind) {
            ++alike.back().count;
        } else {
            alike.push_back({layer});
        }
        last = fresh ? std::nullopt : std::optional(kind);
    }
    return alike;
}

void ActivationList::own(Buffer buffer, at::Tensor& tensor) {
    buffer.own = true;
    add(std::move(buffer), tensor);
}

void ActivationList::add(Buffer buffer, at::Tensor& tensor) {
    // With others in flight, what they keep is there while the tower sees this one's images.
    if (sizes_.patches > 0 && buffer.own && run_.in_flight > 1) buffer.phases |= memory::tower;
    if (buffer.name.of == Name::Of::layer) {
        buffer.alike = alike_;
    } else {
        for (const std::size_t i : shared_)
            if (buffers_[i].name == buffer.name && buffers_[i].host == buffer.host)
                return buffers_[i].tensors.push_back(&tensor);
        shared_.push_back(buffers_.size());
    }
    buffers_.push_back(std::move(buffer));
    buffers_.back().tensors.push_back(&tensor);
}

/// Of a layer that crosses, in the place of qkv. Without images it is passed by, and has none.
template <class Statistic, class Matrix>
void ActivationList::cross(int64_t layer, LayerSaved& a, const Statistic& statistic, const Matrix& matrix, bool kept) {
    const int64_t rows = sizes_.image_rows(spec_), t = sizes_.tokens, kv = spec_.kv_size();
    if (rows == 0) return;
    statistic("u_cross_q", {t, layout_[Group::cross_q].r}, dtype_, kept, a.u_qkv_TR, Rows::tokens);
    matrix("q_raw", spec_.q_size(), kept, a.qk_raw_TN);
    statistic("rstd_q", {t, spec_.num_heads}, at::kFloat, kept, a.rstd_q_TH, Rows::tokens);
    matrix("q", spec_.q_size(), kept, a.qkv_TN);
    if (sizes_.cache_tokens > 0)  // made once, and read by all passes of an answer
        own({"kv cache", of_layer("image keys", layer), {rows, 2 * kv}, dtype_, memory::always}, a.cross.kv_SN);
    else
        statistic("image keys", {rows, 2 * kv}, dtype_, kept, a.cross.kv_SN, Rows::fixed);
    statistic("image keys before their norm", {rows, kv}, dtype_, kept, a.cross.k_raw_SN, Rows::fixed);
    statistic("rstd_k of images", {rows, spec_.num_kv_heads}, at::kFloat, kept, a.cross.rstd_k_SK, Rows::fixed);
}

/// Of a layer with experts, in the place of its MLP.
template <class Statistic, class Matrix>
void ActivationList::experts(LayerSaved& a, const Statistic& statistic, const Matrix& matrix, spec::Keep keeps) {
    const int64_t t = sizes_.tokens;
    const bool rest = keeps == spec::Keep::everything || keeps == spec::Keep::but_mlp;
    const spec::ExpertsSpec& experts = *spec_.experts;
    const int64_t k = experts.top_k;
    ExpertsSaved& e = a.experts;
    // A recompute makes no choice again.
    statistic("experts of tokens", {t, k}, at::kInt, true, e.ids_Tk);
    statistic("their weights", {t, k}, at::kFloat, true, e.weights_Tk);
    statistic("tokens of experts", {t, k}, at::kInt, true, e.tokens_Tk);
    statistic("places of choices", {t, k}, at::kInt, true, e.places_Tk);
    statistic("ends of experts", {experts.count}, at::kInt, true, e.ends_E, Rows::fixed);
    statistic("router", {t, experts.count}, at::kFloat, needs_probabilities(experts, sizes_.balances_experts),
              e.router_TE);
    statistic("experts' u_gate_up", {t, k * layout_[Group::experts_gate_up].r}, dtype_, rest, e.u_gate_up_T);
    matrix("experts' gate_up", k * 2 * experts.intermediate_size, keeps == spec::Keep::everything, e.gate_up_T);
    statistic("experts' u_down", {t, k * layout_[Group::experts_down].r}, dtype_, true, e.u_down_T);
}

/// Of norms after attention and the MLP, and of DoRA.
template <class Statistic, class Matrix>
void ActivationList::branches(int64_t layer, LayerSaved& a, const Statistic& statistic, const Matrix& matrix,
                              bool rest) {
    const int64_t d = spec_.hidden_size;
    if (spec_.norms_after()) {
        matrix("branch_o", d, rest, a.branch_o_tD, Rows::slice);
        statistic("rstd_o", {slice_}, at::kFloat, rest, a.rstd_o_t, Rows::slice);
        matrix("branch_down", d, true, a.branch_down_tD, Rows::slice);  // as u_down
        statistic("rstd_down", {slice_}, at::kFloat, true, a.rstd_down_t, Rows::slice);
    }
    if (!layout_.dora) return;
    if (!spec_.crosses(layer))
        matrix(spec_.has_delta(layer) ? "z_delta_in" : "z_qkv", layout_[layout_.in_of(layer)].n, rest, a.z_qkv_TN);
    matrix("z_o", d, rest, a.z_o_tD, Rows::slice);
    matrix("z_down", d, true, a.z_down_tD, Rows::slice);
}

/// Of attention, or of what a layer has in its place.
template <class Statistic, class Matrix>
void ActivationList::mixer(int64_t i, LayerSaved& a, const Statistic& statistic, const Matrix& matrix,
                           spec::Keep keeps) {
    const int64_t t = sizes_.tokens;
    const bool attention = keeps != spec::Keep::input,
               rest = keeps == spec::Keep::everything || keeps == spec::Keep::but_mlp;
    const bool crosses = spec_.crosses(i), delta = spec_.has_delta(i), attends = !crosses && !delta;
    if (crosses)
        cross(i, a, statistic, matrix, rest);
    else
        statistic(delta ? "u_delta_in" : "u_qkv", {t, layout_[layout_.in_of(i)].r}, dtype_, rest, a.u_qkv_TR);
    if (spec_.qk_norm && attends) {
        matrix("qk_raw", spec_.q_size() + spec_.kv_size(), rest, a.qk_raw_TN);
        const bool all = spec_.qk_norm_of_all_heads;
        statistic("rstd_q", {t, all ? 1 : spec_.num_heads}, at::kFloat, rest, a.rstd_q_TH);
        statistic("rstd_k", {t, all ? 1 : spec_.num_kv_heads}, at::kFloat, rest, a.rstd_k_TK);
    }
    if (!crosses) matrix(delta ? "delta_in" : "qkv", layout_[layout_.in_of(i)].n, rest, a.qkv_TN);
    if (!delta) statistic("lse", {lse_elements_}, at::kFloat, attention, a.lse, Rows::fixed);
    if (delta || (attends && spec_.attention_output_gate))
        matrix(delta ? "ungated delta" : "ungated o", spec_.mixed_size(i), attention, a.ungated_TN);
    if (delta && sizes_.sequences > 0) {  // a recomputation reads them, too: they are not passed again
        const spec::DeltaSpec& net = *spec_.delta;
        const int64_t chunks = sizes_.chunks();
        statistic("inputs before chunks", {chunks, net.taps - 1, net.channels()}, dtype_, true, a.chunks.inputs_NwC,
                  Rows::fixed);
        statistic("states before chunks", {chunks, net.value_heads, net.key_dim, net.value_dim}, at::kFloat, true,
                  a.chunks.states_NHkv, Rows::fixed);
    }
    const weights::MatrixGroup& out = layout_[layout_.out_of(i)];
    matrix(delta ? "delta_out" : "o", weights::row_stride(out.k + out.r), attention, a.o_full);
}

void ActivationList::saved(int64_t i, LayerSaved& a, MovedLayer& moved) {
    const int64_t t = sizes_.tokens, d = spec_.hidden_size;
    const spec::LayerPlan& plan = run_.layers.at(static_cast<std::size_t>(i));
    const spec::Keep keeps = plan.keep;
    const bool rest = keeps == spec::Keep::everything || keeps == spec::Keep::but_mlp;
    constexpr uint8_t passes = memory::forward | memory::backward, through_head = passes | memory::head;
    // Its own when the layer keeps it, else one for all layers and micro-batches, dead while the head runs.
    const auto statistic = [&](const char* name, c10::SmallVector<int64_t, 2> sizes, at::ScalarType dtype, bool kept,
                               at::Tensor& tensor, Rows rows = Rows::tokens) {
        if (sizes_.training && kept) {
            own({"kept of layers", of_layer(name, i), std::move(sizes), dtype, through_head, rows}, tensor);
        } else {
            add({"live layer", name, std::move(sizes), dtype, passes, rows}, tensor);
        }
    };
    // One of a few slots on the device, with a place in host memory.
    const auto moves = [&](const char* name, c10::SmallVector<int64_t, 2> sizes, at::ScalarType dtype,
                           int64_t slot_count, at::Tensor& tensor, Rows rows) {
        MovedTensor& pair = moved.tensors.emplace_back();
        const Buffer slot{"offloaded layers' slots", in_slot(name, i, slot_count), sizes, dtype, through_head, rows};
        own(slot, tensor);
        own(slot, pair.device);
        own({"offloaded", of_layer(name, i), std::move(sizes), dtype, memory::always, rows, /*host=*/true}, pair.host);
    };
    const auto matrix = [&](const char* name, int64_t columns, bool kept, at::Tensor& tensor, Rows rows = Rows::tokens,
                            int64_t passing = 0) {
        const int64_t all = rows == Rows::slice ? slice_ : t;
        const bool keeps_it = sizes_.training && kept;
        if (keeps_it && plan.activations_at == spec::Place::host)
            return moves(name, {all, columns}, dtype_, slots, tensor, rows);
        // What passes by may have fewer rows.
        statistic(name, {keeps_it || passing == 0 ? all : passing, columns}, dtype_, kept, tensor, rows);
    };
    const bool host = plan.activations_at == spec::Place::host;
    if (sizes_.training && host && run_.inputs_in_fp8) {  // the codes are moved; x is free when they are made
        own({"offloaded layers' slots", in_slot("x", i, slots), {slice_, d}, dtype_, through_head, Rows::slice},
            a.x_tD);
        moves("x codes", {slice_, d}, at::kFloat8_e4m3fn, slots, moved.input.codes, Rows::slice);
        moves("x scales", {slice_}, at::kFloat, slots, moved.input.scales, Rows::slice);
    } else if (sizes_.training && host) {
        moves("x", {slice_, d}, dtype_, input_slots, a.x_tD, Rows::slice);
    } else if (sizes_.training) {
        matrix("x", d, true, a.x_tD, Rows::slice);
    } else {  // without a backward pass two buffers take turns
        add({"layer inputs", in_slot("x", i, 2), {slice_, d}, dtype_, memory::always, Rows::slice}, a.x_tD);
    }
    statistic("rstd1", {slice_}, at::kFloat, rest, a.rstd1_t, Rows::slice);
    mixer(i, a, statistic, matrix, keeps);
    matrix("mid", d, rest, a.mid_tD, Rows::slice);
    statistic("rstd2", {slice_}, at::kFloat, rest, a.rstd2_t, Rows::slice);
    if (spec_.has_experts(i)) {
        experts(a, statistic, matrix, keeps);
    } else {
        statistic("u_gate_up", {t, layout_[Group::gate_up].r}, dtype_, rest, a.u_gate_up_TR);
        matrix("gate_up", weights::row_stride(2 * spec_.intermediate_size + layout_[Group::gate_up].r),
               keeps == spec::Keep::everything, a.gate_up_full, Rows::tokens, tile());
        statistic("u_down", {t, layout_[Group::down].r}, dtype_, true,
                  a.u_down_TR);  // so that a recompute ends before the activation
    }
    branches(i, a, statistic, matrix, rest);
}

void ActivationList::scratch(Scratch& s) {
    const int64_t t = sizes_.tokens, widest = std::max(spec_.hidden_size, spec_.widest_mixed());
    const uint8_t layers = memory::forward | memory::backward;
    const int64_t tile = this->tile();
    const auto buffer = [&](const char* name, int64_t rows, int64_t columns, uint8_t phases, Rows are = Rows::tokens) {
        return Buffer{"scratch", name, {rows, weights::row_stride(columns)}, dtype_, phases, are};
    };
    const int64_t in_rank = std::max(layout_.rank_of(Group::qkv), layout_.rank_of(Group::delta_in));
    add(buffer("h", t, widest + std::max(in_rank, layout_.rank_of(Group::gate_up)), layers), s.h_full);
    const int64_t experts_act = spec_.experts
                                    ? spec_.experts->top_k * expert_stride(spec_.experts->intermediate_size,
                                                                           layout_.rank_of(Group::experts_down))
                                    : 0;
    add(buffer("act", tile, std::max(mlp_columns(), experts_act), layers), s.act_full);
    if (spec_.experts) experts_scratch(*spec_.experts, s);
    if (spec_.delta) delta_scratch(*spec_.delta, s);
    if (sizes_.dropout)
        add({"scratch",
             "dropped",
             {std::max({t * widest, tile * spec_.intermediate_size, sizes_.image_rows(spec_) * spec_.hidden_size})},
             dtype_,
             layers},
            s.dropped);
    if (const int64_t rows = sizes_.image_rows(spec_); rows > 0) {
        add({"scratch", "gates of attention", {t}, at::kFloat, layers, Rows::tokens}, s.attention_gate_T);
        add({"scratch", "gates of MLPs", {t}, at::kFloat, layers, Rows::tokens}, s.mlp_gate_T);
        const int64_t columns = layout_[Group::cross_kv].n + layout_[Group::cross_kv].r;
        if (sizes_.training)
            add({"scratch", "gradients of image keys", {rows, weights::row_stride(columns)}, dtype_, memory::backward},
                s.dkv_full);
    }
    if (forward_coded(sizes_.coded) || (dx_coded(sizes_.coded) && sizes_.training)) {
        const bool inputs = forward_coded(sizes_.coded), gradients = sizes_.training;
        const int64_t columns = std::max(inputs ? widest : 0, gradients ? most_columns(false) : 0),
                      columns_of_tile = std::max(spec_.hidden_size, (gradients ? 2 : 1) * spec_.intermediate_size);
        const uint8_t phases = inputs ? layers : uint8_t{memory::backward};
        const spec::Codes codes = dx_codes(sizes_.coded);
        add({"scratch", "codes", {std::max(t * columns, tile * columns_of_tile)}, at::kByte, phases}, s.codes.codes);
        add({"scratch",
             "scales of codes",
             {std::max(ops::scales_of(codes, t, columns), ops::scales_of(codes, tile, columns_of_tile))},
             at::kFloat,
             phases},
            s.codes.scales);
    }
    const c10::SmallVector<int64_t, 2> keys{sizes_.keys, 2 * spec_.kv_size()};
    const char* const group = sizes_.all_keys > 0 ? "keys and values of all ranks" : "scratch";
    if (sizes_.all_keys > 0)
        add({group, "gathered keys", {sizes_.all_keys * 2 * spec_.kv_size()}, dtype_, layers}, s.all_keys);
    if (sizes_.keys > 0) add({group, "keys of segments", keys, dtype_, layers}, s.keys_KN);
    if (!sizes_.training) return;
    if (sizes_.keys > 0) add({group, "their gradients", keys, dtype_, memory::backward}, s.dkeys_KN);
    const int64_t rank =
        std::max({layout_.rank_of(Group::o), layout_.rank_of(Group::delta_out), layout_.rank_of(Group::down)});
    // Between the passes of a rank's chunks others go forward.
    const uint8_t gradient = memory::head | memory::backward | (layout_.stage.alone() ? 0 : memory::forward);
    const bool elsewhere = layout_.dora || !layout_.tp.alone() || spec_.changes_branches();
    own(buffer("g", slice_, spec_.hidden_size + (elsewhere ? 0 : rank), gradient, Rows::slice), s.g_full);
    if (elsewhere || sizes_.image_rows(spec_) > 0)
        add(buffer("dz", tile, spec_.hidden_size + rank, memory::backward), s.dz_full);
    add(buffer("dqkv", t, most_columns(true), memory::backward), s.dqkv_full);
}

void ActivationList::of_objective(ObjectiveBuffer::Life life, std::vector<at::Tensor>& tensors) {
    using Per = ObjectiveBuffer::Per;
    const std::vector<ObjectiveBuffer>& buffers = sizes_.objective.buffers;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
        const ObjectiveBuffer& b = buffers[i];
        if (b.life != life) continue;
        const int64_t count = b.per == Per::target    ? sizes_.head_rows
                              : b.per == Per::segment ? sizes_.segments
                                                      : sizes_.segments / 2;
        const c10::SmallVector<int64_t, 2> sizes{b.times * count + b.more};
        if (life == ObjectiveBuffer::Life::head)
            add({"lm_head", b.name, sizes, b.dtype, memory::head}, tensors[i]);
        else
            own({"tokens", b.name, sizes, b.dtype}, tensors[i]);
    }
}

void ActivationList::head(HeadBuffers& h, std::vector<at::Tensor>& objective) {
    const int64_t n = sizes_.head_rows, d = spec_.hidden_size;
    const uint8_t phase = memory::head;
    if (!layout_.tp.alone()) add({"lm_head", "all of x out", {sizes_.tokens, d}, dtype_, phase, Rows::tokens}, h.x_TD);
    add({"lm_head", "head x", {n, d}, dtype_, phase}, h.x_nD);
    add({"lm_head", "head h", {n, d}, dtype_, phase}, h.h_nD);
    if (sizes_.training) add({"lm_head", "head dx", {n, d}, dtype_, phase}, h.dx_nD);
    add({"lm_head", "head rstd", {n}, at::kFloat, phase}, h.rstd_n);
    add({"lm_head", "head losses", {n}, at::kFloat, phase}, h.loss_n);
    if (sizes_.objective.weighs) add({"lm_head", "head weights", {n}, at::kFloat, phase}, h.weight_n);
    of_objective(ObjectiveBuffer::Life::head, objective);
    const bool codes_of_h = forward_coded(sizes_.head_coded),
               codes_of_logits = head_dx_codes(sizes_.head_coded) != spec::Codes::none;
    if (sizes_.expands_head && !(codes_of_h && codes_of_logits))
        add({"lm_head", "dequantized lm_head", {spec_.vocab_size, d}, dtype_, phase}, h.lm_head_VD);
    const int64_t columns = spec::vocabulary_slice(spec_.vocab_size, layout_.tp).size;
    const at::ScalarType logits = sizes_.objective.fp32_logits ? at::kFloat : dtype_;
    add({"lm_head", "logits", {run_.head_tile, columns}, logits, phase}, h.logits_CV);
    if (sizes_.training && logits != dtype_)
        add({"lm_head", "logits' gradient", {run_.head_tile, columns}, dtype_, phase}, h.dlogits_CV);
    if (any(sizes_.head_coded)) {
        add({"lm_head",
             "head codes",
             {run_.head_tile * std::max(codes_of_logits ? columns : 0, codes_of_h ? d : 0)},
             at::kByte,
             phase},
            h.codes.codes);
        add({"lm_head",
             "head scales",
             {ops::scales_of(forward_codes(sizes_.head_coded), run_.head_tile, d)},
             at::kFloat,
             phase},
            h.codes.scales);
    }
    if (!layout_.tp.alone())
        add({"lm_head", "statistics of logits", {layout_.tp.size * 3 * run_.head_tile}, at::kFloat, phase},
            h.statistics);
}

/// With gated delta nets a page more, of rows that fill a pass (generate::pad).
void ActivationList::cache(int64_t layer, ops::KvCache& of) {
    const int64_t pages = ops::pages_of(sizes_.cache_tokens) + (spec_.delta ? 1 : 0);
    const at::ScalarType type = sizes_.cache_in_8_bit ? at::kByte : dtype_;
    add({"kv cache", of_layer("cached k and v", layer), {pages * ops::page_tokens, 2 * spec_.kv_size()}, type},
        of.kv_C2N);
    if (sizes_.cache_in_8_bit)
        add({"kv cache", of_layer("their scales", layer), {pages, 2 * spec_.num_kv_heads, ops::page_tokens}, at::kByte},
            of.exponents_PHS);
}

void ActivationList::border(int64_t i, at::Tensor& x_tD) {
    constexpr uint8_t passes = memory::forward | memory::backward | memory::head;
    own({"layer inputs", of_layer("x", i), {slice_, spec_.hidden_size}, dtype_, passes, Rows::slice}, x_tD);
}

}  // namespace unsloth::model
