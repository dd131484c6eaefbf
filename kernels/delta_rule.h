// Launchers of the gated delta rule; see include/unsloth/ops/gated_delta.h for the mathematics.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"

namespace unsloth::kernels {

struct DeltaHeads {
    int key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
    __host__ __device__ constexpr int served() const { return value_heads / key_heads; }
    __host__ __device__ constexpr int keys() const { return key_heads * key_dim; }
    __host__ __device__ constexpr int value_column(int head) const { return 2 * keys() + head * value_dim; }
};

struct DeltaSegments {
    const int32_t* offsets = nullptr;  ///< [count + 1] on the device
    int count = 0;
    int64_t tokens = 0;
};

struct DeltaRead {
    spec::DType type = spec::DType::bf16;  ///< of mixed, b, a, o and gradients
    ConstMatrix mixed, b, a;
    const float *a_log = nullptr, *dt_bias = nullptr;  ///< [H]
};

/// Segments first, first + step and so on: those of one turn (ops::DeltaTurns).
struct DeltaTurn {
    int first = 0, step = 1;
    __host__ __device__ int segment(int index) const { return first + index * step; }
    __host__ __device__ int count(const DeltaSegments& segments) const {
        return (segments.count - first + step - 1) / step;
    }
};

/// States kept between calls: segment s begins from `data` [rows[s]] and leaves its own there; no data: from zeros, as
/// where nothing is kept.
struct DeltaKept {
    float* data = nullptr;  ///< [N, H, k, v]
    const int32_t* rows = nullptr;
    int places = 0;  ///< rows from here on keep nothing
    bool read_only = false;
    __device__ bool keeps(int segment) const { return data != nullptr && rows[segment] < places; }
};

struct DeltaWritten {
    Matrix mixed, b, a;
    float *a_log = nullptr, *dt_bias = nullptr;  ///< [H], +=; nullptr: not wanted
};

/// What the kernels make for one another: of each slot (tokens / 64 + segments of them) and head.
struct DeltaScratch {
    __nv_bfloat16* solve = nullptr;             ///< [slots, H, 64, 64]: (I + A)^-1 diag(beta)
    __nv_bfloat16* scores = nullptr;            ///< [slots, H, 64, 64]: of queries and keys, with decay
    float* gates = nullptr;                     ///< [slots, H, 2, 64]: sums of log decays, and betas
    float* lengths = nullptr;                   ///< [slots, G, 2, 64]: factors of queries and of keys
    float* per_token = nullptr;                 ///< [2, T, H]: gradients of a and of a_log; backward
    __nv_bfloat16 *S = nullptr, *dS = nullptr;  ///< [slots, H, k, v] where chunks begin, and where they end; backward
    float *borders = nullptr, *of_blocks = nullptr;  ///< of the recurrent kernels' backward
};

/// Both directions' arguments, those of the other one empty.
struct DeltaRule {
    DeltaHeads shape;
    DeltaSegments segments;
    DeltaTurn turn;  ///< of scans and of the recurrent kernels
    DeltaRead in;
    Heads o;  ///< [T, H, v]
    DeltaKept kept;
    ConstHeads dout;  ///< [T, H, v]
    DeltaKept dkept;  ///< gradients of states: of the last one, then of the first
    DeltaWritten out;
    DeltaScratch scratch;
    int64_t slots = 0;
};

/// Whether the kernels by tensor cores take such heads: 16-bit types, k = v = 128. Rows are aligned to 16 bytes.
bool delta_chunked_serves(const DeltaHeads& shape, spec::DType type);
/// Of DeltaScratch in a workspace, but for what is of `states`.
int64_t delta_chunked_scratch_bytes(const DeltaHeads& shape, int64_t tokens, int64_t segments);
/// Sets slots and scratch. `states`: 4 bytes for each slot, value head, k and v; nullptr: forward.
void delta_chunked_place(DeltaRule& params, void* workspace, void* states);

// Its passes, in this order (delta_prepare.cu, delta_scan.cu, delta_gradient.cu).
void delta_prepare(const DeltaRule& params, cudaStream_t stream);
void delta_scan(const DeltaRule& params, cudaStream_t stream);       ///< o, where there is one; S, where there is one
void delta_scan_back(const DeltaRule& params, cudaStream_t stream);  ///< dS, and the gradient of values
void delta_gradient(const DeltaRule& params, cudaStream_t stream);   ///< all others but for the sums over tokens
/// a_log and dt_bias += the sums over tokens of per_token.
void delta_add_over_tokens(const DeltaRule& params, cudaStream_t stream);

/// A token after the other, in fp32: any heads whose state fits a block's shared memory, any alignment. Also of
/// decoding, where segments are of one token.
void delta_recurrent_forward(const DeltaRule& params, cudaStream_t stream);
/// Backward.
int64_t delta_recurrent_scratch_bytes(const DeltaHeads& shape, int64_t tokens, int64_t segments);
/// Sets scratch. `states`: fp32, of each slot and value head.
void delta_recurrent_place(DeltaRule& params, void* workspace, void* states);
void delta_recurrent_backward(const DeltaRule& params, cudaStream_t stream);  ///< but for the sums over tokens
/// One token a segment, k = v = 128, states kept.
void delta_decode(const DeltaRule& params, cudaStream_t stream);

}  // namespace unsloth::kernels
