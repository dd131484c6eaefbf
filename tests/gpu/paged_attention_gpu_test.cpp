// Attention over pages on CUDA against the CPU operator in fp32 on the same values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "gpu/gpu_testing.h"
#include "unsloth/ops/paged_attention.h"

namespace unsloth::ops {
namespace {

class PagedAttentionGpu : public testing::GpuTest {};

struct Case {
    int64_t heads, kv_heads, head_dim, window;
    at::ScalarType type;
    bool sinks = false;
};

/// Rows of these lengths in pages that lie anywhere; the first `decoding` rows have one query, the others three.
struct Paged {
    PagedRows rows;
    at::Tensor q_THd, k_CN, v_CN, out_THd;
};

Paged make(const Case& c, const std::vector<int32_t>& lengths, int64_t decoding) {
    Paged made;
    PagedRows& rows = made.rows;
    rows.lengths = lengths;
    rows.decoding = decoding;
    rows.most_pages = pages_of(*std::max_element(lengths.begin(), lengths.end())) + 1;
    std::vector<int32_t> pages(lengths.size() * static_cast<std::size_t>(rows.most_pages));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(5));
    rows.pages = pages;
    rows.q_offsets = {0};
    for (std::size_t row = 0; row < lengths.size(); ++row)
        rows.q_offsets.push_back(rows.q_offsets.back() + (static_cast<int64_t>(row) < decoding ? 1 : 3));
    at::manual_seed(3);
    const int64_t tokens = rows.tokens(), places = static_cast<int64_t>(pages.size()) * page_tokens;
    // q lies in wider rows, as in a layer.
    made.q_THd = at::randn({tokens, (c.heads + 3) * c.head_dim}).to(c.type);
    made.q_THd = made.q_THd.narrow(1, 0, c.heads * c.head_dim).unflatten(1, {c.heads, c.head_dim});
    made.k_CN = at::randn({places, c.kv_heads * c.head_dim}).to(c.type);
    made.v_CN = at::randn({places, c.kv_heads * c.head_dim}).to(c.type);
    made.out_THd = at::full({tokens, c.heads, c.head_dim}, 77.0).to(c.type);
    return made;
}

/// Over the cache that is given, or that of `paged`.
at::Tensor attend(at::Device device, const Case& c, Paged paged, at::ScalarType type, KvCache cache = {}) {
    Context ctx(device);
    const AttentionShape shape{
        c.heads, c.kv_heads, c.head_dim, c.window, 1.0 / std::sqrt(static_cast<double>(c.head_dim)), c.sinks};
    const auto there = [&](const at::Tensor& x) { return x.to(device, type); };
    const at::Tensor out = there(paged.out_THd);
    PagedRows& rows = paged.rows;
    if (device.is_cuda()) {
        const int32_t longest = *std::max_element(rows.lengths.begin(), rows.lengths.end());
        ctx.workspace = at::empty({paged_attention_workspace(shape, device, rows.count(), longest) +
                                   attention_workspace(shape, type, device, false, rows.tokens(), rows.count(),
                                                       std::min<int64_t>(3, rows.tokens()), false)},
                                  at::TensorOptions(at::kByte).device(device));
        rows.lengths_S = at::tensor(at::ArrayRef<int32_t>(rows.lengths), at::kInt).to(device);
        rows.pages_SM = at::tensor(at::ArrayRef<int32_t>(rows.pages), at::kInt).to(device);
    }
    place_rows(ctx, rows);
    // The wider rows of q stay where a copy would make them dense.
    const at::Tensor wide =
        at::zeros({paged.q_THd.size(0), (c.heads + 3) * c.head_dim}, at::TensorOptions(type).device(device));
    const at::Tensor q = wide.narrow(1, 0, c.heads * c.head_dim).unflatten(1, {c.heads, c.head_dim});
    q.copy_(paged.q_THd);
    if (!cache.kv_C2N.defined()) cache.kv_C2N = there(at::cat({paged.k_CN, paged.v_CN}, 1));
    at::Tensor sinks;
    if (c.sinks) sinks = at::linspace(-2, 3, c.heads, at::kFloat).to(device);
    paged_attention(ctx, shape, rows, q, cache, out, sinks);
    return out.to(at::kCPU, at::kDouble);
}

void expect_equal(const Case& c, const std::vector<int32_t>& lengths, int64_t decoding) {
    const Paged paged = make(c, lengths, decoding);
    const at::Tensor expected = attend(at::kCPU, c, paged, at::kFloat);
    const at::Tensor got = attend(at::kCUDA, c, paged, c.type);
    const double tolerance = c.type == at::kFloat ? 1e-5 : c.type == at::kHalf ? 1e-3 : 8e-3;
    EXPECT_LT((got - expected).abs().max().item<double>(),
              tolerance * std::max(1.0, expected.abs().max().item<double>()))
        << c.heads << "/" << c.kv_heads << " heads of " << c.head_dim << ", window " << c.window << ", "
        << at::toString(c.type) << ", " << lengths.size() << " rows, " << decoding << " decode";
}

TEST_F(PagedAttentionGpu, DecodingRowsEqualTheCpusForAllShapes) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
        for (const auto& [heads, kv_heads] :
             std::vector<std::pair<int64_t, int64_t>>{{4, 4}, {8, 4}, {9, 3}, {8, 2}, {14, 2}, {16, 2}}) {
            for (const int64_t head_dim : {64, 80, 96, 128, 256}) {
                for (const int64_t window : {0, 50})
                    expect_equal({heads, kv_heads, head_dim, window, type}, {1, 2, 31, 32, 33, 127, 128, 129, 700}, 9);
            }
        }
        expect_equal({4, 2, 20, 0, type}, {5, 300}, 2);  // heads that no 16 bytes fit
    }
}

