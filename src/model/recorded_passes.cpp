#include "unsloth/model/recorded_passes.h"

#include <algorithm>

namespace unsloth::model {

void RecordedPasses::choose(const ops::Context& ctx, const std::vector<const MicroBatch*>& in_flight) {
    chosen_ = nullptr;
    const auto address = [](const void* p) { return static_cast<int64_t>(reinterpret_cast<std::intptr_t>(p)); };
    if (const auto& cached = in_flight.front()->inputs().cached) {  // rows of one token: their lengths are read there
        const ops::PagedRows& rows = cached->going_on;
        if (rows.decoding == in_flight.front()->tokens())
            chosen_ = by_shape_.use({rows.decoding, ops::planned_length(rows),
                                     in_flight.front()->inputs().adapter_T.defined() ? 1 : 0, address(ctx.outcome)});
        return;
    }
    const bool equal_rows = std::all_of(in_flight.begin(), in_flight.end(),
                                        [](const MicroBatch* micro) { return micro->inputs().segments.uniform; });
    if (!equal_rows) return;
    std::vector<int64_t> key{address(ctx.scalars), address(ctx.outcome)};
    for (const MicroBatch* micro : in_flight) {
        key.push_back(micro->tokens());
        key.push_back(micro->inputs().segments.count());
    }
    chosen_ = by_shape_.use(key);
}

void RecordedPasses::issue(ops::Context& ctx, Direction direction, weights::WeightProvider& weight_provider,
                           PassCounts& counts, const std::function<void()>& work) {
    if (chosen_ == nullptr) return work();
    Recording& recording = chosen_->at(static_cast<std::size_t>(direction));
    if (!recording.work) {
        if (direction == Direction::forward)
            weight_provider.forget();  // what the slot holds now, it may not hold next time
        const PassCounts before = counts;
        recording.work = ops::CudaGraph::capture(ctx, work);
        recording.leaves_held = weight_provider.held();
        recording.counts = counts - before;
        counts = before;
        ++counts.recorded;
    }
    recording.work->launch(ctx);
    counts = counts + recording.counts;
    ++counts.replayed;
    weight_provider.assume_held(recording.leaves_held);
}

}  // namespace unsloth::model
