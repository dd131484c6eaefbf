// The product of 8-bit codes with a bf16 tail, for Hopper.
//
// Persistent blocks of three warpgroups: a producer and two consumers, 128 rows by Columns columns a tile. The producer
// thread fills a ring of stages in shared memory by TMA. A stage is 128 bytes of K: 128 codes of x (128 rows) and of w
// (Columns rows), or, at the end of a tile, 16, 32 or 64 columns of u and b in bf16. The last stage of codes also
// brings the column scales. Two blocks of a cluster take tiles below one another and fetch half of w each, for both
// (multicast).
//
// Each consumer warpgroup keeps 64 rows of a tile in registers. Sums of e4m3 codes stay in the tensor cores'
// accumulators for all of K. int8 codes have a scale for each row of x and 256 of K, which comes with the last of their
// stages: the exact sums of such a block are converted, scaled and added up in fp32, by one warpgroup while the other's
// block is on the tensor cores. The epilogue multiplies by what scales are left, adds the tail's product and writes the
// rounded results to shared memory, where one more thread has put the residual before and stores them by TMA.
//
// Ceiling: the tensor cores' 8-bit rate at the clock that the card's power limit leaves (docs/performance).
#include "kernels/coded_gemm_sm90.cuh"
#include "kernels/coded_gemm_sm90.h"
#include "kernels/common/launch.h"
#include "kernels/tensor_map.h"
#include "unsloth/core/check.h"

namespace unsloth::kernels {
namespace {

using namespace coded_sm90;

template <class S>
__global__ void __launch_bounds__(threads, 1) coded_gemm_kernel(const __grid_constant__ Params p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    constexpr int Cluster = S::Cluster;
    extern __shared__ __align__(1024) uint8_t raw[];
    const Shared<S> shared{shared_address(raw)};
    if (shared.base % 1024 != 0) __trap();  // swizzled boxes need it, and no room is left to align
    const uint32_t rank = Cluster == 1 ? 0 : cluster_rank();
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < S::stages; ++slot) {
            mbarrier_init(shared.full(slot), 1);
            mbarrier_init(shared.empty(slot), Cluster * 8);  // warps that multiply
        }
        for (int group = 0; group < 2; ++group) {
            mbarrier_init(shared.ready(group), 1);
            mbarrier_init(shared.written(group), 4);
        }
        fence_mbarrier_init();
    }
    if (Cluster == 1)
        __syncthreads();
    else
        cluster_sync();
    if (threadIdx.x < 128) {
        setmaxnreg_dec<40>();
        if (threadIdx.x == 0) {
            prefetch_tensormap(p.x), prefetch_tensormap(p.w), prefetch_tensormap(p.scale), prefetch_tensormap(p.u),
                prefetch_tensormap(p.b), prefetch_tensormap(p.row_scale);
            produce(p, shared, rank);
        } else if (threadIdx.x == 32 || threadIdx.x == 64) {
            prefetch_tensormap(p.y), prefetch_tensormap(p.residual);
            move_epilogue(p, shared, rank, threadIdx.x / 32 - 1);
        }
    } else {
        setmaxnreg_inc<232>();
        Consumer<S> consumer{p, shared, rank};
        consumer.consume();
    }
    // A block's shared memory and barriers are its neighbour's to write until both are done.
    if (Cluster > 1) {
        __syncwarp();
        cluster_sync();
    }
#else
    __trap();  // built for another architecture: coded_gemm_sm90_built() is false
#endif
}

template <class S>
Params make_params(TensorMaps& maps, const CodedGemmCase& c, const CodedTile& tile) {
    const auto codes = [&](const void* data, int64_t rows, int box_rows) {
        return maps.get(
            {data, CU_TENSOR_MAP_DATA_TYPE_UINT8, stage_k, static_cast<uint16_t>(box_rows), rows, c.k, c.k});
    };
    Params p{};
    p.tail_columns = c.rank <= 16 ? 16 : c.rank <= 32 ? 32 : 64;
    p.tail_stages = static_cast<int>(ceil_div(c.rank, p.tail_columns));
    const auto thin = [&](const void* data, int64_t rows, int64_t stride, int box_rows) {
        return maps.get({data, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<uint16_t>(p.tail_columns),
                         static_cast<uint16_t>(box_rows), rows, c.rank, stride * 2});
    };
    p.x = codes(c.x, c.m, tile_rows);
    p.w = codes(c.w, c.n, S::Columns / S::Cluster);
    p.u = p.x, p.b = p.w;  // any descriptor: without a tail they are not used, but fetched ahead
    if (c.rank > 0) {
        p.u = thin(c.u, c.m, c.u_stride, tile_rows);
        p.b = thin(c.b, c.n, c.b_stride, S::Columns / S::Cluster);
    }
    p.scale = maps.get({c.sw, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, S::Columns, 0, 1, c.n, 0});
    p.sx = c.sx;
    p.row_scale = p.scale;
    if (S::int8) {
        p.row_scale = maps.get(
            {c.sx, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, tile_rows, 0, 1, ceil_div(c.k, int8_block) * c.sx_stride, 0});
        p.row_scale_stride = static_cast<int>(c.sx_stride);
    }
    const auto results = [&](const void* data, int64_t stride) {
        return maps.get({data, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, box_columns, group_rows, c.m, c.n, stride * 2});
    };
    p.y = results(c.y, c.y_stride);
    p.has_residual = c.residual != nullptr;
    p.residual = p.has_residual ? results(c.residual, c.residual_stride) : p.y;
    p.bias = static_cast<const __nv_bfloat16*>(c.bias);
    p.rows = static_cast<int>(c.m);
    p.columns = static_cast<int>(c.n);
    p.stages_k = std::max(static_cast<int>(ceil_div(c.k, stage_k)), S::least_stages);
    p.row_groups = static_cast<int>(ceil_div(c.m, tile_rows * S::Cluster));
    p.column_tiles = static_cast<int>(ceil_div(c.n, S::Columns));
    p.band = tile.band;
    return p;
}

