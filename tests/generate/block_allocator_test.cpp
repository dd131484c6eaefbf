#include "unsloth/generate/block_allocator.h"

#include <gtest/gtest.h>

#include <set>

#include "unsloth/core/error.h"

namespace unsloth {
namespace {

using generate::BlockAllocator;
using Ids = std::vector<int32_t>;

TEST(BlockAllocator, GivesEachPageOnceUntilItIsReleased) {
    BlockAllocator pool(3, 4);
    std::set<int32_t> pages;
    for (int i = 0; i < 3; ++i) pages.insert(pool.allocate().value());
    EXPECT_EQ(pages, (std::set<int32_t>{0, 1, 2}));
    EXPECT_EQ(pool.allocate(), std::nullopt);
    pool.unref(1);
    EXPECT_EQ(pool.allocate(), 1);
    pool.unref(1);
    EXPECT_THROW(pool.unref(1), CheckError);
}

TEST(BlockAllocator, FindsAPageByItsIdsAndAllBeforeThem) {
    BlockAllocator pool(4, 2);
    const int32_t a = pool.allocate().value(), b = pool.allocate().value();
    const auto ab = pool.commit(a, 0, Ids{1, 2});
    const auto abcd = pool.commit(b, ab, Ids{3, 4});
    EXPECT_NE(ab, abcd);
    EXPECT_EQ(pool.find(0, Ids{1, 2})->page, a);
    EXPECT_EQ(pool.find(ab, Ids{3, 4})->page, b);
    EXPECT_FALSE(pool.find(0, Ids{3, 4})) << "the same ids behind nothing have other keys";
    EXPECT_FALSE(pool.find(ab, Ids{1, 2}));
    // The same text once more: its name is that of the page which is there.
    const int32_t again = pool.allocate().value();
    EXPECT_EQ(pool.commit(again, 0, Ids{1, 2}), ab);
    EXPECT_EQ(pool.find(0, Ids{1, 2})->page, a);
}

TEST(BlockAllocator, KeepsTheTextOfAFreePageUntilItIsTaken) {
    BlockAllocator pool(2, 1);
    const int32_t a = pool.allocate().value(), b = pool.allocate().value();
    pool.commit(a, 0, Ids{7});
    pool.unref(a);
    pool.unref(b);
    ASSERT_EQ(pool.find(0, Ids{7})->page, a);
    EXPECT_EQ(pool.allocate(), b) << "a page without text goes first";
    pool.ref(a);
    EXPECT_EQ(pool.free(), 0);
    pool.unref(a);
    EXPECT_EQ(pool.allocate(), a);
    EXPECT_FALSE(pool.find(0, Ids{7})) << "it holds something else now";
}

TEST(BlockAllocator, APageWithSeveralHoldersIsFreeAfterTheLast) {
    BlockAllocator pool(1, 1);
    const int32_t page = pool.allocate().value();
    pool.ref(page);
    pool.unref(page);
    EXPECT_EQ(pool.free(), 0);
    pool.unref(page);
    EXPECT_EQ(pool.free(), 1);
}

}  // namespace
}  // namespace unsloth
