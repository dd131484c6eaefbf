// The e4m3 product with a bf16 tail, for Hopper.
//
// Persistent blocks of three warpgroups: a producer and two consumers, 128 rows by Columns columns a tile. The producer
// thread fills a ring of stages in shared memory by TMA. A stage is 128 bytes of K: 128 codes of x (128 rows) and of w
// (Columns rows), or, at the end of a tile, 16, 32 or 64 columns of u and b in bf16. The last stage of codes also
// brings the column scales. Two blocks of a cluster take tiles below one another and fetch half of w each, for both
// (multicast).
//
// Each consumer warpgroup keeps 64 rows of a tile in registers: sums of codes; its epilogue multiplies by the scales,
// adds the tail's product and writes the rounded results to shared memory, where one more thread has put the residual
// before and stores them by TMA.
//
// Ceiling: the tensor cores' e4m3 rate at the clock that the card's power limit leaves (docs/benchmarks.md).
#include "kernels/common/launch.h"
#include "kernels/fp8_gemm_sm90.cuh"
#include "kernels/fp8_gemm_sm90.h"
#include "kernels/tensor_map.h"
#include "unsloth/core/error.h"

namespace unsloth::kernels {
namespace {

using namespace fp8_sm90;

template <class S>
__global__ void __launch_bounds__(threads, 1) fp8_gemm_kernel(const __grid_constant__ Params p) {
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
                prefetch_tensormap(p.b);
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
    __trap();  // built for another architecture: fp8_gemm_sm90_built() is false
#endif
}

template <class S>
Params make_params(TensorMaps& maps, const Fp8GemmCase& c, const Fp8Tile& tile) {
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

template <int Columns, int Cluster>
void launch(TensorMaps& maps, const Fp8GemmCase& c, const Fp8Tile& tile, cudaStream_t stream) {
    using S = Shape<Columns, Cluster>;
    const Params p = make_params<S>(maps, c, tile);
    const int clusters = std::min(p.row_groups * p.column_tiles, multiprocessor_count() / Cluster);
    launch_kernel(fp8_gemm_kernel<S>,
                  {.grid = dim3(static_cast<unsigned>(clusters * Cluster)),
                   .threads = threads,
                   .shared_bytes = S::shared_bytes,
                   .stream = stream,
                   .cluster = Cluster},
                  p);
}

struct Built {
    Fp8Tile tile;
    void (*launch)(TensorMaps&, const Fp8GemmCase&, const Fp8Tile&, cudaStream_t);
};

template <int Columns, int Cluster>
constexpr Built build() {
    return {{Columns, Cluster}, launch<Columns, Cluster>};
}

const Built built[] = {build<256, 2>(), build<256, 1>(), build<192, 2>(),
                       build<192, 1>(), build<128, 2>(), build<128, 1>()};

}  // namespace

std::vector<Fp8Tile> fp8_gemm_tiles() {
    std::vector<Fp8Tile> tiles;
    for (const Built& kernel : built) tiles.push_back(kernel.tile);
    return tiles;
}

bool fp8_gemm_sm90_built() {
    // A kernel without its body needs next to no registers.
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, fp8_gemm_kernel<Shape<128, 1>>) != cudaSuccess) {
        cudaGetLastError();  // no image for this card: leave no error behind
        return false;
    }
    return attributes.binaryVersion == 90 && attributes.numRegs > 64;
}

bool fp8_gemm_sm90_takes(const Fp8GemmCase& c) {
    constexpr int64_t most = int64_t{1} << 31;
    const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
    const bool tail =
        c.rank == 0 || (c.rank % 8 == 0 && aligned(c.u) && aligned(c.b) && c.u_stride % 8 == 0 && c.b_stride % 8 == 0);
    const bool residual = !c.residual || (aligned(c.residual) && c.residual_stride % 8 == 0);
    return c.n % 8 == 0 && c.k % 16 == 0 && c.m < most && c.n < most && c.k < most && aligned(c.x) && aligned(c.w) &&
           aligned(c.sw) && aligned(c.y) && c.y_stride % 8 == 0 && tail && residual;
}

struct Fp8GemmSm90::Impl {
    TensorMaps maps;
};

Fp8GemmSm90::Fp8GemmSm90() : impl_(std::make_unique<Impl>()) {}
Fp8GemmSm90::~Fp8GemmSm90() = default;

void Fp8GemmSm90::run(const Fp8GemmCase& c, const Fp8Tile& tile, cudaStream_t stream) {
    UNSLOTH_CHECK(fp8_gemm_sm90_takes(c), "fp8 gemm: m ", c.m, " n ", c.n, " k ", c.k, " rank ", c.rank, " strides ",
                  c.u_stride, ", ", c.b_stride, ", ", c.residual_stride, ", ", c.y_stride);
    for (const Built& kernel : built) {
        const Fp8Tile& t = kernel.tile;
        if (t.columns == tile.columns && t.cluster == tile.cluster) return kernel.launch(impl_->maps, c, tile, stream);
    }
    UNSLOTH_CHECK(false, "fp8 gemm: no tile of ", tile.columns, " columns, cluster ", tile.cluster);
}

}  // namespace unsloth::kernels