template <CodeFormat Format, int Columns, int Cluster>
void launch(TensorMaps& maps, const CodedGemmCase& c, const CodedTile& tile, cudaStream_t stream) {
    using S = Shape<Format, Columns, Cluster>;
    const Params p = make_params<S>(maps, c, tile);
    const int clusters = std::min(p.row_groups * p.column_tiles, multiprocessor_count() / Cluster);
    launch_kernel(coded_gemm_kernel<S>,
                  {.grid = dim3(static_cast<unsigned>(clusters * Cluster)),
                   .threads = threads,
                   .shared_bytes = S::shared_bytes,
                   .stream = stream,
                   .cluster = Cluster},
                  p);
}

struct Built {
    CodeFormat format;
    CodedTile tile;
    void (*launch)(TensorMaps&, const CodedGemmCase&, const CodedTile&, cudaStream_t);
};

template <CodeFormat Format, int Columns, int Cluster>
constexpr Built build() {
    return {Format, {Columns, Cluster}, launch<Format, Columns, Cluster>};
}

constexpr CodeFormat e4m3 = CodeFormat::e4m3, int8 = CodeFormat::int8;
const Built built[] = {build<e4m3, 256, 2>(), build<e4m3, 256, 1>(), build<e4m3, 192, 2>(), build<e4m3, 192, 1>(),
                       build<e4m3, 128, 2>(), build<e4m3, 128, 1>(), build<int8, 192, 2>(), build<int8, 192, 1>(),
                       build<int8, 128, 2>(), build<int8, 128, 1>()};

}  // namespace

std::vector<CodedTile> coded_gemm_tiles(CodeFormat format) {
    std::vector<CodedTile> tiles;
    for (const Built& kernel : built)
        if (kernel.format == format) tiles.push_back(kernel.tile);
    return tiles;
}

bool coded_gemm_sm90_built() {
    // A kernel without its body needs next to no registers.
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, coded_gemm_kernel<Shape<e4m3, 128, 1>>) != cudaSuccess) {
        cudaGetLastError();  // no image for this card: clear the error
        return false;
    }
    return attributes.binaryVersion == 90 && attributes.numRegs > 64;
}

bool coded_gemm_sm90_takes(const CodedGemmCase& c) {
    if (c.format == CodeFormat::e4m3) return coded_gemm_aligned(c);
    return coded_gemm_aligned(c) && reinterpret_cast<uintptr_t>(c.sx) % 16 == 0 && c.sx_stride >= c.m &&
           c.sx_stride % 4 == 0 && c.sx_stride * ceil_div(c.k, int8_block) < int64_t{1} << 31;
}

struct CodedGemmSm90::Impl {
    TensorMaps maps;
};

CodedGemmSm90::CodedGemmSm90() : impl_(std::make_unique<Impl>()) {}
CodedGemmSm90::~CodedGemmSm90() = default;

void CodedGemmSm90::run(const CodedGemmCase& c, const CodedTile& tile, cudaStream_t stream) {
    UNSLOTH_CHECK(coded_gemm_sm90_takes(c), "gemm of 8-bit codes: m ", c.m, " n ", c.n, " k ", c.k, " rank ", c.rank,
                  " strides ", c.u_stride, ", ", c.b_stride, ", ", c.residual_stride, ", ", c.y_stride);
    for (const Built& kernel : built) {
        const CodedTile& t = kernel.tile;
        if (kernel.format == c.format && t.columns == tile.columns && t.cluster == tile.cluster)
            return kernel.launch(impl_->maps, c, tile, stream);
    }
    UNSLOTH_CHECK(false, "gemm of 8-bit codes: no tile of ", tile.columns, " columns, cluster ", tile.cluster);
}

}  // namespace unsloth::kernels
