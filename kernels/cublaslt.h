// What the products through cuBLASLt share: checked calls, descriptors, and the library's choice of an algorithm. For
// kernels/*.cpp alone.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <vector>

namespace unsloth::kernels {

/// The most workspace given to cuBLASLt, so that a larger planned scratch (attention's) does not change its choice.
constexpr int64_t most_gemm_workspace = int64_t{32} << 20;

/// Throws a runtime Error unless `status` is success.
void check_cublaslt(cublasStatus_t status, const char* call);
#define UNSLOTH_CUBLASLT_CHECK(call) ::unsloth::kernels::check_cublaslt((call), #call)

/// A handle of `device`, the caller's to destroy. Runtime Error when cuBLASLt cannot start there.
cublasLtHandle_t create_cublaslt(int device);

/// One kind of product. The opaque structs are initialised in place: no allocation.
///
/// cuBLASLt is column-major. A row-major matrix is the column-major transpose, so out^T[n, m] = b^T[n, k] a^T[k, m]:
/// the operands trade places, their leading dimensions are the row strides, and a row-major bias over n is a bias over
/// the rows of what the library sees.
struct CublasLtProduct {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t first, second, addend, result;

    /// fp32 accumulation.
    CublasLtProduct();

    template <class Value>
    void set(cublasLtMatmulDescAttributes_t name, const Value& value) {
        UNSLOTH_CUBLASLT_CHECK(cublasLtMatmulDescSetAttribute(&operation, name, &value, sizeof value));
    }
    static void layout(cublasLtMatrixLayoutOpaque_t& out, cudaDataType_t type, int64_t rows, int64_t cols, int64_t ld);

    /// The library's choices, best first by its own estimate, `most` at most; empty when it has none. A split K is
    /// reduced in fp32 in a pass of its own: neither sums of rounded parts nor an order that varies. `alignments`:
    /// bytes, of first, second, addend and result.
    std::vector<cublasLtMatmulHeuristicResult_t> choices(cublasLtHandle_t handle, int64_t workspace, int most,
                                                         const std::array<uint32_t, 4>& alignments);
};

}  // namespace unsloth::kernels
