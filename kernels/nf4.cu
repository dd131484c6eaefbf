// NF4, FP4 and MXFP4 dequantisation, and NF4 quantisation (Dettmers et al., "QLoRA", 2023), as bitsandbytes lays codes
// out.
//
// Dequantisation: a warp a tile of 1024 elements of the flattened weight. Ceiling: the bandwidth of memory, 2.5 bytes
// an element.
//
// Every product and sum is an explicit __fmul_rn / __fadd_rn: a fused multiply-add would change bits.
#include <algorithm>

#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/nf4.h"
#include "kernels/quant4_scales.cuh"

namespace unsloth::kernels {
namespace {

constexpr int warp = warp_size;
constexpr int threads = 256;
constexpr int group = 8;                                       // elements a thread makes from one 32-bit load
constexpr int groups_per_lane = 4;                             // loads in flight a thread
constexpr int warp_elements = warp * group * groups_per_lane;  // 1024

__device__ __forceinline__ void store_group(float* out, const float (&v)[group]) {
    reinterpret_cast<float4*>(out)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4*>(out)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

__device__ __forceinline__ void store_group(__nv_bfloat16* out, const float (&v)[group]) {
    *reinterpret_cast<uint4*>(out) =
        make_uint4(pack_bf16x2(v[0], v[1]), pack_bf16x2(v[2], v[3]), pack_bf16x2(v[4], v[5]), pack_bf16x2(v[6], v[7]));
}
__device__ __forceinline__ void store_group(__half* out, const float (&v)[group]) {
    Pack<__half, group> pack;
#pragma unroll
    for (int i = 0; i < group; ++i) pack.v[i] = from_float<__half>(v[i]);
    store_pack(out, pack);
}

/// Division of n < 2^31 by a fixed d in three instructions (Granlund & Montgomery, 1994).
struct FastDivide {
    uint32_t divisor = 1, multiplier = 0, shift = 0;
    FastDivide() = default;
    explicit FastDivide(uint32_t d) : divisor(d) {
        while ((uint64_t{1} << shift) < d) ++shift;
        multiplier = static_cast<uint32_t>((((uint64_t{1} << shift) - d) << 32) / d + 1);
    }
    __device__ __forceinline__ uint32_t quotient(uint32_t n) const { return (__umulhi(n, multiplier) + n) >> shift; }
};

/// One weight of a launch.
struct Job {
    spec::Quant4View weight;
    void* out = nullptr;
    int64_t row_stride = 0;
    uint32_t groups = 0;
    uint32_t first_tile = 0;  ///< of the launch's tiles of 1024 elements; the last one of a weight may be partly empty
    FastDivide groups_per_row;
};

constexpr int max_jobs = 8;  // a launch's parameters stay below 1 KiB

struct Jobs {
    Job job[max_jobs];
    int count = 0;
    uint32_t tiles = 0;
};

/// A warp makes a tile of 1024 consecutive elements of a flattened weight: lane l turns the 32-bit words l, 32 + l,
/// 64 + l and 96 + l of its codes into 8 elements each, so that loads are 128 and stores 512 consecutive
/// bytes. Lanes decode one block maximum each (of blocks of 64 both halves of the warp the same), and hold one entry of
/// the code each: both are looked up by shuffles, free of bank conflicts. A group of 8 never straddles rows because 8
/// divides cols; a block of 64 may.
template <class T, int kBlock>
__global__ void __launch_bounds__(threads) dequantize_vectorized(const __grid_constant__ Jobs jobs) {
    const uint32_t lane = threadIdx.x % warp;
    const uint32_t tile = blockIdx.x * (threads / warp) + threadIdx.x / warp;
    if (tile >= jobs.tiles) return;
    int index_of_job = 0;
    while (index_of_job + 1 < jobs.count && tile >= jobs.job[index_of_job + 1].first_tile) ++index_of_job;
    const Job& job = jobs.job[index_of_job];
    const spec::Quant4View& weight = job.weight;
    const uint32_t tile_of_job = tile - job.first_tile;
    const uint32_t first_group = tile_of_job * (warp * groups_per_lane);

    const auto* words = reinterpret_cast<const uint32_t*>(weight.packed);
    uint32_t codes[groups_per_lane];
#pragma unroll
    for (int j = 0; j < groups_per_lane; ++j) {
        const uint32_t index = first_group + j * warp + lane;
        codes[j] = index < job.groups ? __ldcs(words + index) : 0;  // read once: do not keep in the caches
    }
    constexpr int warp_blocks = warp_elements / kBlock;
    const int64_t block = int64_t{tile_of_job} * warp_blocks + lane % warp_blocks;
    const float absmax = block < weight.blocks() ? block_scale<kBlock>(weight, block) : 0.0F;
    const float code_value = weight.code[lane % 16];

#pragma unroll
    for (int j = 0; j < groups_per_lane; ++j) {
        const uint32_t index = first_group + j * warp + lane;
        const float scale = __shfl_sync(all_lanes, absmax, j * (warp * group / kBlock) + lane / (kBlock / group));
        float values[group];
#pragma unroll
        for (int i = 0; i < group; ++i) {
            const int shift = (i / 2) * 8 + (i % 2 == 0 ? 4 : 0);  // bytes ascend, the high nibble comes first
            // width 16: the shuffle itself takes the index modulo 16
            values[i] = __fmul_rn(__shfl_sync(all_lanes, code_value, static_cast<int>(codes[j] >> shift), 16), scale);
        }
        if (index < job.groups) {
            const uint32_t row = job.groups_per_row.quotient(index);
            const uint32_t column = (index - row * job.groups_per_row.divisor) * group;
            store_group(static_cast<T*>(job.out) + row * job.row_stride + column, values);
        }
    }
}

/// Any number of columns, stride and alignment: a thread a byte of codes.
template <class T, int kBlock>
__global__ void __launch_bounds__(threads)
    dequantize_general(spec::Quant4View weight, T* __restrict__ out, int64_t row_stride) {
    const int64_t elements = weight.elements();
    const int64_t step = int64_t{gridDim.x} * threads * 2;
    for (int64_t first = (int64_t{blockIdx.x} * threads + threadIdx.x) * 2; first < elements; first += step) {
        const uint8_t pair = weight.packed[first / 2];
        const float absmax = block_scale<kBlock>(weight, first / kBlock);
        for (int k = 0; k < 2 && first + k < elements; ++k) {
            const int64_t row = (first + k) / weight.cols, column = (first + k) % weight.cols;
            const int code = k == 0 ? pair >> 4 : pair & 15;
            out[row * row_stride + column] = from_float<T>(__fmul_rn(weight.code[code], absmax));
        }
    }
}

void launch_general(const DequantizeArgs& args, cudaStream_t stream) {
    const int64_t pairs = ceil_div(args.weight.elements(), 2);
    const auto grid = static_cast<unsigned>(std::min<int64_t>(ceil_div(pairs, threads), int64_t{1} << 20));
    dispatch_floating(args.out_type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        dispatch_block(args.weight, [&](auto block) {
            UNSLOTH_LAUNCH((dequantize_general<T, block.value>), grid, threads, 0, stream, args.weight,
                           static_cast<T*>(args.out), args.row_stride);
        });
    });
}

void append(Jobs& jobs, const DequantizeArgs& args) {
    const auto groups = static_cast<uint32_t>(args.weight.elements() / group);
    jobs.job[jobs.count++] = {args.weight, args.out,   args.row_stride,
                              groups,      jobs.tiles, FastDivide(static_cast<uint32_t>(args.weight.cols / group))};
    jobs.tiles += static_cast<uint32_t>(ceil_div(groups, warp * groups_per_lane));
}

/// All of one kind of blocks.
void launch(Jobs& jobs, spec::DType out_type, cudaStream_t stream) {
    if (jobs.count == 0) return;
    const auto grid = static_cast<unsigned>(ceil_div(jobs.tiles, threads / warp));
    dispatch_floating(out_type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        dispatch_block(jobs.job[0].weight, [&](auto block) {
            UNSLOTH_LAUNCH((dequantize_vectorized<T, block.value>), grid, threads, 0, stream, jobs);
        });
    });
    jobs.count = 0;
    jobs.tiles = 0;
}

// ---- quantisation ----

/// A warp a block of 64, a lane two elements.
template <class T>
__global__ void __launch_bounds__(threads) quantize_blocks(const T* __restrict__ w, int64_t elements, int64_t blocks,
                                                           const __grid_constant__ Nf4Thresholds nf4,
                                                           uint8_t* __restrict__ packed, float* __restrict__ absmax) {
    __shared__ float thresholds[15];
    copy_thresholds(nf4, thresholds);
    const int64_t block = int64_t{blockIdx.x} * (threads / warp) + threadIdx.x / warp;
    if (block >= blocks) return;
    const int64_t first = block * spec::quant4_block + (threadIdx.x % warp) * 2;
    const float x0 = first < elements ? to_float(w[first]) : 0.0F;
    const float x1 = first + 1 < elements ? to_float(w[first + 1]) : 0.0F;
    const float largest = group_max(fmaxf(finite_magnitude(x0), finite_magnitude(x1)));
    const float inverse = inverse_or_zero(largest);
    const unsigned high = nf4_code_of(thresholds, __fmul_rn(x0, inverse));
    const unsigned low = nf4_code_of(thresholds, __fmul_rn(x1, inverse));
    if (first < elements) packed[first / 2] = static_cast<uint8_t>(high << 4 | low);
    if (threadIdx.x % warp == 0) absmax[block] = largest;
}

constexpr int mean_threads = 1024;

/// A thread block a nested block: the sum of its maxima, in fp64.
__global__ void __launch_bounds__(spec::quant4_nested_block)
    sum_maxima(const float* __restrict__ maxima, int64_t count, double* __restrict__ sums) {
    const int64_t i = int64_t{blockIdx.x} * spec::quant4_nested_block + threadIdx.x;
    const double sum = block_sum_f64<spec::quant4_nested_block>(i < count ? static_cast<double>(maxima[i]) : 0.0);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/// One thread block: the mean of `count` values by their partial sums, in an order that depends on the count alone.
__global__ void __launch_bounds__(mean_threads)
    mean_of(const double* __restrict__ sums, int64_t parts, int64_t count, float* mean) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < parts; i += mean_threads) sum += sums[i];
    const double total = block_sum_f64<mean_threads>(sum);
    if (threadIdx.x == 0) *mean = static_cast<float>(total / static_cast<double>(count));
}

