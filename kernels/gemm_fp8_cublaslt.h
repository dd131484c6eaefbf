// The e4m3 product through cuBLASLt, scaled by row and column.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/coded_gemm.h"

namespace unsloth::kernels {

/// A cuBLASLt handle and the plans made with it. Used by one thread at a time.
class Fp8GemmCublasLt {
  public:
    /// Runtime Error when cuBLASLt cannot start on `device`.
    explicit Fp8GemmCublasLt(int device);
    ~Fp8GemmCublasLt();
    Fp8GemmCublasLt(const Fp8GemmCublasLt&) = delete;
    Fp8GemmCublasLt& operator=(const Fp8GemmCublasLt&) = delete;

    /// Issues the product on `stream`; `problem.rank` is 0 (u b^T goes into y first, and y is then the
    /// residual). `fast_accumulation`: sums stay in the tensor cores' accumulators; otherwise they move to
    /// fp32 at intervals, at 8 to 20 % of the speed. CheckError when cuBLASLt has no algorithm (before Ada;
    /// addresses or strides not multiples of 16 bytes); runtime Error when a call fails.
    void run(const CodedGemmCase& problem, bool fast_accumulation, void* workspace, int64_t workspace_bytes,
             void* stream);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace unsloth::kernels
