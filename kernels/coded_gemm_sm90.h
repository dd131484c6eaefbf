// Our products of 8-bit codes for Hopper (sm_90a): wgmma on tiles that TMA brings.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "kernels/coded_gemm.h"

namespace unsloth::kernels {

/// Whether this build holds the kernel for the current device: compiled for 9.0a, which 9.0 alone is not.
bool coded_gemm_sm90_built();

/// Every tile that is built.
std::vector<CodedTile> coded_gemm_tiles(CodeFormat format);

/// Whether addresses and strides suit TMA: 16-byte aligned, strides multiples of 16 bytes.
bool coded_gemm_sm90_takes(const CodedGemmCase& problem);

/// Keeps the tensor maps of the tensors it has seen. Used by one thread at a time.
class CodedGemmSm90 {
  public:
    CodedGemmSm90();
    ~CodedGemmSm90();
    CodedGemmSm90(const CodedGemmSm90&) = delete;
    CodedGemmSm90& operator=(const CodedGemmSm90&) = delete;

    /// Issues the product on `stream`; the current device must be of compute capability 9.0. No workspace;
    /// may be captured. Sums of e4m3 codes as the tensor cores keep them (14 bits or so), of int8 codes exact in each
    /// block, then everything in fp32, one rounding. CheckError for a case that it does not take or a tile that is not
    /// built.
    void run(const CodedGemmCase& problem, const CodedTile& tile, cudaStream_t stream);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace unsloth::kernels
