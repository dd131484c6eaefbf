// Products whose rows belong to experts, on tensor cores (mma.sync, sm_80 and newer) for bf16 and f16 whose rows allow
// 16-byte accesses, and one element a thread for everything else. A block makes a tile of one expert's rows; which
// expert and which tile it finds from the ends, so that the host need not know them. Ceiling: for few rows an expert
// the bandwidth of memory, as every expert's weights are read once; for many about half of what wgmma reaches.
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/mma.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/expert_tiles.cuh"
#include "kernels/grouped_gemm.h"

namespace unsloth::kernels {

namespace {

/// How a block of kWarpsM x kWarpsN warps makes a tile of kM x kN elements, kK of the sum at a time.
template <int kM_, int kN_, int kK_, int kWarpsM_, int kWarpsN_, int kStages_>
struct Tiling {
    static constexpr int kM = kM_, kN = kN_, kK = kK_, kWarpsM = kWarpsM_, kWarpsN = kWarpsN_, kStages = kStages_;
    static constexpr int kThreads = kWarpsM * kWarpsN * warp_size;
    static constexpr int kFragmentsM = kM / kWarpsM / 16, kFragmentsN = kN / kWarpsN / 8;
    static_assert(kFragmentsM * kWarpsM * 16 == kM && kFragmentsN * kWarpsN * 8 == kN && kFragmentsN % 2 == 0);
    static_assert(kK % 16 == 0);
};
using WideTiling = Tiling<128, 128, 32, 2, 4, 4>;
using MiddleTiling = Tiling<64, 64, 64, 2, 2, 3>;
using FewRowsTiling = Tiling<16, 64, 64, 1, 4, 4>;

/// sums += a bᵀ over `inner` of the sum. The fragments are those of mma_m16n8k16, by warp.
template <class T, class Tile, class A, class B>
__device__ __forceinline__ void multiply(const A& a, const B& b, int first_m, int first_n, int inner, uint32_t shared,
                                         float (&sums)[Tile::kFragmentsM][Tile::kFragmentsN][4]) {
    constexpr int stages = Tile::kStages, stage_bytes = A::kBytes + B::kBytes;
    const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    const int warp_m = warp / Tile::kWarpsN * (Tile::kM / Tile::kWarpsM);
    const int warp_n = warp % Tile::kWarpsN * (Tile::kN / Tile::kWarpsN);
    const int steps = (inner + Tile::kK - 1) / Tile::kK;
    const auto load = [&](int step) {
        if (step < steps) {
            const uint32_t to = shared + step % stages * stage_bytes;
            a.template load<Tile::kThreads>(to, first_m, step * Tile::kK);
            b.template load<Tile::kThreads>(to + A::kBytes, first_n, step * Tile::kK);
        }
        cp_async_commit_group();
    };
    for (int step = 0; step < stages - 1; ++step) load(step);
    for (int step = 0; step < steps; ++step) {
        cp_async_wait_group<stages - 2>();
        __syncthreads();  // this step's tiles are there, and no thread reads those of the step before
        load(step + stages - 1);
        const uint32_t of_a = shared + step % stages * stage_bytes, of_b = of_a + A::kBytes;
#pragma unroll
        for (int k = 0; k < Tile::kK; k += 16) {
            uint32_t left[Tile::kFragmentsM][4], right[Tile::kFragmentsN / 2][4];
#pragma unroll
            for (int m = 0; m < Tile::kFragmentsM; ++m)
                A::template fragments<true>(left[m], of_a, warp_m + m * 16, k, lane);
#pragma unroll
            for (int n = 0; n < Tile::kFragmentsN / 2; ++n)
                B::template fragments<false>(right[n], of_b, warp_n + n * 16, k, lane);
#pragma unroll
            for (int m = 0; m < Tile::kFragmentsM; ++m)
#pragma unroll
                for (int n = 0; n < Tile::kFragmentsN; ++n)
                    mma_m16n8k16<T>(sums[m][n], left[m], right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]);
        }
    }
    cp_async_wait_group<0>();
}

/// write(row, column, two neighbouring sums) for each of this thread's, in the tile's numbers; columns are even.
template <class Tile, class Write>
__device__ __forceinline__ void for_each_pair(const float (&sums)[Tile::kFragmentsM][Tile::kFragmentsN][4],
                                              const Write& write) {
    const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    const int first_m = warp / Tile::kWarpsN * (Tile::kM / Tile::kWarpsM) + lane / 4;
    const int first_n = warp % Tile::kWarpsN * (Tile::kN / Tile::kWarpsN) + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < Tile::kFragmentsM; ++m)
#pragma unroll
        for (int n = 0; n < Tile::kFragmentsN; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                write(first_m + m * 16 + half * 8, first_n + n * 8, sums[m][n][half * 2], sums[m][n][half * 2 + 1]);
}

template <class T, class Tile, bool kTranspose>
__global__ void __launch_bounds__(Tile::kThreads) grouped_gemm_kernel(const GroupedGemm p, unsigned tiles_n) {
    extern __shared__ __align__(16) unsigned char bytes[];
    __shared__ ExpertTile found;
    const ExpertTile tile = find_tile(p.ends, p.experts, blockIdx.x / tiles_n, Tile::kM, &found);
    if (tile.expert < 0) return;
    const int first_n = static_cast<int>(blockIdx.x % tiles_n) * Tile::kN;
    using A = OperandTile<T, Tile::kM, Tile::kK, true>;
    using B = OperandTile<T, Tile::kN, Tile::kK, kTranspose>;
    const int n = static_cast<int>(p.n), k = static_cast<int>(p.k), rows = tile.end - tile.first;
    const A a{static_cast<const T*>(p.x.data) + tile.first * p.x.stride, p.x.stride, rows, k};
    const B b{static_cast<const T*>(p.w.data) + tile.expert * p.w.expert_stride, p.w.stride, n, k};
    float sums[Tile::kFragmentsM][Tile::kFragmentsN][4] = {};
    multiply<T, Tile>(a, b, 0, first_n, k, shared_address(bytes), sums);
    const T* bias = p.bias == nullptr ? nullptr : static_cast<const T*>(p.bias) + tile.expert * p.n;
    for_each_pair<Tile>(sums, [&](int row, int column, float low, float high) {
        column += first_n;
        if (row >= rows || column >= n) return;
        const bool both = column + 1 < n;
        T* out = static_cast<T*>(p.out.data) + (tile.first + row) * p.out.stride + column;
        if (bias != nullptr) low += to_float(bias[column]), high += both ? to_float(bias[column + 1]) : 0.f;
        if (p.accumulate) low += to_float(out[0]), high += both ? to_float(out[1]) : 0.f;
        if (both)
            store_pack(out, Pack<T, 2>{from_float<T>(low), from_float<T>(high)});
        else
            *out = from_float<T>(low);
    });
}

/// A block makes a tile of an expert's gradient alone, over all of its rows.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads) grouped_gradient_kernel(const GroupedGradient p, unsigned tiles_n) {
    extern __shared__ __align__(16) unsigned char bytes[];
    const int64_t expert = blockIdx.y;
    const int32_t begin = expert == 0 ? 0 : p.ends[expert - 1], rows = p.ends[expert] - begin;
    if (rows <= 0) return;
    const int m = static_cast<int>(p.m), n = static_cast<int>(p.n);
    const int first_m = static_cast<int>(blockIdx.x / tiles_n) * Tile::kM;
    const int first_n = static_cast<int>(blockIdx.x % tiles_n) * Tile::kN;
    using A = OperandTile<T, Tile::kM, Tile::kK, false>;
    using B = OperandTile<T, Tile::kN, Tile::kK, false>;
    const A a{static_cast<const T*>(p.a.data) + begin * p.a.stride, p.a.stride, m, rows};
    const B b{static_cast<const T*>(p.b.data) + begin * p.b.stride, p.b.stride, n, rows};
    float sums[Tile::kFragmentsM][Tile::kFragmentsN][4] = {};
    multiply<T, Tile>(a, b, first_m, first_n, rows, shared_address(bytes), sums);
    float* out = static_cast<float*>(p.out.data) + expert * p.out.expert_stride;
    for_each_pair<Tile>(sums, [&](int row, int column, float low, float high) {
        row += first_m, column += first_n;
        if (row >= m || column >= n) return;
        float* to = out + row * p.out.stride + column;
        to[0] += p.scale * low;
        if (column + 1 < n) to[1] += p.scale * high;
    });
}

