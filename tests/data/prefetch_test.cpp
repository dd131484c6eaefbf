#include "unsloth/data/prefetch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>

#include "unsloth/core/error.h"

namespace unsloth::data {
namespace {

StepBatch numbered(int64_t step) {
    StepBatch batch;
    batch.labels = step;
    return batch;
}

TEST(Prefetcher, StaysWithinItsDepth) {
    std::atomic<int64_t> made{0};
    Prefetcher prefetcher(
        [&](int64_t step) {
            ++made;
            return numbered(step);
        },
        0, 1000, 2);
    for (int64_t step = 0; step < 50; ++step) {
        EXPECT_EQ(prefetcher.next()->labels, step);
        if (step % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        EXPECT_LE(made.load(), step + 1 + 2 + 1);  // taken, waiting, and one in the making
    }
}

TEST(Prefetcher, ErrorsComeInTheirTurnAndStay) {
    Prefetcher prefetcher(
        [](int64_t step) {
            if (step == 2) throw Error("data.row-ids", "row 17 is gone");
            return numbered(step);
        },
        0, 10, 4);
    EXPECT_EQ(prefetcher.next()->labels, 0);
    EXPECT_EQ(prefetcher.next()->labels, 1);
    for (int call = 0; call < 2; ++call) try {
            prefetcher.next();
            ADD_FAILURE();
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::input);
            EXPECT_NE(std::string(error.what()).find("row 17 is gone"), std::string::npos) << error.what();
        }
}

TEST(Prefetcher, StopsCleanlyWhileItsQueueIsFull) {
    std::atomic<int64_t> made{0};
    {
        Prefetcher prefetcher(
            [&](int64_t step) {
                ++made;
                return numbered(step);
            },
            0, 1'000'000, 2);
        EXPECT_EQ(prefetcher.next()->labels, 0);
    }
    EXPECT_LE(made.load(), 4);
    Prefetcher never_read([](int64_t step) { return numbered(step); }, 0, 5, 1);
    Prefetcher nothing([](int64_t) -> StepBatch { throw std::logic_error("not to be called"); }, 3, 3, 1);
    EXPECT_FALSE(nothing.next().has_value());
}

}  // namespace
}  // namespace unsloth::data
