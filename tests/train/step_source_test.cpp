#include "unsloth/train/step_source.h"

#include <gtest/gtest.h>

#include "data/toy.h"

namespace unsloth::train {
namespace {

/// Of 11 rows, two a micro-batch, two micro-batches a step: three steps an epoch.
data::StepLoader loader() {
    return {data::Dataset::from_samples(toy::samples(11, 4)),
            {.per_device_train_batch_size = 2, .gradient_accumulation_steps = 2, .shuffle = false}};
}

using Rows = std::vector<int64_t>;

Rows rows_of(const data::StepBatch& step) {
    Rows rows;
    for (const data::Batch& batch : step.micro) rows.insert(rows.end(), batch.rows.begin(), batch.rows.end());
    return rows;
}

TEST(RowSource, BeginsWithTheStepThatIsAskedForFirst) {
    data::StepLoader rows = loader();
    RowSource source(rows, /*last=*/4);
    EXPECT_EQ(rows_of(source.next(2)), (Rows{4, 5, 6, 7}));
    EXPECT_EQ(rows_of(source.next(3)), (Rows{8, 9, 10}));
    EXPECT_EQ(rows_of(source.next(4)), (Rows{0, 1, 2, 3})) << "of the next epoch";
}

TEST(RowSource, GivesEachStepOnceAndNoneAfterTheLast) {
    data::StepLoader rows = loader();
    RowSource source(rows, /*last=*/2);
    source.next(1);
    EXPECT_THROW(source.next(1), CheckError);
    source.next(2);
    EXPECT_THROW(source.next(3), CheckError);
    RowSource none(rows, /*last=*/2);
    EXPECT_THROW(none.next(3), CheckError);
}

}  // namespace
}  // namespace unsloth::train