// ---- any dtype and alignment: a thread an element, its sum in order

constexpr int plain_side = 16;

/// The sum over i < inner of a[i * a_step] b[i * b_step].
template <class T>
__device__ __forceinline__ float plain_sum(const T* a, int64_t a_step, const T* b, int64_t b_step, int64_t inner) {
    float sum = 0.f;
#pragma unroll 4
    for (int64_t i = 0; i < inner; ++i) sum += to_float(a[i * a_step]) * to_float(b[i * b_step]);
    return sum;
}

template <class T>
__global__ void __launch_bounds__(plain_side* plain_side) plain_gemm_kernel(const GroupedGemm p, unsigned tiles_n) {
    __shared__ ExpertTile found;
    const ExpertTile tile = find_tile(p.ends, p.experts, blockIdx.x / tiles_n, plain_side, &found);
    const int64_t row = int64_t{tile.first} + threadIdx.x / plain_side;
    const int64_t column = int64_t{blockIdx.x % tiles_n} * plain_side + threadIdx.x % plain_side;
    if (tile.expert < 0 || row >= tile.end || column >= p.n) return;
    const T* x = static_cast<const T*>(p.x.data) + row * p.x.stride;
    const T* w = static_cast<const T*>(p.w.data) + tile.expert * p.w.expert_stride;
    float sum =
        p.transpose ? plain_sum(x, 1, w + column * p.w.stride, 1, p.k) : plain_sum(x, 1, w + column, p.w.stride, p.k);
    T* out = static_cast<T*>(p.out.data) + row * p.out.stride + column;
    if (p.bias != nullptr) sum += to_float(static_cast<const T*>(p.bias)[tile.expert * p.n + column]);
    if (p.accumulate) sum += to_float(*out);
    *out = from_float<T>(sum);
}

