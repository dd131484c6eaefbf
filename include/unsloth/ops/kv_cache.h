// Pages of a KV cache, in the compute dtype or as 8-bit floats: what attention of resumed rows reads
// (ops/paged_attention.h).
//
// 8 bit: e4m3 codes (Micikevicius et al., "FP8 Formats for Deep Learning", 2022), with a power of two for each token's
// head (the scales of OCP's "Microscaling Formats", 2023): the least 2^e that no magnitude divided by it exceeds 448
// with. A power of two costs no bit of a code's mantissa, and what is read back is exact in bf16.
//
// Legend: C places of the cache, T tokens, K kv heads, d head_dim, N = K * d; page p is places [p * page_tokens, …).
#pragma once

#include "unsloth/ops/context.h"

namespace unsloth::ops {

/// Tokens of a page of the cache.
constexpr int64_t page_tokens = 32;
constexpr int64_t pages_of(int64_t tokens) {
    return (tokens + page_tokens - 1) / page_tokens;
}

/// A layer's keys and values of all sequences that are continued, in whole pages. A token's keys and values are
/// adjacent, as a layer's GEMM writes them.
struct KvCache {
    at::Tensor kv_C2N;         ///< in the compute dtype, or uint8: codes
    at::Tensor exponents_PHS;  ///< uint8 [pages, 2 K, page_tokens]: e + 127, 255: not finite; undefined without codes
    bool coded() const { return exponents_PHS.defined(); }
};

/// Whether this device's kernels read codes of heads like these: bf16, d 64 or 128, up to 16 heads a kv head. The CPU
/// takes all.
bool codes_keys(at::Device device, at::ScalarType dtype, int64_t heads, int64_t kv_heads, int64_t head_dim);

/// cache[slots_T] = kv_T2N (rows of any stride), which becomes what can be read back: a token sees its own key as later
/// ones will. CheckError for types and shapes that do not fit each other.
void write_kv(Context& ctx, const at::Tensor& kv_T2N, const at::Tensor& slots_T, int64_t head_dim,
              const KvCache& cache);

enum class KeyPart : uint8_t { keys, values };
/// The keys or values of `length` places as [length, K, d] in `dtype`: those of `places` (int32), or, where that is
/// undefined, from `first` on. A view of the cache where it can be.
at::Tensor read_keys(Context& ctx, const KvCache& cache, KeyPart part, const at::Tensor& places, int64_t first,
                     int64_t length, int64_t head_dim, at::ScalarType dtype);

}  // namespace unsloth::ops
