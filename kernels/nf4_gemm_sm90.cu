// Products by tiled 4-bit weights on Hopper: wgmma whose A operand, the weights, is dequantised in registers,
// and whose B operand, x, comes through TMA. out and x appear transposed: D[rows, tokens] = W xᵀ.
//
// A block makes 128 rows for Tokens tokens: two warpgroups multiply, 64 rows each. Of a third, one thread
// keeps the pipeline full and two warps decode the scales. A stage holds x [Tokens, 64] (128-byte swizzle)
// and the two tiles of codes. A multiplying warpgroup dequantises block i + 1 while the tensor cores work on
// block i.
//
// What seems to limit it (from counts and a profile, not proven) is shared memory: the tensor cores read x, the
// copy engine writes it, and the code's lookup is a shuffle, which takes the same path. So scales are decoded
// once a tile, not once a warp.
#include <cudaTypedefs.h>

#include "kernels/nf4_gemm_sm90.cuh"
#include "unsloth/core/error.h"

namespace unsloth::kernels {
namespace {

using namespace nf4;

template <int Tokens, int Stages, int BlocksPerSm, bool Clustered, bool Transposed>
__global__ void __launch_bounds__(threads, BlocksPerSm)
    multiply_tiles_sm90(const __grid_constant__ Problem p, const __grid_constant__ CUtensorMap x_map, int row_blocks,
                        int token_blocks, int cluster_size) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    auto& s = *reinterpret_cast<Shared<Tokens, Stages>*>(raw);
    const int group = static_cast<int>(threadIdx.x) / group_threads;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Stages; ++i) {
            sm90::barrier_init(shared_address(&s.full[i]), 1);
            sm90::barrier_init(shared_address(&s.empty[i]), groups * 4);
            sm90::barrier_init(shared_address(&s.decoded[i]), groups);
        }
        sm90::barrier_init_fence();
    }
    __syncthreads();

    Schedule<Clustered> schedule(row_blocks, token_blocks, cluster_size);
    Ring<Stages> ring;
    Work work;
    const int warp = static_cast<int>(threadIdx.x) % group_threads / 32, lane = static_cast<int>(threadIdx.x) % 32;
    if (group == groups) {
        sm90::shrink_registers<40>();
        if (warp == 0) {
            if (lane == 0) {
                while (schedule.next(p, work)) produce<Tokens, Stages, Transposed>(p, &x_map, s, ring, work);
            }
        } else if (warp <= groups) {
            for (int i = 0; i < p.count; ++i) {
                for (int k = (warp - 1) * 32 + lane; k < 256; k += groups * 32)
                    s.map[i][k] = p.segments[i].nested_map[k];
            }
            sm90::named_barrier(2 + groups, groups * 32);
            while (schedule.next(p, work)) decode_scales<Tokens, Stages, Transposed>(p, s, ring, work, warp - 1, lane);
        }
    } else {
        sm90::grow_registers<BlocksPerSm == 1 ? 232 : 96>();
        while (schedule.next(p, work)) {
            Multiplier<Tokens, Stages, Transposed> m{
                p, s, group, warp, lane, min(work.row_block * groups + group, p.row_tiles - 1), -1, 0.0F};
            float sums[Tokens / 2];
            if (work.begin == work.end) {
#pragma unroll
                for (float& sum : sums) sum = 0.0F;
            }
            m.run(work, ring, sums);
            if constexpr (Clustered) {
                m.store_shared(work, sums, schedule.size, schedule.rank);
            } else {
                m.store(work, sums);
            }
        }
    }
#endif
}

/// The driver's function that encodes tensor maps, found through the runtime: nothing links libcuda.
PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
    static const auto encoder = [] {
        void* entry = nullptr;
        cudaDriverEntryPointQueryResult found{};
        UNSLOTH_CUDA_CHECK(
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
        if (found != cudaDriverEntryPointSuccess)
            throw runtime_failure("CUDA: the driver has no cuTensorMapEncodeTiled",
                                  "Update the driver to 525 or later.");
        return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
    }();
    return encoder;
}

