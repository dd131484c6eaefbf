// Launchers of an 8-bit KV cache: include/unsloth/ops/kv_cache.h defines the codes. The other tensors are bf16, the
// head_dim 64 or 128. Pointers are device pointers, work is issued on `stream`; CheckError for other sizes, runtime
// Error when a launch fails.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"

namespace unsloth::kernels {

/// The cache: a row of codes a place, `heads` heads of keys and of values together.
struct KeyCodes {
    uint8_t* codes = nullptr;
    int64_t stride = 0;            ///< between rows, in bytes; a multiple of 16
    uint8_t* exponents = nullptr;  ///< [pages, heads, page_tokens]
    int heads = 0, head_dim = 0;
};

/// Rounds the heads of `tokens` rows of kv in place, and stores their codes at `slots`.
void write_kv(const Matrix& kv, const int32_t* slots, int64_t tokens, const KeyCodes& to, cudaStream_t stream);

/// out [length, heads, d], contiguous: heads [first_head, first_head + heads) of `places`, or of those from `first` on
/// where that is nullptr.
struct ReadKeys {
    const int32_t* places = nullptr;
    int64_t first = 0, length = 0;
    int first_head = 0, heads = 0;
    void* out = nullptr;
};
void read_keys(const KeyCodes& from, const ReadKeys& params, cudaStream_t stream);

}  // namespace unsloth::kernels
