#include "unsloth/model/context_parallel.h"

#include "unsloth/core/error.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/ops/rows.h"

namespace unsloth::model {

at::Tensor ContextParallel::part(const at::Tensor& all_GN) const {
    UNSLOTH_CHECK(!alone() && all_GN.size(0) % place_.size == 0, all_GN.size(0), " rows of ", place_.size, " ranks");
    const int64_t each = all_GN.size(0) / place_.size;
    return all_GN.narrow(0, place_.rank * each, each);
}

void ContextParallel::gather(ops::Context& ctx, const at::Tensor& own_TN, const at::Tensor& all_GN,
                             const char* what) const {
    const ops::Region region(ctx, "all-gather cp");
    const at::Tensor own = part(all_GN);
    ops::copy_2d(ctx, own_TN, own.narrow(0, 0, own_TN.size(0)));
    ranks_->all_gather(own, all_GN, what);
}

void ContextParallel::sum_onto_owners(ops::Context& ctx, const at::Tensor& all_GN, const at::Tensor& own_TN,
                                      const char* what) const {
    const ops::Region region(ctx, "reduce-scatter cp");
    const at::Tensor own = part(all_GN);
    ranks_->reduce_scatter(all_GN, own, what);
    ops::copy_2d(ctx, own.narrow(0, 0, own_TN.size(0)), own_TN);
}

void ContextParallel::spread(ops::Context& ctx, const at::Tensor& values, int from, const char* what) const {
    const ops::Region region(ctx, "broadcast cp");
    ranks_->broadcast(values, from, what);
}

}  // namespace unsloth::model
