#include "unsloth/spec/slice.h"

#include <algorithm>

#include "unsloth/core/error.h"

namespace unsloth::spec {
namespace {

// 16 bytes of bf16, which products read at a time; and random numbers are drawn by fours of channels.
constexpr int64_t alignment = 8;

[[noreturn]] void refuse(TensorRank tp, const std::string& what) {
    throw Error("parallel.model-does-not-divide", cat("distributed.tp_size ", tp.size, ": ", what),
                "Take a tp_size that divides the model's heads and its intermediate size.");
}

void require_divisible(TensorRank tp, const char* name, int64_t size, int64_t unit) {
    if (size % tp.size != 0) refuse(tp, cat("the model's ", name, " ", size, " is not divisible by it"));
    if (size / tp.size * unit % alignment != 0)
        refuse(tp, cat("a rank's share of the model's ", name, " ", size, " is ", size / tp.size * unit,
                       " columns, no multiple of ", alignment));
}

void slice_delta(DeltaSpec& delta, TensorRank tp) {
    require_divisible(tp, "linear_num_key_heads", delta.key_heads, delta.key_dim);
    require_divisible(tp, "linear_num_value_heads", delta.value_heads, delta.value_dim);
    require_divisible(tp, "outputs of in_proj_b and in_proj_a", 2 * delta.value_heads, 1);
    delta.key_heads /= tp.size;
    delta.value_heads /= tp.size;
}

}  // namespace

ModelSpec slice(const ModelSpec& model, TensorRank tp) {
    UNSLOTH_CHECK(tp.size >= 1 && tp.rank >= 0 && tp.rank < tp.size, "rank ", tp.rank, " of ", tp.size);
    if (tp.alone()) return model;
    if (model.qk_norm_of_all_heads)
        throw Error("parallel.unsupported",
                    cat("distributed.tp_size ", tp.size,
                        ": the model's q_norm and k_norm are over all heads together, of which ranks would have to sum "
                        "squares in each layer"),
                    "Leave tp_size at 1; pp_size, cp_size and data parallel ranks divide this model's work.");
    require_divisible(tp, "num_attention_heads", model.num_heads, model.head_dim);
    const bool dense = std::ranges::any_of(model.layers, [](const LayerSpec& layer) { return !layer.experts; });
    if (!model.experts || dense) require_divisible(tp, "intermediate_size", model.intermediate_size, 1);
    if (model.experts) require_divisible(tp, "intermediate_size of each expert", model.experts->intermediate_size, 1);
    if (model.num_kv_heads % tp.size != 0 && tp.size % model.num_kv_heads != 0)
        refuse(tp, cat("the model's num_key_value_heads ", model.num_kv_heads,
                       " neither is divisible by it nor divides it"));
    ModelSpec own = model;
    own.num_heads = model.num_heads / tp.size;
    own.num_kv_heads = std::max<int64_t>(1, model.num_kv_heads / tp.size);
    own.intermediate_size = model.intermediate_size / tp.size;
    if (own.experts) own.experts->intermediate_size /= tp.size;
    if (own.delta) slice_delta(*own.delta, tp);
    return own;
}

int64_t MatrixSlice::row_count() const {
    int64_t count = rows.size;
    for (const Range& more : more_rows) count += more.size;
    return count;
}

namespace {

/// Of the rows of several projections, which stand one after another, those of each that the rank has.
MatrixSlice slice_of_fused(const ModelSpec& model, Projection fused, TensorRank tp) {
    MatrixSlice all;
    int64_t first = 0;
    for (int i = 0; i < separate_projections; ++i) {
        const auto p = static_cast<Projection>(i);
        if (fused_of(p) != fused) continue;
        const MatrixSlice part = slice_of(model, p, tp);
        const Range rows{first + part.rows.begin, part.rows.size};
        if (first == 0)
            all = {rows, part.columns};
        else
            all.more_rows.push_back(rows);
        first += model.out_features(p);
    }
    return all;
}

/// Of in_proj_qkv the queries, keys and values of a rank's heads.
MatrixSlice slice_of_channels(const ModelSpec& model, const DeltaSpec& own, TensorRank tp) {
    const int64_t keys = own.keys(), values = own.values(), all_keys = model.delta->keys();
    return {{tp.rank * keys, keys},
            {0, model.hidden_size},
            {{all_keys + tp.rank * keys, keys}, {2 * all_keys + tp.rank * values, values}}};
}

}  // namespace

MatrixSlice slice_of(const ModelSpec& model, const LinearId& id, TensorRank tp) {
    const Projection p = id.projection;
    if (first_part(p) != p && !tp.alone()) return slice_of_fused(model, p, tp);
    const ModelSpec own = slice(model, tp);
    if (p == Projection::delta_qkv && !tp.alone()) return slice_of_channels(model, *own.delta, tp);
    const int64_t n = own.out_features(id), k = own.in_features(id);
    if (is_cut_by_inputs(p)) return {{0, n}, {tp.rank * k, k}};
    const bool shared = (p == Projection::k || p == Projection::v) && model.num_kv_heads < tp.size;
    const int64_t place = shared ? tp.rank * model.num_kv_heads / tp.size : tp.rank;  // in slices of this size
    return {{place * n, n}, {0, k}};
}

MatrixSlice slice_of(const ModelSpec& model, Projection p, TensorRank tp) {
    return slice_of(model, LinearId{-1, p}, tp);
}

Range vocabulary_slice(int64_t vocab_size, TensorRank tp) {
    if (tp.alone()) return {0, vocab_size};
    if (vocab_size < alignment * tp.size)
        refuse(tp, cat("a vocabulary of ", vocab_size, " gives no rank ", alignment, " rows"));
    const auto border = [&](int rank) {
        return rank == tp.size ? vocab_size : vocab_size * rank / tp.size / alignment * alignment;
    };
    return {border(tp.rank), border(tp.rank + 1) - border(tp.rank)};
}

}  // namespace unsloth::spec
