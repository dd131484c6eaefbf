#include "unsloth/model/tensor_parallel.h"

#include "unsloth/core/error.h"
#include "unsloth/ops/profiler.h"

namespace unsloth::model {

at::Tensor TensorParallel::own(const at::Tensor& rows) const {
    if (alone() || !rows.defined()) return rows;
    const int64_t each = rows.size(0) / place_.size;
    UNSLOTH_CHECK(each * place_.size == rows.size(0), rows.size(0), " rows for ", place_.size, " ranks");
    return rows.narrow(0, place_.rank * each, each);
}

void TensorParallel::sum(ops::Context& ctx, const at::Tensor& terms, const char* what) const {
    if (alone()) return;
    const ops::Region region(ctx, "all-reduce tp");
    ranks_->all_reduce(terms, what);
}

void TensorParallel::gather(ops::Context& ctx, const at::Tensor& rows, const char* what) const {
    if (alone()) return;
    const ops::Region region(ctx, "all-gather tp");
    ranks_->all_gather(own(rows), rows, what);
}

void TensorParallel::reduce_scatter(ops::Context& ctx, const at::Tensor& terms, const at::Tensor& own,
                                    const char* what) const {
    const ops::Region region(ctx, "reduce-scatter tp");
    ranks_->reduce_scatter(terms, own, what);
}

}  // namespace unsloth::model