TEST_F(PagedAttentionGpu, LongRowsAreSplitIntoAtMostSoManyParts) {
    for (const int32_t length : {8191, 8192, 8193, 20000}) expect_equal({8, 2, 128, 0, at::kBFloat16}, {length, 40}, 2);
    expect_equal({8, 2, 128, 4096, at::kBFloat16}, {20000}, 1);
}

TEST_F(PagedAttentionGpu, RowsOfSeveralQueriesGoBesideThem) {
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat})
        for (const int64_t window : {0, 40}) expect_equal({8, 2, 128, window, type}, {70, 1, 300, 64, 3, 200}, 3);
}

TEST_F(PagedAttentionGpu, SinksTakePart) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat})
        for (const int64_t window : {0, 50})
            for (const int64_t kv_heads : {1, 8})
                expect_equal({8, kv_heads, 64, window, type, true}, {1, 2, 33, 128, 700, 9000, 70, 200}, 6);
}

/// What a row gets does not depend on how long those beside it are: its parts follow from its own length.
TEST_F(PagedAttentionGpu, ARowsBitsDoNotDependOnItsNeighbours) {
    const Case c{8, 2, 128, 0, at::kBFloat16};
    Paged both = make(c, {300, 9000}, 2);
    Paged alone = both;
    alone.rows.lengths.resize(1);
    alone.rows.pages.resize(static_cast<std::size_t>(alone.rows.most_pages));
    alone.rows.q_offsets.resize(2);
    alone.rows.decoding = 1;
    alone.q_THd = both.q_THd.narrow(0, 0, 1);
    alone.out_THd = both.out_THd.narrow(0, 0, 1);
    EXPECT_TRUE(at::equal(attend(at::kCUDA, c, both, c.type)[0], attend(at::kCUDA, c, alone, c.type)[0]));
}

/// Codes on the GPU are the CPU's, and attention makes of them what it makes of a cache of their values in 16 bit.
TEST_F(PagedAttentionGpu, CodesAttendAsTheValuesTheyStandFor) {
    for (const auto& [heads, kv_heads] : std::vector<std::pair<int64_t, int64_t>>{{4, 4}, {8, 2}, {14, 2}, {16, 1}}) {
        for (const int64_t head_dim : {64, 128}) {
            for (const int64_t window : {0, 50}) {
                const Case c{heads, kv_heads, head_dim, window, at::kBFloat16};
                Paged paged = make(c, {1, 2, 31, 32, 33, 127, 128, 129, 700, 9000}, 8);
                const int64_t places = paged.k_CN.size(0), page_count = places / page_tokens;
                at::Tensor rows = at::cat({paged.k_CN, paged.v_CN}, 1).view({places, 2 * kv_heads, head_dim});
                rows = (rows * at::randn({places, 2 * kv_heads, 1}).mul(3).exp2()).to(c.type).flatten(1);
                const at::Tensor slots = at::arange(places, at::kInt);
                const auto stored = [&](at::Device device) {
                    Context ctx(device);
                    KvCache cache{at::zeros({places, rows.size(1)}, at::TensorOptions(at::kByte).device(device)),
                                  at::zeros({page_count, 2 * kv_heads, page_tokens},
                                            at::TensorOptions(at::kByte).device(device))};
                    const at::Tensor kv = rows.to(device, /*non_blocking=*/false, /*copy=*/true);
                    write_kv(ctx, kv, slots.to(device), head_dim, cache);
                    return std::pair{cache, kv};
                };
                const auto [on_cpu, rounded] = stored(at::kCPU);
                const auto [on_gpu, rounded_there] = stored(at::kCUDA);
                EXPECT_TRUE(at::equal(on_gpu.kv_C2N.cpu(), on_cpu.kv_C2N));
                EXPECT_TRUE(at::equal(on_gpu.exponents_PHS.cpu(), on_cpu.exponents_PHS));
                EXPECT_TRUE(at::equal(rounded_there.cpu(), rounded));
                const at::Tensor by_values = attend(at::kCUDA, c, paged, c.type, {rounded_there, {}}),
                                 by_codes = attend(at::kCUDA, c, paged, c.type, on_gpu);
                // A code below 2^-6 is a subnormal in bf16, by which tensor cores align sums elsewhere: an ulp of few.
                const at::Tensor off = (by_codes - by_values).abs();
                EXPECT_TRUE((off <= by_values.abs() / 128).all().item<bool>())
                    << heads << "/" << kv_heads << " of " << head_dim;
                EXPECT_LE((off > 0).sum().item<int64_t>(), off.numel() / 5000)
                    << heads << "/" << kv_heads << " of " << head_dim;
            }
        }
    }
}

}  // namespace
}  // namespace unsloth::ops
