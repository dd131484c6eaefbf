// 4-bit block-wise quantisation on the GPU. Formulas: include/unsloth/spec/quant4.h. All pointers are device
// pointers, work is issued on `stream`, nothing synchronises; a failed launch throws.
#pragma once

#include <cuda_runtime_api.h>

#include "unsloth/spec/dtype.h"
#include "unsloth/spec/quant4.h"

namespace unsloth::kernels {

struct DequantizeArgs {
    spec::Quant4View weight;
    void* out = nullptr;                       ///< [rows, cols] of out_type
    int64_t row_stride = 0;                    ///< of out, in elements, >= cols
    spec::DType out_type = spec::DType::bf16;  ///< f32, bf16 or f16
};

/// Whether the vectorised kernel (8 elements a thread) supports these arguments; the general one supports all.
bool dequantize_is_vectorized(const DequantizeArgs& args);
void dequantize_4bit(const DequantizeArgs& args, cudaStream_t stream);

/// `count` weights (host memory; each its own output, of one out_type): in one launch for every eight in a row that
/// dequantize_is_vectorized and have blocks of one size, in one each for the others.
void dequantize_4bit(const DequantizeArgs* args, int64_t count, cudaStream_t stream);

/// The second quantisation: of block maxima.
struct MaximaArgs {
    const float* map = nullptr;      ///< [256] signed dynamic map
    float* absmax = nullptr;         ///< [blocks]: block maxima in fp32; infinite where w is not finite
    double* sums = nullptr;          ///< [ceil(blocks / 256)], room
    uint8_t* codes = nullptr;        ///< out [blocks]
    float* nested_absmax = nullptr;  ///< out [ceil(blocks / 256)]
    float* offset = nullptr;         ///< out [1]
    float* decoded = nullptr;        ///< out [blocks]: the maxima that reading a file gives; nullptr: not wanted
};
void quantize_maxima(const MaximaArgs& args, int64_t blocks, cudaStream_t stream);

struct QuantizeArgs {
    const void* w = nullptr;              ///< [elements]
    spec::DType type = spec::DType::f32;  ///< of w: f32, bf16 or f16
    int64_t elements = 0;
    uint8_t* packed = nullptr;  ///< out [ceil(elements / 2)]
    MaximaArgs maxima;          ///< absmax is written, too
};
void quantize_nf4(const QuantizeArgs& args, cudaStream_t stream);

}  // namespace unsloth::kernels
