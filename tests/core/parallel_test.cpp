#include "unsloth/core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace unsloth {
namespace {

TEST(ParallelRanges, CoverEveryElementOnce) {
    for (const int64_t count : {0, 1, 2, 7, 1000}) {
        for (const int64_t grain : {0, 1, 3, 5000}) {
            for (const int threads : {0, 1, 2, 5, 64}) {
                std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
                std::atomic<int> ranges = 0;
                parallel_ranges(
                    count, grain,
                    [&](int64_t begin, int64_t end) {
                        EXPECT_LT(begin, end);
                        ++ranges;
                        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
                    },
                    threads);
                for (const auto& times : seen) EXPECT_EQ(times, 1);
                EXPECT_LE(ranges, threads > 0 ? threads : 1024);
                EXPECT_LE(ranges, grain == 5000 ? 1 : 1024) << "too few elements for a second thread";
            }
        }
    }
}

TEST(ParallelRanges, RunOnSeveralThreads) {
    std::set<std::thread::id> ids;
    std::mutex guard;
    std::atomic<int> arrived = 0;
    parallel_ranges(
        3, 1,
        [&](int64_t, int64_t) {
            ++arrived;
            while (arrived < 3) std::this_thread::yield();  // ends only when all three run at once
            const std::lock_guard lock(guard);
            ids.insert(std::this_thread::get_id());
        },
        3);
    EXPECT_EQ(ids.size(), 3U);
}

TEST(ParallelRanges, PassOnAnExceptionOfAnyThread) {
    for (const int64_t bad : {0, 1, 3}) {
        std::atomic<int> ended = 0;
        const auto run = [&] {
            parallel_ranges(
                4, 1,
                [&](int64_t begin, int64_t) {
                    ++ended;
                    if (begin == bad) throw std::runtime_error("range");
                },
                4);
        };
        EXPECT_THROW(run(), std::runtime_error);
        EXPECT_EQ(ended, 4) << "the others are not cut short";
    }
}

}  // namespace
}  // namespace unsloth
