// Products by tiled 4-bit weights on Hopper: wgmma whose A operand, the weights, is dequantised in registers,
// and whose B operand, x, comes through TMA. out and x appear transposed: D[rows, tokens] = W xᵀ.
//
// A block makes 128 rows for Tokens tokens: two consumer warpgroups, 64 rows each. Of a third warpgroup one thread
// produces and two warps decode the scales. A stage holds x [Tokens, 64] (128-byte swizzle) and the two tiles of codes.
// A consumer dequantises block i + 1 while the tensor cores work on block i.
//
// Ceiling: what seems to limit it (from counts and a profile, not proven) is shared memory: the tensor cores read x,
// TMA writes it, and the code's lookup is a shuffle, which takes the same path. So scales are decoded once a tile, not
// once a warp.
#include "kernels/nf4_gemm_sm90.cuh"
#include "kernels/tensor_map.h"
#include "unsloth/core/check.h"

namespace unsloth::kernels {
namespace {

using namespace nf4;

template <int Tokens, int Stages, int BlocksPerSm, bool Clustered, bool Transposed, bool Pairs>
__global__ void __launch_bounds__(threads, BlocksPerSm)
    nf4_gemm_sm90_kernel(const __grid_constant__ Problem p, const __grid_constant__ CUtensorMap x_map, int row_blocks,
                         int token_blocks, int cluster_size) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    launch_dependents(p.m);
    extern __shared__ __align__(1024) uint8_t raw[];
    auto& s = *reinterpret_cast<Shared<Tokens, Stages>*>(raw);
    const uint8_t* table = nullptr;  // of pairs, where all weights have one code
    if constexpr (Pairs) {
        bool same = true;
        for (int i = 1; i < p.count; ++i) same &= same_code(p.segments[0], p.segments[i]);
        if (same) {
            fill_pair_table(raw + sizeof(s), p.segments[0].code, static_cast<int>(threadIdx.x) / 32,
                            static_cast<int>(threadIdx.x) % 32, threads / 32);
            table = raw + sizeof(s);
        }
    }
    const int group = static_cast<int>(threadIdx.x) / group_threads;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Stages; ++i) {
            mbarrier_init(shared_address(&s.full[i]), 1);
            mbarrier_init(shared_address(&s.empty[i]), groups * 4);
            mbarrier_init(shared_address(&s.decoded[i]), groups);
        }
        fence_mbarrier_init();
    }
    __syncthreads();

    TileScheduler<Clustered> schedule(row_blocks, token_blocks, cluster_size);
    PipelineState state;
    WorkTile work;
    const int warp = static_cast<int>(threadIdx.x) % group_threads / 32, lane = static_cast<int>(threadIdx.x) % 32;
    if (group == groups) {
        setmaxnreg_dec<40>();
        if (warp == 0) {
            if (lane == 0) {
                if (schedule.next(p, work)) produce_first<Tokens, Stages, Transposed>(p, x_map, s, state, work);
                while (schedule.next(p, work))
                    produce<Tokens, Stages, Transposed>(p, x_map, s, state, work, work.begin);
            }
        } else if (warp <= groups) {
            for (int i = 0; i < p.count; ++i) {
                for (int k = (warp - 1) * 32 + lane; k < 256; k += groups * 32)
                    s.map[i][k] = p.segments[i].nested_map[k];
            }
            named_barrier_sync(2 + groups, groups * 32);
            while (schedule.next(p, work)) decode_scales<Tokens, Stages, Transposed>(p, s, state, work, warp - 1, lane);
        }
    } else {
        setmaxnreg_inc<BlocksPerSm == 1 ? 232 : 96>();
        wait_for_prerequisites();  // what is added to the result
        while (schedule.next(p, work)) {
            Consumer<Tokens, Stages, Transposed, Pairs> consumer{
                p, s, table, group, warp, lane, min(work.row_block * groups + group, p.row_tiles - 1), -1, 0.0F};
            float sums[Tokens / 2];
            if (work.begin == work.end) {
#pragma unroll
                for (float& sum : sums) sum = 0.0F;
            }
            consumer.consume(work, state, sums);
            if constexpr (Clustered) {
                consumer.epilogue_cluster(work, sums, schedule.size, schedule.rank);
            } else {
                consumer.epilogue(work, sums);
            }
        }
    }
#else
    __trap();  // built for another architecture: built_for_hopper() is false
#endif
}

CUtensorMap make_x_map(const Problem& p, int tokens) {
    TensorBox x;
    x.data = p.x;
    x.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    x.box_columns = spec::nf4_tile, x.box_rows = static_cast<uint16_t>(tokens);
    x.rows = p.m, x.columns = (p.blocks - p.tail_blocks) * int64_t{spec::nf4_tile} + p.all_tail;
    x.row_bytes = p.x_stride * static_cast<int64_t>(sizeof(__nv_bfloat16));
    return encode_tensor_map(x);
}

template <int Tokens, int Stages, int BlocksPerSm, bool Clustered, bool Transposed, bool Pairs = false>
void launch(const Problem& p, int split, cudaStream_t stream) {
    const int row_blocks = static_cast<int>(ceil_div(p.row_tiles, groups));
    const int token_blocks = static_cast<int>(ceil_div(p.m, Tokens));
    const int tiles = row_blocks * token_blocks;
    // a cluster makes one tile; blocks that work alone stay and make several
    const int blocks = Clustered ? tiles * split : std::min(tiles, multiprocessor_count() * BlocksPerSm);
    launch_kernel(nf4_gemm_sm90_kernel<Tokens, Stages, BlocksPerSm, Clustered, Transposed, Pairs>,
                  {.grid = dim3(static_cast<unsigned>(blocks)),
                   .threads = threads,
                   .shared_bytes = sizeof(Shared<Tokens, Stages>) + (Pairs ? pair_table_bytes : 0),
                   .stream = stream,
                   .cluster = split,
                   .after_previous = uses_programmatic_launch(p.m)},
                  p, make_x_map(p, Tokens), row_blocks, token_blocks, split);
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

template <int Tokens, int Stages>
void launch_pairs(const Problem& p, int split, cudaStream_t stream) {
    split > 1 ? launch<Tokens, Stages, 1, true, false, true>(p, split, stream)
              : launch<Tokens, Stages, 1, false, false, true>(p, 1, stream);
}

}  // namespace

bool nf4_gemm_sm90_has(Nf4GemmSm90Form form) {
    if (form.pairs) return (form.tokens == 64 || form.tokens == 128) && form.split >= 1 && form.split <= most_split;
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
    if (form.pairs) {
        UNSLOTH_CHECK(!t, "nf4_gemm_sm90: pairs are for the forward product");
        return form.tokens == 64 ? launch_pairs<64, 8>(p, form.split, stream)
                                 : launch_pairs<128, 5>(p, form.split, stream);
    }
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