CUtensorMap make_x_map(const Problem& p, int tokens) {
    CUtensorMap map{};
    const cuuint64_t columns = static_cast<cuuint64_t>((p.blocks - p.tail_blocks) * int64_t{nf4_tile} + p.tail);
    const cuuint64_t sizes[2] = {columns, static_cast<cuuint64_t>(p.m)};
    const cuuint64_t strides[1] = {static_cast<cuuint64_t>(p.x_stride) * sizeof(__nv_bfloat16)};
    const cuuint32_t box[2] = {nf4_tile, static_cast<cuuint32_t>(tokens)};
    const cuuint32_t steps[2] = {1, 1};
    const CUresult status =
        tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<__nv_bfloat16*>(p.x), sizes, strides,
                             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    UNSLOTH_CHECK(status == CUDA_SUCCESS, "cuTensorMapEncodeTiled returned ", static_cast<int>(status), " for [", p.m,
                  ", ", columns, "], row stride ", p.x_stride);
    return map;
}

template <int Tokens, int Stages, int BlocksPerSm, bool Clustered, bool Transposed>
void launch(const Problem& p, int split, cudaStream_t stream) {
    const auto kernel = multiply_tiles_sm90<Tokens, Stages, BlocksPerSm, Clustered, Transposed>;
    constexpr std::size_t bytes = sizeof(Shared<Tokens, Stages>);
    UNSLOTH_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    const int row_blocks = static_cast<int>(ceil_div(p.row_tiles, groups));
    const int token_blocks = static_cast<int>(ceil_div(p.m, Tokens));
    const int works = row_blocks * token_blocks;

    cudaLaunchConfig_t config{};
    // a cluster makes one tile; blocks that work alone stay and make several
    config.gridDim =
        dim3(static_cast<unsigned>(Clustered ? works * split : std::min(works, multiprocessor_count() * BlocksPerSm)));
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(split);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.attrs = &cluster;
    config.numAttrs = Clustered ? 1 : 0;
    const CUtensorMap map = make_x_map(p, Tokens);
    UNSLOTH_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, p, map, row_blocks, token_blocks, split));
}

template <int Tokens, int Stages, int BlocksPerSm, bool Clustered>
void launch(const Problem& p, bool transposed, int split, cudaStream_t stream) {
    transposed ? launch<Tokens, Stages, BlocksPerSm, Clustered, true>(p, split, stream)
               : launch<Tokens, Stages, BlocksPerSm, Clustered, false>(p, split, stream);
}

template <int Tokens, int Stages, int BlocksPerSm>
void launch(const Problem& p, bool transposed, int split, cudaStream_t stream) {
    split > 1 ? launch<Tokens, Stages, BlocksPerSm, true>(p, transposed, split, stream)
              : launch<Tokens, Stages, BlocksPerSm, false>(p, transposed, split, stream);
}

}  // namespace

bool nf4_gemm_sm90_has(Nf4GemmSm90Form form) {
    switch (form.tokens) {
        case 16:
        case 32:
        case 64:
        case 128:
            return form.split >= 1 && form.split <= most_split;
        case 256:
            return form.split == 1;
        default:
            return false;
    }
}

void nf4_gemm_sm90(const Nf4GemmArgs& args, Nf4GemmSm90Form form, cudaStream_t stream) {
    UNSLOTH_CHECK(nf4_gemm_supported(args), "nf4_gemm_sm90: unsupported arguments");
    UNSLOTH_CHECK(nf4_gemm_sm90_has(form), "nf4_gemm_sm90: no form of ", form.tokens, " tokens split by ", form.split);
    if (args.m == 0) return;
    const Problem p = make_problem(args);
    const bool t = args.transposed;
    switch (form.tokens) {
        case 16:
            return launch<16, 8, 2>(p, t, form.split, stream);
        case 32:
            return launch<32, 8, 2>(p, t, form.split, stream);
        case 64:
            return launch<64, 8, 1>(p, t, form.split, stream);
        case 128:
            return launch<128, 6, 1>(p, t, form.split, stream);
        default:
            return launch<256, 4, 1, false>(p, t, 1, stream);
    }
}

}  // namespace unsloth::kernels