template <class T>
__global__ void __launch_bounds__(plain_side* plain_side)
    plain_gradient_kernel(const GroupedGradient p, unsigned tiles_n) {
    const int64_t expert = blockIdx.y;
    const int64_t begin = expert == 0 ? 0 : p.ends[expert - 1], rows = p.ends[expert] - begin;
    const int64_t row = int64_t{blockIdx.x / tiles_n} * plain_side + threadIdx.x / plain_side;
    const int64_t column = int64_t{blockIdx.x % tiles_n} * plain_side + threadIdx.x % plain_side;
    if (rows <= 0 || row >= p.m || column >= p.n) return;
    const T* a = static_cast<const T*>(p.a.data) + begin * p.a.stride + row;
    const T* b = static_cast<const T*>(p.b.data) + begin * p.b.stride + column;
    const float sum = plain_sum(a, p.a.stride, b, p.b.stride, rows);
    static_cast<float*>(p.out.data)[expert * p.out.expert_stride + row * p.out.stride + column] += p.scale * sum;
}

template <class T, class Tile, bool kTranspose>
void run_gemm(const GroupedGemm& p, cudaStream_t stream) {
    constexpr int stage =
        OperandTile<T, Tile::kM, Tile::kK, true>::kBytes + OperandTile<T, Tile::kN, Tile::kK, kTranspose>::kBytes;
    const int64_t tiles_n = ceil_div(p.n, Tile::kN);
    launch_kernel(grouped_gemm_kernel<T, Tile, kTranspose>,
                  {.grid = dim3(static_cast<unsigned>(tiles_n * most_tiles(p.rows, p.experts, Tile::kM))),
                   .threads = dim3(Tile::kThreads),
                   .shared_bytes = stage * Tile::kStages,
                   .stream = stream},
                  p, static_cast<unsigned>(tiles_n));
}

