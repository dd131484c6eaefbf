// The loss of decisions: a block a row.
//
// A row's loss reads a few logits, so one thread computes it, in double precision. All threads of the block fetch these
// logits and write the gradient's zeros. Ceiling: the bandwidth of memory, once over the row. There is one row for each
// example, so this is a small part of the head's time.
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/decision.h"

namespace unsloth::kernels {
namespace {

constexpr int row_threads = 256;

__global__ void __launch_bounds__(row_threads) decision_kernel(const DecisionLoss p) {
    extern __shared__ float chosen[];  // [W]: logits of the options' tokens
    __shared__ int count;
    float* const row = static_cast<float*>(p.logits.data) + blockIdx.x * p.logits.stride;
    const int32_t* const ids = p.ids + blockIdx.x * p.most;
    const float* const shares = p.shares + blockIdx.x * p.most;
    const int most = static_cast<int>(p.most);
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    int own = 0;
    for (int i = threadIdx.x; i < most; i += row_threads) {
        if (ids[i] < 0) continue;
        chosen[i] = row[ids[i]];
        ++own;
    }
    atomicAdd(&count, own);
    __syncthreads();
    if (p.gradient)
        for (int64_t c = threadIdx.x; c < p.columns; c += row_threads) row[c] = 0.f;
    __syncthreads();  // the zeros come before the gradient
    if (threadIdx.x != 0) return;
    const double scale = p.gradient ? static_cast<double>(p.scalars->inv_loss_divisor * p.scalars->loss_scale) : 0.0;
    const spec::DecisionFigures figures =
        spec::decision_loss(p.rule, chosen, shares, count, [&](int32_t i, double slope) {
            if (p.gradient) row[ids[i]] = static_cast<float>(slope * scale);
        });
    p.losses[blockIdx.x] = static_cast<float>(figures.loss);
    p.brier[blockIdx.x] = static_cast<float>(figures.brier);
    p.accuracy[blockIdx.x] = static_cast<float>(figures.accuracy);
}

__global__ void __launch_bounds__(row_threads) count_decisions_kernel(const CountDecisions p) {
    const double2 sums = block_sums_f64<row_threads>(p.brier, p.accuracy, p.count);
    if (threadIdx.x != 0) return;
    p.measures[0] += static_cast<float>(sums.x);
    p.measures[1] += static_cast<float>(sums.y);
    p.measures[2] += static_cast<float>(p.count);
}

}  // namespace

void decision_loss(const DecisionLoss& p, cudaStream_t stream) {
    if (p.rows == 0) return;
    UNSLOTH_LAUNCH(decision_kernel, static_cast<unsigned>(p.rows), row_threads,
                   static_cast<size_t>(p.most) * sizeof(float), stream, p);
}

void count_decisions(const CountDecisions& p, cudaStream_t stream) {
    UNSLOTH_LAUNCH(count_decisions_kernel, 1, row_threads, 0, stream, p);
}

}  // namespace unsloth::kernels
