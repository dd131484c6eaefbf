#include "unsloth/model/tensor_parallel.h"

#include "unsloth/core/error.h"
#include "unsloth/ops/profiler.h"

namespace unsloth::model {

void TensorParallel::sum(ops::Context& ctx, const at::Tensor& terms, const char* what) const {
    if (alone() || !terms.defined()) return;
    const ops::Region region(ctx, "all-reduce tp");
    ranks_->all_reduce(terms, what);
}

void TensorParallel::gather(ops::Context& ctx, const at::Tensor& all_S, const char* what) const {
    if (alone()) return;
    const ops::Region region(ctx, "all-gather tp");
    ranks_->all_gather(all_S[place_.rank], all_S, what);
}

}  // namespace unsloth::model
