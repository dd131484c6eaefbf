#include "unsloth/data/prefetch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>

#include "data/toy.h"
#include "unsloth/data/loader.h"

namespace unsloth::data {
namespace {

StepBatch numbered(int64_t step) {
    StepBatch batch;
    batch.labels = step;
    return batch;
}

TEST(Prefetcher, GivesTheSameStepsAsTheLoader) {
    const Dataset data = Dataset::from_samples(toy::samples(90, 8));
    LoaderOptions options;
    options.per_device_train_batch_size = 3;
    options.gradient_accumulation_steps = 2;
    options.order_tokens = true;
    StepLoader direct(data, options), ahead(data, options);
    Prefetcher prefetcher([&](int64_t step) { return ahead.step(step); }, 4, 40, 3);
    for (int64_t step = 4; step < 40; ++step) {
        const auto got = prefetcher.next();
        ASSERT_TRUE(got.has_value());
        const StepBatch expected = direct.step(step);
        EXPECT_EQ(got->labels, expected.labels);
        EXPECT_EQ(got->epoch, expected.epoch);
        ASSERT_EQ(got->micro.size(), expected.micro.size());
        for (std::size_t k = 0; k < expected.micro.size(); ++k) {
            EXPECT_EQ(got->micro[k].ids_T, expected.micro[k].ids_T);
            EXPECT_EQ(got->micro[k].targets_T, expected.micro[k].targets_T);
            EXPECT_EQ(got->micro[k].segments, expected.micro[k].segments);
            EXPECT_EQ(got->micro[k].token_order.order, expected.micro[k].token_order.order);
        }
    }
    EXPECT_FALSE(prefetcher.next().has_value());
    EXPECT_FALSE(prefetcher.next().has_value());
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
            if (step == 2) throw input_error("row 17 is gone");
            return numbered(step);
        },
        0, 10, 4);
    EXPECT_EQ(prefetcher.next()->labels, 0);
    EXPECT_EQ(prefetcher.next()->labels, 1);
    for (int call = 0; call < 2; ++call)
        toy::expect_contains(toy::message_of(ErrorKind::input, [&] { prefetcher.next(); }), {"row 17 is gone"});
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
