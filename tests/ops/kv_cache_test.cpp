// Keys and values in 8 bit: what a code may miss, and that attention over codes is attention over what they stand for.
#include "unsloth/ops/kv_cache.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "unsloth/core/error.h"
#include "unsloth/ops/paged_attention.h"

namespace unsloth::ops {
namespace {

constexpr int64_t pages = 6, kv_heads = 2, head_dim = 20, tokens = 70;

KvCache make_cache(at::ScalarType type, bool coded) {
    // What nobody wrote is not finite: it must not be read.
    const at::Tensor rows = at::full({pages * page_tokens, 2 * kv_heads * head_dim}, 255, at::kFloat);
    if (!coded) return {rows.to(type).fill_(std::nan("")), {}};
    return {rows.to(at::kByte), at::full({pages, 2 * kv_heads, page_tokens}, 255, at::kByte)};
}

/// Heads of very different size in a wider row, one all zeros.
at::Tensor make_rows(at::ScalarType type) {
    at::manual_seed(5);
    at::Tensor heads = at::randn({tokens, 2 * kv_heads, head_dim}) * at::randn({tokens, 2 * kv_heads, 1}).mul(4).exp2();
    heads[3][1].zero_();
    heads[4][0][7] = 1000;  // an outlier
    const at::Tensor wide = at::full({tokens, 2 * kv_heads * head_dim + 8}, 77.0).to(type);
    wide.narrow(1, 0, 2 * kv_heads * head_dim).copy_(heads.flatten(1));
    return wide.narrow(1, 0, 2 * kv_heads * head_dim);
}

/// Tokens in pages 4, 1 and 2.
at::Tensor slots() {
    std::vector<int32_t> places(tokens);
    for (int32_t t = 0; t < tokens; ++t)
        places[t] = std::array{4, 1, 2}[t / page_tokens] * page_tokens + t % page_tokens;
    return at::tensor(at::ArrayRef<int32_t>(places), at::kInt).clone();
}

TEST(KvCache, CodesMissHalfAStepOfThreeBitsAtMost) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        Context ctx(at::kCPU);
        const KvCache cache = make_cache(type, true);
        const at::Tensor rows = make_rows(type), before = rows.to(at::kDouble), where = slots();
        write_kv(ctx, rows, where, head_dim, cache);
        const at::Tensor after = rows.to(at::kDouble).view({tokens, -1, head_dim});
        const at::Tensor was = before.view({tokens, -1, head_dim}), largest = was.abs().amax(-1, true);
        // Of a magnitude 2^-4, or half the distance of the least codes, 2^-9, where the largest is 224 or more.
        EXPECT_TRUE(((after - was).abs() <= at::maximum(was.abs() / 16, largest / 224 / 1024)).all().item<bool>());
        EXPECT_TRUE((after[3][1] == 0).all().item<bool>());
        EXPECT_GT((after - was).abs().max().item<double>(), 0);

        for (const KeyPart part : {KeyPart::keys, KeyPart::values}) {
            const at::Tensor expected =
                after.narrow(1, part == KeyPart::keys ? 0 : kv_heads, kv_heads).to(type).contiguous();
            EXPECT_TRUE(at::equal(read_keys(ctx, cache, part, where, 0, tokens, head_dim, type), expected));
            EXPECT_TRUE(at::equal(read_keys(ctx, cache, part, {}, page_tokens, page_tokens, head_dim, type),
                                  expected.narrow(0, page_tokens, page_tokens)))
                << "page 1";
        }
        const at::Tensor untouched = cache.kv_C2N.view({pages, page_tokens, -1});
        EXPECT_TRUE((untouched[0] == 255).all().item<bool>());
        EXPECT_TRUE((untouched[2].narrow(0, tokens % page_tokens, 1) == 255).all().item<bool>());
        // What was read back is stored as it is.
        const at::Tensor again = rows.clone();
        write_kv(ctx, again, where, head_dim, cache);
        EXPECT_TRUE(at::equal(again, rows));
    }
}

