// Launchers of what stands around the delta rule: a short convolution, a gated norm, and attention's gate; see
// include/unsloth/ops/gated_delta.h for the mathematics.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/delta_rule.h"
#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"

namespace unsloth::kernels {

/// Rows kept between calls: segment s continues after row rows[s] of data [N, width - 1, C], and leaves its own last
/// rows there; no data: segments begin after zeros.
struct ConvKept {
    void* data = nullptr;
    const int32_t* rows = nullptr;
    int places = 0;  ///< rows from here on keep nothing
    bool read_only = false;
    __device__ bool keeps(int segment) const { return data != nullptr && rows[segment] < places; }
};

struct ShortConv {
    DeltaSegments segments;
    int64_t channels = 0;
    int width = 0;
    spec::DType type = spec::DType::bf16;
    ConstMatrix x;                  ///< [T, C]
    const float* weight = nullptr;  ///< [C, width]
    Matrix y;                       ///< forward
    ConvKept kept;
    ConstMatrix dy;            ///< backward
    Matrix dx;                 ///< backward
    void* dkept = nullptr;     ///< backward: of kept's data
    float* dweight = nullptr;  ///< [C, width], +=; nullptr: not wanted
};
/// At most `most_conv_width` taps.
inline constexpr int most_conv_width = 8;
void short_conv_forward(const ShortConv& params, cudaStream_t stream);
void short_conv_backward(const ShortConv& params, cudaStream_t stream);

struct GatedNorm {
    int64_t tokens = 0, heads = 0, columns = 0;
    spec::DType type = spec::DType::bf16;
    ConstHeads x, z;
    const float* weight = nullptr;  ///< [columns]
    float eps = 0;
    Heads y;                    ///< forward: may be x
    ConstHeads dy;              ///< backward
    Heads dx, dz;               ///< backward: may be dy, may be z
    float* dweight = nullptr;   ///< [columns], +=; nullptr: not wanted
    float* partials = nullptr;  ///< gated_norm_scratch_bytes, when dweight is wanted
};
void gated_norm_forward(const GatedNorm& params, cudaStream_t stream);
void gated_norm_backward(const GatedNorm& params, cudaStream_t stream);
/// The same on every card, so that sums are too.
int64_t gated_norm_scratch_bytes(int64_t columns);

struct SigmoidGate {
    int64_t tokens = 0, heads = 0, columns = 0;
    spec::DType type = spec::DType::bf16;
    ConstHeads x, gate;
    Heads y;          ///< forward: may be x
    ConstHeads dy;    ///< backward
    Heads dx, dgate;  ///< backward: may be dy, may be gate
};
void sigmoid_gate_forward(const SigmoidGate& params, cudaStream_t stream);
void sigmoid_gate_backward(const SigmoidGate& params, cudaStream_t stream);

/// One token a segment by a whole net, with states kept.
struct DeltaStep {
    DeltaHeads shape;
    DeltaSegments segments;
    DeltaRead in;                 ///< mixed: before the convolution
    const float* taps = nullptr;  ///< [C, width]
    int width = 0;
    int64_t channels = 0;
    ConvKept inputs;  ///< of the same rows as the states
    DeltaKept states;
    ConstHeads z;
    const float* norm = nullptr;  ///< [v]
    float eps = 0;
    Heads y;
};
inline constexpr int most_step_served = 8;  ///< value heads of a key head
/// Heads of 128, four taps, and rows of z and y that are aligned to 16 bytes.
bool delta_step_serves(const DeltaStep& params);
void delta_step(const DeltaStep& params, cudaStream_t stream);

/// data[i] [to] = data[i] [from] for all tensors and copies. No place is both read and written.
struct PlaceCopies {
    static constexpr int most_tensors = 128, most_copies = 64;
    void* data[most_tensors] = {};
    int64_t bytes[most_tensors] = {};  ///< of a place
    int tensors = 0;
    int32_t from[most_copies] = {}, to[most_copies] = {};
    int copies = 0;
};
void copy_places(const PlaceCopies& params, cudaStream_t stream);

}  // namespace unsloth::kernels
