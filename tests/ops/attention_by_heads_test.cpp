// When cuDNN gets a kv head at a time, and that a plan holds what a call then takes. No GPU: tensors without memory.
#include "src/ops/attention_by_heads.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace unsloth::ops {
namespace {

const at::Device absent_gpu(at::kCUDA);
constexpr int64_t fused_row = 6144;  // of q, k, v of an 8B model

AttentionShape of_heads(int64_t heads, int64_t kv_heads, int64_t d = 128) {
    return {heads, kv_heads, d, 0, 1 / std::sqrt(static_cast<double>(d))};
}

at::Tensor without_memory(int64_t rows, int64_t heads, int64_t stride) {
    return at::empty_strided({rows, heads, 128}, {stride, 128, 1}, at::TensorOptions(at::kBFloat16).device(at::kMeta));
}

int64_t planned_bytes(const AttentionShape& shape, int64_t tokens, int64_t keys = 0, int64_t row = 0) {
    return attention_workspace(shape, at::kBFloat16, absent_gpu, false, tokens, 1, std::max(tokens, keys), true, keys,
                               row);
}
int64_t bytes_by_heads(const AttentionShape& shape, int64_t tokens, int64_t keys) {
    return kv_head_bytes(shape, tokens, keys, true) + planned_bytes(one_kv_head(shape), tokens, keys);
}

TEST(AttentionByHeads, OneLayersQueriesKeysAndValues) {
    const AttentionShape shape = of_heads(32, 8);
    EXPECT_EQ(reachable_tokens(shape), 349'525);
    const auto reach = [&](int64_t tokens, int64_t stride) {
        const at::Tensor q = without_memory(tokens, 32, stride), k = without_memory(tokens, 8, stride);
        return reach_of(shape, {&q, &k});
    };
    EXPECT_EQ(Reach::whole, reach(349'525, fused_row));
    EXPECT_EQ(Reach::by_heads, reach(349'526, fused_row));
    EXPECT_EQ(Reach::by_heads, reach(349'525, fused_row + 64)) << "an adapter's columns";
}

/// A rank's queries and what they attend over: none of the tensors spans 2^31 elements, but cuDNN keeps gradients of
/// keys for every head, and the plan knows the numbers of rows alone.
TEST(AttentionByHeads, FewQueriesOfManyKeys) {
    const AttentionShape shape = of_heads(32, 8);
    for (const int64_t keys : {349'525, 349'526, 600'000, 1'000'000}) {
        const int64_t tokens = 100'000;
        const at::Tensor q = without_memory(tokens, 32, fused_row), k = without_memory(keys, 8, 2048);
        const Reach expected = keys > 349'525 ? Reach::by_heads : Reach::whole;
        ASSERT_LE(k.size(0) * k.stride(0), int64_t{1} << 31);
        EXPECT_EQ(reach_of(shape, {&q, &k}), expected) << keys;
        EXPECT_EQ(reach_of(shape, {&k, &q}), expected) << keys;
        if (keys <= 349'525) continue;
        EXPECT_GE(planned_bytes(shape, tokens, keys), bytes_by_heads(shape, tokens, keys)) << keys;
        EXPECT_GE(planned_bytes(shape, tokens, keys), planned_bytes(shape, tokens, 349'525)) << "for fewer keys";
    }
}

/// On one kv head the copies come on top of all that the whole call takes.
TEST(AttentionByHeads, WideRowsOfOneKvHead) {
    const AttentionShape shape = of_heads(4, 1);
    const int64_t tokens = 600'000, row = 4160;  // of an eighth of the heads, beside the whole residual stream's
    const at::Tensor q = without_memory(tokens, 4, 768), dout = without_memory(tokens, 4, row);
    EXPECT_EQ(reach_of(shape, {&q}), Reach::whole);
    EXPECT_EQ(reach_of(shape, {&q, &dout}), Reach::by_heads);
    EXPECT_GE(planned_bytes(shape, tokens, 0, row), bytes_by_heads(shape, tokens, tokens));
    EXPECT_LT(planned_bytes(shape, tokens, 0, 768), bytes_by_heads(shape, tokens, tokens))
        << "nothing for copies that none needs";
}

/// Beyond a kv head's copies nothing is cuDNN's: the portable backward is planned, and cuDNN for shorter passes.
TEST(AttentionByHeads, OneKvHeadBeyondReach) {
    const auto reach = [](const AttentionShape& shape, int64_t tokens, int64_t keys) {
        const at::Tensor q = without_memory(tokens, shape.heads, shape.heads * 128), k = without_memory(keys, 1, 128);
        return reach_of(shape, {&q, &k});
    };
    EXPECT_EQ(reachable_tokens_by_heads(of_heads(32, 8)), 4'194'176);
    EXPECT_EQ(reachable_tokens_by_heads(of_heads(32, 1)), 524'160);
    for (const AttentionShape& shape : {of_heads(32, 8), of_heads(32, 1)}) {
        SCOPED_TRACE(shape.kv_heads);
        const int64_t most = reachable_tokens_by_heads(shape), all = 16 * most;
        EXPECT_TRUE(within_reach(most * shape.heads / shape.kv_heads * 128));
        EXPECT_EQ(reach(shape, most, most), Reach::by_heads);
        EXPECT_EQ(reach(shape, most + 1, most + 1), Reach::nothing);
        EXPECT_EQ(reach(shape, 1, most + 1), Reach::nothing) << "gradients of keys are kept for every head";
        EXPECT_GE(planned_bytes(shape, all), planned_bytes(shape, most));
        EXPECT_GE(planned_bytes(shape, all), 4 * shape.heads * all) << "the portable backward";
        EXPECT_EQ(planned_bytes(shape, 1, all), planned_bytes(shape, 1, most)) << "no copies that none takes";
    }
    EXPECT_EQ(planned_bytes(of_heads(32, 1), 1 << 30), int64_t{128} << 30);
}

TEST(AttentionByHeads, PlansWhatIsTaken) {
    const int64_t million = 1'000'000;
    const AttentionShape shape = of_heads(32, 8);
    const auto planned = [&](const AttentionShape& of, at::ScalarType type, bool deterministic) {
        return attention_workspace(of, type, absent_gpu, deterministic, million, 1, million);
    };
    EXPECT_EQ(planned(shape, at::kFloat, false), 4 * 32 * million) << "cuDNN has no fp32";
    EXPECT_EQ(planned(of_heads(32, 8, 100), at::kBFloat16, false), 4 * 32 * million) << "nor such heads";
    EXPECT_GE(planned(shape, at::kHalf, false), bytes_by_heads(shape, million, million));
    // Where bits repeat the backward pass goes in tiles: copies of all heads are the forward's.
    EXPECT_GE(planned(shape, at::kBFloat16, true), kv_head_bytes(shape, million, million, false));
    EXPECT_LT(planned(shape, at::kBFloat16, true), kv_head_bytes(shape, million, million, true));
}

}  // namespace
}  // namespace unsloth::ops
