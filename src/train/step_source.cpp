#include "unsloth/train/step_source.h"

#include <utility>

#include "unsloth/core/error.h"

namespace unsloth::train {

data::StepBatch RowSource::next(int64_t step) {
    if (!ahead_) {
        ahead_.emplace([this](int64_t number) { return rows_.step(number); }, step - 1, last_);
        expected_ = step;
    }
    UNSLOTH_CHECK(step == expected_ && step <= last_, "step ", step, " of ", last_, " after step ", expected_ - 1);
    ++expected_;
    return *ahead_->next();
}

}  // namespace unsloth::train
