// Attention of rows of one query over keys and values in pages of a cache (include/unsloth/ops/paged_attention.h), with
// fp32 sums in a fixed order that depends on a row's length alone.
//
// Legend: S rows, H heads, K kv heads, d head_dim.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"

namespace unsloth::kernels {

inline constexpr int page_tokens = 32;
/// A block takes split_keys of a row's keys, or two, three times as many where there would be more than most_splits
/// blocks: the parts of a row follow from its length alone.
inline constexpr int split_keys = 4 * page_tokens, most_splits = 64;
constexpr int keys_of_split(int keys) {
    return split_keys * ((keys + split_keys * most_splits - 1) / (split_keys * most_splits));
}
/// The number of splits of a row of `keys` keys. Never fewer for a longer row.
constexpr int most_splits_of(int keys) {
    return keys >= split_keys * most_splits ? most_splits : (keys + split_keys - 1) / split_keys;
}

struct PagedAttention {
    spec::DType dtype = spec::DType::bf16;  ///< f32, bf16, f16
    int rows = 0, heads = 0, kv_heads = 0, head_dim = 0;
    int window = 0;  ///< 0: unlimited
    float scale = 0;
    ConstHeads q;                      ///< [S, H, d]
    ConstMatrix k, v;                  ///< the cache: a token's kv heads follow each other in a row
    Heads out;                         ///< [S, H, d]
    const int32_t* lengths = nullptr;  ///< [S] keys, the query's own included
    const int32_t* pages = nullptr;    ///< [S, most_pages]
    int most_pages = 0;
    int splits = 1;                      ///< most_splits_of the longest row, or more
    float* parts = nullptr;              ///< scratch: [S, H, splits, d + 2]
    const float* sinks = nullptr;        ///< [H] a head's logit without a value; nullptr: none
    const uint8_t* exponents = nullptr;  ///< [pages, 2 K, page_tokens] where k and v are codes (kv_cache.h)
};

/// Floats of `parts`.
constexpr int64_t paged_attention_parts(int64_t rows, int64_t heads, int64_t head_dim, int64_t splits) {
    return rows * heads * splits * (head_dim + 2);
}
/// Whether k and v may be codes.
bool paged_attention_reads_codes(spec::DType dtype, int64_t heads, int64_t kv_heads, int64_t head_dim);
/// Issues on `stream`; head_dim up to 256. Reads 16 bytes at a time where rows of q, k and v start at multiples of 16
/// bytes and head_dim is a multiple of 8. CheckError for other types and sizes, runtime Error when a launch fails.
void paged_attention(const PagedAttention& args, cudaStream_t stream);

}  // namespace unsloth::kernels
