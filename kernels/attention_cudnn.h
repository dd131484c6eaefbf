// Attention through cuDNN's graph API (FlashAttention on its tensor-core kernels), bf16 and f16, forward and
// backward.
//
// Two forms. Dense: [B, H, S, d] as strided views of token rows, of which keys may have more. Packed: B sequences of up
// to S tokens, each found through a ragged offset and a length in device memory, so that one plan works for every
// batch that fits (B, S, T): sequences that do not exist have length 0.
//
// Facts the code relies on (cuDNN 9.19): the packed backward sizes its scratch by B x S (bounding it by the
// total length instead corrupts neighbouring sequences, see the graph); the row statistics of the packed form
// are token-major ([T, H]), the dense backward reads them as [B, H, S] only; the band's left bound keeps keys
// > query - bound, which is our window.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/attention_portable.h"
#include "unsloth/spec/dtype.h"

namespace unsloth::kernels {

/// Strides of a [tokens, heads, d] tensor, in elements.
struct HeadStrides {
    int64_t row = 0, head = 0;
};

/// What a plan is made for. Compared and hashed as bytes: every field is 8 bytes wide.
struct CudnnCase {
    int64_t packed = 0;             ///< 0 dense, 1 packed
    int64_t backward = 0;           ///< 0 forward, 1 backward
    int64_t statistics = 1;         ///< forward: whether the log-sum-exp is written
    int64_t deterministic = 0;      ///< backward: a fixed order of summation (dense only)
    int64_t unmasked = 0;           ///< queries see all keys of their sequence; packed: one sequence
    int64_t bottom_right = 0;       ///< sequences may have more keys than queries, which stand at their end
    int64_t half = 0;               ///< 0 bf16, 1 f16
    int64_t batch = 0, length = 0;  ///< B and S; packed: the most
    int64_t keys = 0;               ///< of each sequence; 0: as many as queries
    int64_t tokens = 0;             ///< packed backward: the most tokens of the batch; sizes the dense gradients.
                                    ///< Unmasked: not used, length and keys do
    int64_t heads = 0, kv_heads = 0, head_dim = 0;
    int64_t window = 0;  ///< 0: unlimited
    double scale = 0;
    HeadStrides q, k, v, out, dout, dq, dk,
        dv;  ///< the last four in the backward; packed: dq [T, H, d], dk, dv [T, K, d] dense
};
static_assert(sizeof(CudnnCase) == 32 * 8, "padding would be compared");

struct CudnnPointers {
    void *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr;
    float* statistics = nullptr;  ///< dense [B, H, S], packed [T, H]
    void* dout = nullptr;
    HeadRows dq, dk, dv;                   ///< dense: with the case's strides; packed: any, multiples of 8
    const int32_t* offsets = nullptr;      ///< packed: device, where the sequences begin, sequences + 1 entries
    const int32_t* key_offsets = nullptr;  ///< packed: of their keys
    int64_t sequences = 0;                 ///< packed: at most the case's B
    int one_queries = 0, one_keys = 0;     ///< packed without offsets: one sequence of so many
};

/// A cuDNN handle and the plans made with it, one per device and process (plans are dear: tens to hundreds of
/// milliseconds). Safe from several threads, one at a time.
class CudnnAttention {
  public:
    /// The process's instance for a device; lives until the process ends, since the driver may be gone
    /// before.
    static CudnnAttention& of(int device);

    /// Bytes of workspace the case takes, ragged offsets and packed gradients included; none when cuDNN has
    /// no plan for it. Builds and keeps the plan; says why not, once, at level info.
    std::optional<int64_t> workspace(const CudnnCase& request);

    /// Issues the case on `stream`. `workspace` must be 256-byte aligned and hold what workspace() says.
    /// CheckError for a case without a plan, runtime Error when a call fails.
    /// A packed backward leaves its gradients in the workspace: see unpack_gradients.
    void run(const CudnnCase& request, const CudnnPointers& pointers, void* workspace, cudaStream_t stream);

    /// After the packed backwards of all groups of a batch: copies the gradients of its `tokens` to dq, of its
    /// `keys` to dk and dv.
    void unpack_gradients(const CudnnCase& request, const CudnnPointers& pointers, int64_t tokens, int64_t keys,
                          void* workspace, cudaStream_t stream);

  private:
    explicit CudnnAttention(int device);
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Largest number of ragged offset arrays that a packed case takes.
inline constexpr int most_ragged = 8;

/// offsets_out[m][i] = offsets[min(i, sequences)] * multiplier[m] for i in 0..batch, of key_offsets where of_keys[m];
/// lengths_out[0][i] = length of sequence i, 0 from `sequences` on, and [1][i] that of its keys.
/// Without offsets there is one sequence, of one_queries and one_keys.
struct RaggedSetup {
    const int32_t *offsets = nullptr, *key_offsets = nullptr;
    int one_queries = 0, one_keys = 0;
    int sequences = 0, batch = 0, arrays = 0;
    int64_t multiplier[most_ragged] = {};
    bool of_keys[most_ragged] = {};
    int64_t* offsets_out = nullptr;  ///< [arrays][batch + 1]
    int32_t* lengths_out = nullptr;  ///< [2][batch]
};
void ragged_setup(const RaggedSetup& setup, cudaStream_t stream);

/// Copies dense [tokens, heads, d] gradients of 2-byte elements to their strided places; d a multiple of 8,
/// all 16-byte aligned.
struct GradientCopy {
    const void* source = nullptr;
    HeadRows target;
    int heads = 0;
    int64_t tokens = 0;
};
void copy_gradients(const GradientCopy (&copies)[3], int head_dim, cudaStream_t stream);

}  // namespace unsloth::kernels
