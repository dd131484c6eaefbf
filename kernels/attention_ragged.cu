// The small kernels around cuDNN's packed attention: ragged offsets from segment offsets, and gradients back
// to their strided rows (bound by the bandwidth of memory).
#include <algorithm>

#include "kernels/attention_cudnn.h"
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"

namespace unsloth::kernels {
namespace {

constexpr int threads = 256;

__device__ int offset_of(const int32_t* offsets, int one, int sequences, int i) {
    if (offsets == nullptr) return i > 0 ? one : 0;
    return offsets[min(i, sequences)];
}

__global__ void setup_kernel(RaggedSetup s) {
    const auto of_queries = [&](int i) { return offset_of(s.offsets, s.one_queries, s.sequences, i); };
    const auto of_keys = [&](int i) { return offset_of(s.key_offsets, s.one_keys, s.sequences, i); };
    for (int i = blockIdx.x * threads + threadIdx.x; i <= s.batch; i += gridDim.x * threads) {
        const int64_t begin = of_queries(i), keys = of_keys(i);
        for (int m = 0; m < s.arrays; ++m)
            s.offsets_out[m * (s.batch + int64_t{1}) + i] = (s.of_keys[m] ? keys : begin) * s.multiplier[m];
        if (i >= s.batch) continue;
        s.lengths_out[i] = of_queries(i + 1) - static_cast<int>(begin);
        s.lengths_out[s.batch + i] = of_keys(i + 1) - static_cast<int>(keys);
    }
}

struct Copies {
    GradientCopy of[3];
};

/// One block a token; blockIdx.y names the tensor.
__global__ void __launch_bounds__(threads) copy_kernel(Copies copies, int head_dim) {
    const GradientCopy& copy = copies.of[blockIdx.y];
    if (blockIdx.x >= copy.tokens) return;
    const int packs = head_dim / 8, all = copy.heads * packs;
    const int64_t token = blockIdx.x;
    const uint4* source = static_cast<const uint4*>(copy.source) + token * all;
    uint4* target = static_cast<uint4*>(copy.target.data) + token * (copy.target.row_stride / 8);
    for (int i = threadIdx.x; i < all; i += threads)
        target[(i / packs) * (copy.target.head_stride / 8) + i % packs] = source[i];
}

}  // namespace

void ragged_setup(const RaggedSetup& setup, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>(ceil_div(setup.batch + 1, threads));
    UNSLOTH_LAUNCH(setup_kernel, blocks, threads, 0, stream, setup);
}

void copy_gradients(const GradientCopy (&copies)[3], int head_dim, cudaStream_t stream) {
    Copies all{{copies[0], copies[1], copies[2]}};
    const int64_t tokens = std::max({copies[0].tokens, copies[1].tokens, copies[2].tokens});
    UNSLOTH_LAUNCH(copy_kernel, dim3(static_cast<unsigned>(tokens), 3), threads, 0, stream, all, head_dim);
}

}  // namespace unsloth::kernels
