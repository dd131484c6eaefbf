// Keys and values into and out of a cache in 8 bit. d / 8 lanes have a head of a token, 16 bytes each.
//
// Ceiling: the bandwidth of memory; in decoding passes the time of a launch.
#include "kernels/common/launch.h"
#include "kernels/common/ptx.cuh"
#include "kernels/fp8.cuh"
#include "kernels/key_codes.cuh"
#include "kernels/kv_cache.h"
#include "kernels/paged_attention.h"
#include "unsloth/core/check.h"

namespace unsloth::kernels {
namespace {

constexpr int key_threads = 256;

/// A thread's part of a head of a token.
template <int D>
struct HeadPart {
    static constexpr int lanes = D / pack_width;
    const int64_t item = (int64_t{blockIdx.x} * key_threads + threadIdx.x) / lanes;
    const int column = static_cast<int>(threadIdx.x) % lanes * pack_width;
};

__device__ __forceinline__ uint8_t* exponent_of(const KeyCodes& c, int64_t place, int head) {
    return c.exponents + (place / page_tokens * c.heads + head) * page_tokens + place % page_tokens;
}

template <int D>
__global__ void __launch_bounds__(key_threads)
    store_kernel(const Matrix kv, const int32_t* slots, int64_t tokens, const KeyCodes to) {
    begin_after_previous(static_cast<uint32_t>(tokens));
    const HeadPart<D> part;
    const bool there = part.item < tokens * to.heads;  // no lane returns early: they reduce together
    const int64_t token = there ? part.item / to.heads : 0;
    const int head = static_cast<int>(part.item % to.heads);
    __nv_bfloat16* const values_at = static_cast<__nv_bfloat16*>(kv.data) + token * kv.stride + head * D + part.column;
    Bf16x8 values = {};
    if (there) values = load_pack<pack_width>(values_at);
    uint32_t amax = pack_amax(0, values);
    amax = max(amax & 0xFFFFu, amax >> 16);
#pragma unroll
    for (int offset = HeadPart<D>::lanes / 2; offset > 0; offset /= 2)
        amax = max(amax, __shfl_xor_sync(all_lanes, amax, offset));
    if (!there) return;
    const int exponent = key_exponent(amax);
    const float inverse = exponent == 255 ? power_of_two(255) : power_of_two(254 - exponent);
    const uint2 codes = fp8_encode(values, inverse);
    const int64_t place = slots[token];
    *reinterpret_cast<uint2*>(to.codes + place * to.stride + head * D + part.column) = codes;
    if (part.column == 0) *exponent_of(to, place, head) = static_cast<uint8_t>(exponent);
    store_pack(values_at, fp8_decode(codes, power_of_two(exponent)));
}

template <int D>
__global__ void __launch_bounds__(key_threads) read_kernel(const KeyCodes from, const ReadKeys p) {
    begin_after_previous(static_cast<uint32_t>(p.length));
    const HeadPart<D> part;
    if (part.item >= p.length * p.heads) return;
    const int64_t key = part.item / p.heads;
    const int head = static_cast<int>(part.item % p.heads);
    const int64_t place = p.places != nullptr ? p.places[key] : p.first + key;
    const uint2 codes =
        *reinterpret_cast<const uint2*>(from.codes + place * from.stride + (p.first_head + head) * D + part.column);
    const float scale = power_of_two(*exponent_of(from, place, p.first_head + head));
    store_pack(static_cast<__nv_bfloat16*>(p.out) + part.item * D + part.column, fp8_decode(codes, scale));
}

/// For `heads` heads of `tokens` tokens.
template <int D>
Launch launch_of(int64_t tokens, int heads, cudaStream_t stream) {
    const int64_t blocks = ceil_div(tokens * heads * HeadPart<D>::lanes, key_threads);
    return {.grid = dim3(static_cast<unsigned>(blocks)),
            .threads = key_threads,
            .stream = stream,
            .after_previous = uses_programmatic_launch(tokens)};
}

}  // namespace

void write_kv(const Matrix& kv, const int32_t* slots, int64_t tokens, const KeyCodes& to, cudaStream_t stream) {
    if (tokens == 0) return;
    UNSLOTH_CHECK(to.head_dim == 64 || to.head_dim == 128, "8-bit keys: head_dim ", to.head_dim);
    if (to.head_dim == 64) {
        launch_kernel(store_kernel<64>, launch_of<64>(tokens, to.heads, stream), kv, slots, tokens, to);
    } else {
        launch_kernel(store_kernel<128>, launch_of<128>(tokens, to.heads, stream), kv, slots, tokens, to);
    }
}

void read_keys(const KeyCodes& from, const ReadKeys& p, cudaStream_t stream) {
    if (p.length == 0) return;
    UNSLOTH_CHECK(from.head_dim == 64 || from.head_dim == 128, "8-bit keys: head_dim ", from.head_dim);
    if (from.head_dim == 64) {
        launch_kernel(read_kernel<64>, launch_of<64>(p.length, p.heads, stream), from, p);
    } else {
        launch_kernel(read_kernel<128>, launch_of<128>(p.length, p.heads, stream), from, p);
    }
}

}  // namespace unsloth::kernels
