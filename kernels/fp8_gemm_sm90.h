// Our e4m3 product for Hopper (sm_90a): wgmma on tiles that TMA brings.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "kernels/fp8_gemm.h"

namespace unsloth::kernels {

/// Whether this build holds the kernel for the current device: compiled for 9.0a, which 9.0 alone is not.
bool fp8_gemm_sm90_built();

/// Every tile that is built.
std::vector<Fp8Tile> fp8_gemm_tiles();

/// Whether addresses and strides suit TMA: 16-byte aligned, strides multiples of 16 bytes.
bool fp8_gemm_sm90_takes(const Fp8GemmCase& problem);

/// Keeps the tensor maps of the tensors it has seen. Used by one thread at a time.
class Fp8GemmSm90 {
  public:
    Fp8GemmSm90();
    ~Fp8GemmSm90();
    Fp8GemmSm90(const Fp8GemmSm90&) = delete;
    Fp8GemmSm90& operator=(const Fp8GemmSm90&) = delete;

    /// Issues the product on `stream`; the current device must be of compute capability 9.0. No workspace;
    /// may be captured. Accumulators as the tensor cores keep them (14 bits or so), then everything in fp32,
    /// one rounding. CheckError for a case that it does not take or a tile that is not built.
    void run(const Fp8GemmCase& problem, const Fp8Tile& tile, cudaStream_t stream);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace unsloth::kernels
