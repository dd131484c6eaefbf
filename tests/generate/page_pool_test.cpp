#include "unsloth/generate/page_pool.h"

#include <gtest/gtest.h>

#include <set>

#include "unsloth/core/error.h"

namespace unsloth {
namespace {

using generate::PagePool;
using Ids = std::vector<int32_t>;

TEST(PagePool, GivesEachPageOnceUntilItIsReleased) {
    PagePool pool(3, 4);
    std::set<int32_t> pages;
    for (int i = 0; i < 3; ++i) pages.insert(pool.take().value());
    EXPECT_EQ(pages, (std::set<int32_t>{0, 1, 2}));
    EXPECT_EQ(pool.take(), std::nullopt);
    pool.release(1);
    EXPECT_EQ(pool.take(), 1);
    pool.release(1);
    EXPECT_THROW(pool.release(1), CheckError);
}

TEST(PagePool, FindsAPageByItsIdsAndAllBeforeThem) {
    PagePool pool(4, 2);
    const int32_t a = pool.take().value(), b = pool.take().value();
    const auto ab = pool.publish(a, 0, Ids{1, 2});
    const auto abcd = pool.publish(b, ab, Ids{3, 4});
    EXPECT_NE(ab, abcd);
    EXPECT_EQ(pool.find(0, Ids{1, 2})->page, a);
    EXPECT_EQ(pool.find(ab, Ids{3, 4})->page, b);
    EXPECT_FALSE(pool.find(0, Ids{3, 4})) << "the same ids behind nothing have other keys";
    EXPECT_FALSE(pool.find(ab, Ids{1, 2}));
    // The same text once more: its name is that of the page which is there.
    const int32_t again = pool.take().value();
    EXPECT_EQ(pool.publish(again, 0, Ids{1, 2}), ab);
    EXPECT_EQ(pool.find(0, Ids{1, 2})->page, a);
}

TEST(PagePool, KeepsTheTextOfAFreePageUntilItIsTaken) {
    PagePool pool(2, 1);
    const int32_t a = pool.take().value(), b = pool.take().value();
    pool.publish(a, 0, Ids{7});
    pool.release(a);
    pool.release(b);
    ASSERT_EQ(pool.find(0, Ids{7})->page, a);
    EXPECT_EQ(pool.take(), b) << "a page without text goes first";
    pool.hold(a);
    EXPECT_EQ(pool.free(), 0);
    pool.release(a);
    EXPECT_EQ(pool.take(), a);
    EXPECT_FALSE(pool.find(0, Ids{7})) << "it holds something else now";
}

TEST(PagePool, APageWithSeveralHoldersIsFreeAfterTheLast) {
    PagePool pool(1, 1);
    const int32_t page = pool.take().value();
    pool.hold(page);
    pool.release(page);
    EXPECT_EQ(pool.free(), 0);
    pool.release(page);
    EXPECT_EQ(pool.free(), 1);
}

}  // namespace
}  // namespace unsloth