/// A thread block a nested block of 256 maxima.
__global__ void __launch_bounds__(spec::quant4_nested_block)
    quantize_absmax(const float* __restrict__ absmax, int64_t blocks, const float* __restrict__ offset,
                    const float* __restrict__ map, uint8_t* __restrict__ codes, float* __restrict__ nested_absmax,
                    float* __restrict__ decoded) {
    __shared__ float midpoints[256];
    __shared__ float warp_largest[spec::quant4_nested_block / warp];
    const int64_t block = int64_t{blockIdx.x} * spec::quant4_nested_block + threadIdx.x;
    midpoints[threadIdx.x] =
        threadIdx.x < 255 ? __fmul_rn(__fadd_rn(map[threadIdx.x], map[threadIdx.x + 1]), 0.5F) : 0.0F;
    const float x = block < blocks ? __fsub_rn(absmax[block], *offset) : 0.0F;
    const float largest_of_warp = group_max(fabsf(x));
    if (threadIdx.x % warp == 0) warp_largest[threadIdx.x / warp] = largest_of_warp;
    __syncthreads();
    float largest = 0;
    for (const float candidate : warp_largest) largest = fmaxf(largest, candidate);
    if (threadIdx.x == 0) nested_absmax[blockIdx.x] = largest;
    if (block >= blocks) return;
    const float scaled = __fmul_rn(x, inverse_or_zero(largest));
    int begin = 0, end = 255;  // the first midpoint that `scaled` does not exceed
    while (begin < end) {
        const int middle = (begin + end) / 2;
        if (midpoints[middle] < scaled) {
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    codes[block] = static_cast<uint8_t>(begin);
    if (decoded != nullptr) decoded[block] = __fadd_rn(__fmul_rn(map[begin], largest), *offset);
}

}  // namespace

bool dequantize_is_vectorized(const DequantizeArgs& args) {
    const bool aligned =
        reinterpret_cast<uintptr_t>(args.out) % 16 == 0 && reinterpret_cast<uintptr_t>(args.weight.packed) % 4 == 0;
    const bool small_enough = args.weight.elements() / group < (int64_t{1} << 31);  // FastDivide
    return aligned && small_enough && args.weight.cols % group == 0 && args.row_stride % group == 0;
}

void dequantize_4bit(const DequantizeArgs& args, cudaStream_t stream) {
    dequantize_4bit(&args, 1, stream);
}

void dequantize_4bit(const DequantizeArgs* args, int64_t count, cudaStream_t stream) {
    Jobs jobs;
    for (int64_t i = 0; i < count; ++i) {
        if (args[i].weight.elements() == 0) continue;
        if (!dequantize_is_vectorized(args[i])) {
            launch_general(args[i], stream);
            continue;
        }
        if (jobs.count > 0 && jobs.job[0].weight.block() != args[i].weight.block())
            launch(jobs, args[0].out_type, stream);
        append(jobs, args[i]);
        if (jobs.count == max_jobs) launch(jobs, args[i].out_type, stream);
    }
    if (jobs.count > 0) launch(jobs, args[0].out_type, stream);
}

void quantize_nf4(const QuantizeArgs& args, cudaStream_t stream) {
    const int64_t blocks = ceil_div(args.elements, spec::quant4_block);
    if (blocks > 0)
        dispatch_floating(args.type, [&](auto tag) {
            using T = typename decltype(tag)::type;
            UNSLOTH_LAUNCH(quantize_blocks<T>, static_cast<unsigned>(ceil_div(blocks, threads / warp)), threads, 0,
                           stream, static_cast<const T*>(args.w), args.elements, blocks, Nf4Thresholds(), args.packed,
                           args.maxima.absmax);
        });
    quantize_maxima(args.maxima, blocks, stream);
}

void quantize_maxima(const MaximaArgs& args, int64_t blocks, cudaStream_t stream) {
    if (blocks == 0) {
        UNSLOTH_CUDA_CHECK(cudaMemsetAsync(args.offset, 0, sizeof(float), stream));
        return;
    }
    const int64_t parts = ceil_div(blocks, spec::quant4_nested_block);
    UNSLOTH_LAUNCH(sum_maxima, static_cast<unsigned>(parts), spec::quant4_nested_block, 0, stream, args.absmax, blocks,
                   args.sums);
    UNSLOTH_LAUNCH(mean_of, 1, mean_threads, 0, stream, args.sums, parts, blocks, args.offset);
    UNSLOTH_LAUNCH(quantize_absmax, static_cast<unsigned>(parts), spec::quant4_nested_block, 0, stream, args.absmax,
                   blocks, args.offset, args.map, args.codes, args.nested_absmax, args.decoded);
}

}  // namespace unsloth::kernels
