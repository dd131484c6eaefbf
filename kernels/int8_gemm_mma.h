// Our product of int8 codes for every card from compute capability 8.0 on: mma.sync on tiles that cp.async brings.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/coded_gemm.h"

namespace unsloth::kernels {

/// Whether addresses and strides suit it: 16-byte aligned, strides multiples of 16 bytes; of int8 codes.
bool int8_gemm_mma_takes(const CodedGemmCase& problem);

/// Issues the product on `stream`. No workspace; may be captured. Sums are exact in each block of 256, then fp32, one
/// rounding: the same terms as CodedGemmSm90's, added up in another order. 96 KB of shared memory. CheckError for a
/// case that it does not take.
void int8_gemm_mma(const CodedGemmCase& problem, cudaStream_t stream);

}  // namespace unsloth::kernels