TEST(KvCache, HeadsThatAreNotFiniteStayNotFinite) {
    for (const float value : {NAN, INFINITY}) {
        Context ctx(at::kCPU);
        const KvCache cache = make_cache(at::kFloat, true);
        const at::Tensor rows = make_rows(at::kFloat), where = slots();
        rows[5][3] = value;
        write_kv(ctx, rows, where, head_dim, cache);
        const at::Tensor keys = read_keys(ctx, cache, KeyPart::keys, where, 0, tokens, head_dim, at::kFloat);
        EXPECT_FALSE(keys[5][0].isfinite().any().item<bool>());
        EXPECT_TRUE(keys[5][1].isfinite().all().item<bool>());
    }
}

TEST(KvCache, AttentionOverCodesIsThatOverWhatTheyStandFor) {
    Context ctx(at::kCPU);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const at::Tensor rows = make_rows(type), where = slots();
        const KvCache coded = make_cache(type, true), plain = make_cache(type, false);
        write_kv(ctx, rows, where, head_dim, coded);
        write_kv(ctx, rows, where, head_dim, plain);
        PagedRows paged;  // one query, and four
        paged.q_offsets = {0, 1, 5};
        paged.lengths = {tokens, page_tokens + 3};
        paged.pages = {4, 1, 2, 4, 1, 0};
        paged.most_pages = 3;
        paged.decoding = 1;
        place_rows(ctx, paged);
        const AttentionShape shape{2 * kv_heads, kv_heads, head_dim, 0, 0.25};
        const at::Tensor q = at::randn({5, 2 * kv_heads, head_dim}).to(type);
        const at::Tensor by_codes = at::empty_like(q), by_values = at::empty_like(q);
        paged_attention(ctx, shape, paged, q, coded, by_codes);
        paged_attention(ctx, shape, paged, q, plain, by_values);
        EXPECT_TRUE(at::equal(by_codes, by_values));
        EXPECT_TRUE(by_codes.isfinite().all().item<bool>());
    }
}

/// Each row of queries sees its keys in pages as whole attention does with the same sinks.
TEST(KvCache, PagedAttentionWithSinksIsThatOverTheSameKeys) {
    Context ctx(at::kCPU);
    const at::Tensor rows = make_rows(at::kFloat), where = slots();
    const KvCache cache = make_cache(at::kFloat, false);
    write_kv(ctx, rows, where, head_dim, cache);
    PagedRows paged;
    paged.q_offsets = {0, 1};
    paged.lengths = {page_tokens + 3};
    paged.pages = {1, 2};
    paged.most_pages = 2;
    paged.decoding = 1;
    place_rows(ctx, paged);
    AttentionShape shape{2 * kv_heads, kv_heads, head_dim, 20, 0.25};
    shape.sinks = true;
    const at::Tensor q = at::randn({1, 2 * kv_heads, head_dim}) / 100, sinks = at::randn({2 * kv_heads}) + 3;
    const at::Tensor got = at::empty_like(q), expected = at::empty_like(q);
    paged_attention(ctx, shape, paged, q, cache, got, sinks);
    EXPECT_THROW(paged_attention(ctx, shape, paged, q, cache, got), CheckError);
    const auto keys = [&](KeyPart part) {
        return read_keys(ctx, cache, part, {}, page_tokens, page_tokens + 3, head_dim, at::kFloat);
    };
    attention_forward(ctx, shape, paged.segments[0], q, keys(KeyPart::keys), keys(KeyPart::values), expected, {},
                      sinks);
    EXPECT_TRUE(at::equal(got, expected));
    shape.sinks = false;
    paged_attention(ctx, shape, paged, q, cache, expected);
    EXPECT_FALSE(at::allclose(got, expected, 1e-3));
}

TEST(KvCache, OtherShapesAreRefused) {
    Context ctx(at::kCPU);
    const KvCache cache = make_cache(at::kFloat, true);
    const at::Tensor rows = make_rows(at::kFloat);
    EXPECT_THROW(write_kv(ctx, rows, slots(), head_dim / 2, cache), CheckError);
    EXPECT_THROW(write_kv(ctx, rows.narrow(0, 0, 3), slots(), head_dim, cache), CheckError);
    EXPECT_THROW(write_kv(ctx, rows.narrow(1, 0, head_dim), slots(), head_dim, cache), CheckError);
}

}  // namespace
}  // namespace unsloth::ops
