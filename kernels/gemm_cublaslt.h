// Row-major matrix products through cuBLASLt. No LibTorch here: pointers, sizes, a stream.
#pragma once

#include <cstdint>
#include <memory>

#include "unsloth/spec/dtype.h"
#include "unsloth/spec/kernel_table.h"

namespace unsloth::kernels {

/// A row-major matrix in device memory.
struct GemmOperand {
    void* data = nullptr;
    int64_t row_stride = 0;  ///< elements from one row to the next
    bool transpose = false;  ///< the product uses the transposed matrix
};

/// out[m, n] = alpha a[m, k] b[k, n] + beta c[m, n] + bias[n]; a and b as they are after their own
/// transposes.
struct GemmCase {
    int64_t m = 0, n = 0, k = 0;
    GemmOperand a, b, c, out;
    spec::DType input_type = spec::DType::bf16;   ///< of a and b: f32, bf16, f16
    spec::DType output_type = spec::DType::bf16;  ///< of c, out and bias: input_type or f32
    const void* bias = nullptr;                   ///< nullptr: none
    float alpha = 1, beta = 0;
};

/// A cuBLASLt handle and the plans made with it: descriptors and algorithm by shape, strides, types and
/// alignment. Used by one thread at a time.
class CublasLt {
  public:
    /// Runtime Error when cuBLASLt cannot start on `device`. Products that `table` has no choice for take the library's
    /// first one.
    CublasLt(int device, std::shared_ptr<const spec::KernelTable> table);
    ~CublasLt();
    CublasLt(const CublasLt&) = delete;
    CublasLt& operator=(const CublasLt&) = delete;

    /// Issues the product on `stream`. fp32 accumulation, never TF32; a split K is reduced in fp32 in a
    /// separate pass (fixed order). CheckError when cuBLASLt knows no algorithm; runtime Error when a call
    /// fails.
    void run(const GemmCase& problem, void* workspace, int64_t workspace_bytes, void* stream);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Bytes of workspace that let cuBLASLt choose freely: 32 MiB from Hopper on, 8 MiB before.
int64_t cublaslt_workspace(int device);

}  // namespace unsloth::kernels
