// What the host says of a micro-batch's tokens: ids, positions, segments and their RoPE tables.
#include <algorithm>

#include "model/activation_list.h"

namespace unsloth::model {

void ActivationList::tokens(TokenBuffers& b, std::vector<at::Tensor>& objective) {
    const int64_t t = sizes_.tokens;
    const auto ints = [&](const char* name, int64_t count, at::Tensor& tensor, Rows rows = Rows::fixed) {
        own({"tokens", name, {count}, at::kInt, memory::always, rows}, tensor);
    };
    ints("ids", t, b.ids_T, Rows::tokens);
    ints("positions", t, b.positions_T, Rows::tokens);
    if (sizes_.dropout || sizes_.noise) {
        ints("rows", t, b.row_T, Rows::tokens);
        ints("offsets", t, b.offset_T, Rows::tokens);
    }
    const auto by_axes = [](const spec::RopeSpec& rope) { return rope.by_axes(); };
    if (std::ranges::any_of(spec_.ropes, by_axes)) ints("positions on axes", 3 * t, b.axes);
    if (sizes_.image_rows(spec_) > 0) sight(b);
    if (sizes_.noise) own({"tokens", "noise", {t}, at::kFloat, memory::always, Rows::tokens}, b.noise_T);
    ints("target index", sizes_.head_rows, b.target_index_n);
    ints("target ids", sizes_.head_rows, b.target_ids_n);
    if (sizes_.training) ints("places of targets", sizes_.copies * t, b.target_places);
    if (sizes_.trains_embedding) {
        ints("token order", slice_, b.order_t, Rows::slice);
        ints("distinct ids", t, b.unique_u);
        ints("run starts", t + 1, b.starts_u1);
    }
    ints("segment offsets", sizes_.segments + 1, b.q_offsets);
    if (sizes_.keys > 0) {
        ints("key offsets", sizes_.segments + 1, b.k_offsets);
        ints("keys' tokens", sizes_.keys, b.key_tokens);
        if (sizes_.training) ints("places of keys", sizes_.copies * std::max(t, sizes_.all_keys), b.key_places);
    }
    if (spec_.delta && sizes_.sequences > 0) {
        const int64_t chunks = sizes_.chunks(), rows = chunks * (spec_.delta->taps - 1);
        ints("chunk offsets", chunks + 1, b.chunk_offsets);
        ints("sequences of chunks", chunks, b.chunk_sequences);
        ints("places of chunks", chunks, b.chunk_places);
        ints("ends of chunks", rows, b.chunk_ends);
        ints("rows before chunks", rows, b.rows_before);
        ints("places of ends", rows * (spec_.delta->taps - 1), b.places_of_ends);
    }
    if (sizes_.adapters > 0) ints("adapters of tokens", t, b.adapter_T, Rows::tokens);
    if (sizes_.cache_tokens > 0) {
        ints("cache slots", t, b.slots_T, Rows::tokens);
        ints("lengths of rows", sizes_.segments, b.lengths_S);
        if (spec_.delta) ints("places of states", sizes_.segments, b.states_S);
        ints("pages of rows", sizes_.segments * ops::pages_of(sizes_.longest_context()), b.pages);
    }
    of_objective(ObjectiveBuffer::Life::input, objective);
    b.ropes.resize(spec_.ropes.size());
    for (std::size_t i = 0; i < b.ropes.size(); ++i) {
        const auto of_rope = [&](const char* what, c10::SmallVector<int64_t, 2> sizes, Rows rows, at::Tensor& tensor) {
            const Name name(what, i == 0 ? Name::Of::all : Name::Of::rope, static_cast<int64_t>(i));
            own({"tokens", name, std::move(sizes), at::kFloat, memory::always, rows}, tensor);
        };
        const int64_t pairs = spec_.rotary_dim(spec_.ropes[i]) / 2;
        of_rope("inverse frequencies", {pairs}, Rows::fixed, b.ropes[i].inv_freq_p);
        if (spec_.ropes[i].by_axes()) ints("axes of frequencies", pairs, b.ropes[i].axis_p);
        of_rope("cos", {t, pairs}, Rows::tokens, b.ropes[i].cos_Tp);
        of_rope("sin", {t, pairs}, Rows::tokens, b.ropes[i].sin_Tp);
        if (spec_.ropes[i].query_beta == 0.0) continue;
        of_rope("queries' multipliers", {t}, Rows::tokens, b.ropes[i].query_T);
        of_rope("queries' cos", {t, pairs}, Rows::tokens, b.ropes[i].query_cos_Tp);
        of_rope("queries' sin", {t, pairs}, Rows::tokens, b.ropes[i].query_sin_Tp);
    }
}

}  // namespace unsloth::model