template <class T, bool kTranspose>
void choose_tiling(const GroupedGemm& p, cudaStream_t stream) {
    if (p.rows <= 16 * int64_t{p.experts})
        run_gemm<T, FewRowsTiling, kTranspose>(p, stream);
    else if (p.rows <= 64 * int64_t{p.experts} || p.n <= MiddleTiling::kN)
        run_gemm<T, MiddleTiling, kTranspose>(p, stream);
    else
        run_gemm<T, WideTiling, kTranspose>(p, stream);
}

/// f(TypeTag<T>) for 16-bit types.
template <class F>
void dispatch_16_bit(spec::DType type, const F& f) {
    type == spec::DType::bf16 ? f(TypeTag<__nv_bfloat16>{}) : f(TypeTag<__half>{});
}

}  // namespace

void grouped_gemm(const GroupedGemm& p, cudaStream_t stream) {
    if (p.rows == 0 || p.n == 0) return;
    if (p.type != spec::DType::f32 && aligned_16(p.x.data, {p.x.stride}, p.type) &&
        aligned_16(p.w.data, {p.w.stride, p.w.expert_stride}, p.type) &&
        aligned_16(p.out.data, {p.out.stride}, p.type)) {
        return dispatch_16_bit(p.type, [&](auto tag) {
            using T = typename decltype(tag)::type;
            p.transpose ? choose_tiling<T, true>(p, stream) : choose_tiling<T, false>(p, stream);
        });
    }
    const int64_t tiles_n = ceil_div(p.n, plain_side);
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        UNSLOTH_LAUNCH(plain_gemm_kernel<T>, static_cast<unsigned>(tiles_n * most_tiles(p.rows, p.experts, plain_side)),
                       plain_side * plain_side, 0, stream, p, static_cast<unsigned>(tiles_n));
    });
}

void grouped_gradient(const GroupedGradient& p, cudaStream_t stream) {
    if (p.m == 0 || p.n == 0) return;
    using Tile = MiddleTiling;
    if (p.type != spec::DType::f32 && aligned_16(p.a.data, {p.a.stride}, p.type) &&
        aligned_16(p.b.data, {p.b.stride}, p.type)) {
        const int64_t tiles_n = ceil_div(p.n, Tile::kN);
        return dispatch_16_bit(p.type, [&](auto tag) {
            using T = typename decltype(tag)::type;
            constexpr int stage = 2 * OperandTile<T, Tile::kM, Tile::kK, false>::kBytes;
            launch_kernel(grouped_gradient_kernel<T, Tile>,
                          {.grid = dim3(static_cast<unsigned>(tiles_n * ceil_div(p.m, Tile::kM)),
                                        static_cast<unsigned>(p.experts)),
                           .threads = dim3(Tile::kThreads),
                           .shared_bytes = stage * Tile::kStages,
                           .stream = stream},
                          p, static_cast<unsigned>(tiles_n));
        });
    }
    const int64_t tiles_n = ceil_div(p.n, plain_side);
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        const dim3 grid(static_cast<unsigned>(tiles_n * ceil_div(p.m, plain_side)), static_cast<unsigned>(p.experts));
        UNSLOTH_LAUNCH(plain_gradient_kernel<T>, grid, plain_side * plain_side, 0, stream, p,
                       static_cast<unsigned>(tiles_n));
    });
}

}  // namespace unsloth::kernels
