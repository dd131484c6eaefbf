#include "unsloth/rollouts/order.h"

#include <gtest/gtest.h>

#include "common/errors.h"

namespace unsloth::rollouts {
namespace {

config::Config config_of(int64_t rows, int64_t accumulation, int64_t slices, int64_t passes) {
    config::Config config;
    config.training.per_device_train_batch_size = rows;
    config.training.gradient_accumulation_steps = accumulation;
    config.grpo.num_generations = 4;
    config.grpo.steps_per_generation = slices;
    config.grpo.num_iterations = passes;
    return config;
}

/// Generation and slice of each micro-batch; a '*' where a generation begins.
std::string course(const RolloutOrder& order, int64_t micros) {
    std::string text;
    for (int64_t micro = 0; micro < micros; ++micro) {
        const RolloutOrder::Place place = order.place(micro);
        text += cat(place.begins ? " *" : " ", place.generation, ".", place.slice);
    }
    return text;
}

TEST(RolloutOrder, PassesOverAGenerationSliceBySlice) {
    const RolloutOrder order(config_of(4, 2, 3, 2), 1);
    EXPECT_EQ(course(order, 8), " *0.0 0.1 0.2 0.0 0.1 0.2 *1.0 1.1");
    EXPECT_EQ(order.rows(), 12);
    EXPECT_EQ(order.groups(), 3);
    EXPECT_EQ(order.first_micro(4), 6);
}

TEST(RolloutOrder, CountsWholeStepsAndWholeGenerations) {
    const RolloutOrder within(config_of(4, 2, 3, 1), 1);  // generations begin within steps
    EXPECT_EQ(within.steps(2), 3);
    EXPECT_EQ(within.generations(3), 2);
    EXPECT_EQ(within.generations(4), 3);
    const RolloutOrder several(config_of(4, 4, 2, 1), 1);  // two generations a step
    EXPECT_EQ(several.steps(5), 2);
    EXPECT_EQ(several.generations(2), 4);
}

TEST(RolloutOrder, RanksAddRows) {
    const RolloutOrder order(config_of(4, 2, 2, 1), 3);
    EXPECT_EQ(order.rows_each, 12);
    EXPECT_EQ(order.groups(), 6);
}

TEST(RolloutOrder, APartOfAGroupIsRefused) {
    try {
        const RolloutOrder order(config_of(3, 2, 2, 1), 1);
        ADD_FAILURE() << "taken";
    } catch (const Error& error) {
        test::Expected("option.conflict").check(error);
    }
}

}  // namespace
}  // namespace unsloth::rollouts
