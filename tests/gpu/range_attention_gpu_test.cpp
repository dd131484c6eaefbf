#include <cmath>
#include <cstdio>
#include <functional>

#include "gpu/gpu_testing.h"
#include "ops/range_attention_cases.h"
#include "unsloth/memory/plan.h"

namespace unsloth {
namespace {

using RangeAttentionGpu = testing::GpuTest;

/// Bytes of the allocator that a call takes at most, apart from what is there before.
int64_t bytes_taken(at::Device device, const std::function<void()>& call) {
    memory::reset_peak(device);
    const int64_t before = memory::peak_allocated_bytes(device);
    call();
    return memory::peak_allocated_bytes(device) - before;
}

void expect_bounded(int64_t heads, int64_t kv_heads, int64_t d, int64_t queries, int64_t keys) {
    SCOPED_TRACE(cat(heads, " heads of ", d, ", ", queries, " on ", keys));
    const at::Device device(at::kCUDA, 0);
    ops::Context ctx(device);
    const ops::AttentionShape shape{
        .heads = heads, .kv_heads = kv_heads, .head_dim = d, .scale = 1.0 / std::sqrt(static_cast<double>(d))};
    const auto rows = [&](int64_t count, int64_t of) {
        return at::randn({count, of, d}, at::TensorOptions(at::kBFloat16).device(device));
    };
    const at::Tensor q = rows(queries, heads), k = rows(keys, kv_heads), v = rows(keys, kv_heads),
                     out = rows(queries, heads), dq = rows(queries, heads), dk = rows(keys, kv_heads),
                     dv = rows(keys, kv_heads);
    const at::Tensor lse = at::empty({heads, queries}, at::TensorOptions(at::kFloat).device(device));
    const std::vector<ops::AttentionRange> all = {{0, static_cast<int32_t>(queries), 0, static_cast<int32_t>(keys)}};
    const auto most = [&](bool backward) {
        return ops::range_attention_library_bytes(device, at::kBFloat16, shape, queries, keys, backward);
    };
    EXPECT_LE(bytes_taken(device, [&] { ops::range_attention_forward(ctx, shape, all, q, k, v, out, lse); }),
              most(/*backward=*/false));
    const int64_t backward = bytes_taken(
        device, [&] { ops::range_attention_backward(ctx, shape, all, out, q, k, v, out, lse, dq, dk, dv); });
    EXPECT_LE(backward, most(/*backward=*/true));
    std::printf("%lld heads of %lld, %lld on %lld: %lld of %lld bytes\n", static_cast<long long>(heads),
                static_cast<long long>(d), static_cast<long long>(queries), static_cast<long long>(keys),
                static_cast<long long>(backward), static_cast<long long>(most(true)));
}

TEST_F(RangeAttentionGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::range_attention_cases);
}

TEST_F(RangeAttentionGpu, LongRangesMatchOracleAndCpu) {
    testing::check_on_gpu(testing::long_range_attention_cases, /*repeats=*/false);
}

// The plan counts what cuDNN takes, for the shapes that models have.
TEST_F(RangeAttentionGpu, LibraryBytesAreABound) {
    for (const int64_t queries : {256, 2048, 6432})
        for (const int64_t keys : {300, 6404, 8192}) {
            expect_bounded(16, 16, 80, queries, keys);
            expect_bounded(32, 8, 128, queries, keys);
            expect_bounded(16, 16, 72, queries, keys);
        }
}

}  // namespace
}  // namespace unsloth
