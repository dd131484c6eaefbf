// How long rows are cut for cuDNN's repeatable backward pass of attention, and that a plan holds what that takes. No
// GPU.
#include "src/ops/attention_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/ops/attention_by_heads.h"
#include "unsloth/core/error.h"

namespace unsloth::ops {
namespace {

AttentionShape long_rows(int64_t heads, int64_t kv_heads, int64_t window = 0) {
    return {heads, kv_heads, 128, window, 0.088};
}

int64_t bytes_of_long_rows(const AttentionShape& shape, int64_t tokens, bool deterministic, int64_t keys = 0) {
    return attention_workspace(shape, at::kBFloat16, at::Device(at::kCUDA), deterministic, tokens, 1,
                               std::max(tokens, keys), /*backward=*/true, keys);
}

TEST(AttentionTiles, AreAsLongAsTheScoresOfAKvHeadAllow) {
    EXPECT_EQ(longest_tile(long_rows(32, 8), 1'000'000), 16'384);
    EXPECT_EQ(longest_tile(long_rows(8, 8), 1'000'000), 32'768);
    EXPECT_EQ(longest_tile(long_rows(28, 4), 1'000'000), 12'288);
    EXPECT_EQ(longest_tile(long_rows(32, 8), 9'000), 9'216);
    EXPECT_EQ(longest_tile(long_rows(32, 8), 1), 256);
    for (const auto& [heads, kv_heads] : {std::pair{32, 8}, {28, 4}, {64, 8}, {71, 1}}) {
        const AttentionShape one = one_kv_head(long_rows(heads, kv_heads));
        const int64_t longest = longest_tile(long_rows(heads, kv_heads), 1'000'000);
        EXPECT_LE(repeatable_bytes(one, 1, longest), repeatable_scores) << heads;
        EXPECT_GT(repeatable_bytes(one, 1, longest + 256), repeatable_scores) << heads;
    }
}

TEST(AttentionTiles, ServeLongRowsWithoutAWindow) {
    EXPECT_TRUE(tiles_may_serve(long_rows(32, 8), 16'384, 2, 9'000));
    EXPECT_FALSE(tiles_may_serve(long_rows(32, 8), 16'383, 2, 9'000)) << "the mean is shorter";
    EXPECT_FALSE(tiles_may_serve(long_rows(32, 8, 4'096), 20'000, 1, 20'000));
    EXPECT_TRUE(tiles_may_serve(long_rows(32, 8, 20'000), 20'000, 1, 20'000)) << "a window as wide as the row";
}

/// Every key that a query sees, once, and no other; and a sum's first part before its others.
TEST(AttentionTiles, CoverWhatQueriesSeeOnce) {
    for (const int64_t longest : {256, 512, 1024})
        for (const int64_t queries : {1, 255, 256, 257, 700, 1024, 1300})
            for (const int64_t before : {0, 128, 256, 384, 1152}) {
                SCOPED_TRACE(cat(queries, " queries after ", before, " keys, tiles of ", longest));
                const int64_t keys = before + queries, filled = before + (queries + 255) / 256 * 256;
                std::vector<int> seen(static_cast<std::size_t>(queries * keys));
                std::vector<bool> summed(static_cast<std::size_t>(filled));
                int64_t tile = -1;
                for (const TileCall& call : tile_calls(queries, keys, longest)) {
                    EXPECT_EQ(call.query != tile, call.key == 0) << "a tile begins with key 0";
                    tile = call.query;
                    EXPECT_LE(std::max(call.queries, call.keys), longest);
                    EXPECT_EQ(call.queries % 256, 0);
                    EXPECT_EQ(call.keys % 128, 0);
                    ASSERT_LE(call.key + call.keys, filled);
                    EXPECT_TRUE(!call.own || (call.key == before + call.query && call.keys == call.queries));
                    for (int64_t k = call.key; k < call.key + call.keys; ++k) {
                        EXPECT_EQ(summed[static_cast<std::size_t>(k)], !call.own && call.query > 0);
                        summed[static_cast<std::size_t>(k)] = true;
                        for (int64_t q = call.query; q < std::min(call.query + call.queries, queries); ++q)
                            if (k < keys && (!call.own || k <= before + q))
                                ++seen[static_cast<std::size_t>(q * keys + k)];
                    }
                }
                for (int64_t q = 0; q < queries; ++q)
                    for (int64_t k = 0; k < keys; ++k)
                        ASSERT_EQ(seen[static_cast<std::size_t>(q * keys + k)], k <= before + q ? 1 : 0)
                            << q << ", " << k;
                EXPECT_TRUE(std::ranges::all_of(summed, [](bool x) { return x; }));
            }
}

/// A kv head's copies, sums and scores, whatever else the pass takes.
TEST(AttentionTiles, ArePlannedFor) {
    const AttentionShape shape = long_rows(32, 8);
    for (const int64_t tokens : {20'000, 131'072, 1'000'000}) {
        const int64_t bytes = bytes_of_long_rows(shape, tokens, true);
        EXPECT_GE(bytes, tiles_bytes(shape, tokens, tokens) + repeatable_bytes(one_kv_head(shape), 1, 16'384))
            << tokens;
        EXPECT_GE(tiles_bytes(shape, tokens, tokens), 2 * (2 + 4) * tokens * 128) << "keys, values and their sums";
    }
    EXPECT_GE(bytes_of_long_rows(shape, 32'768, true, 131'072),
              tiles_bytes(shape, 32'768, 131'072) + repeatable_bytes(one_kv_head(shape), 1, 16'384))
        << "a rank's chunk";
    EXPECT_LT(bytes_of_long_rows(shape, 131'072, true), bytes_of_long_rows(shape, 131'072, false))
        << "gradients of all heads in fp32 are more";
    EXPECT_GE(bytes_of_long_rows(long_rows(32, 8, 16'384), 32'768, true),
              tiles_bytes(shape, 16'384, 16'384) + repeatable_bytes(one_kv_head(shape), 1, 16'384))
        << "rows of a batch that do not feel the window that its longest may";
    EXPECT_LT(bytes_of_long_rows(long_rows(32, 8, 4'096), 131'072, true),
              repeatable_bytes(one_kv_head(shape), 1, 16'384))
        << "own kernels keep no scores";
}

}  // namespace
}  // namespace unsloth::ops
