// One kind of product as cuBLASLt knows it: descriptors and algorithm. For kernels/*.cpp alone.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/gemm_table.h"

namespace unsloth::kernels {

/// What cuBLASLt is told at most, so that a larger planned scratch (attention's) does not change its choice.
constexpr int64_t most_gemm_workspace = int64_t{32} << 20;

/// Throws a runtime Error unless `status` is success.
void check_cublaslt(cublasStatus_t status, const char* call);

/// A handle of `device`, the caller's to destroy. Runtime Error when cuBLASLt cannot start there.
cublasLtHandle_t create_cublaslt(int device);

/// What the tables of measured algorithms know `device` by.
GemmCard gemm_card(int device);

/// Bytes, a power of two of 256 at most, to which a pointer is aligned: cuBLASLt looks at no more than that.
uint32_t gemm_alignment(const void* pointer);

/// "[m x k] x [k x n], row strides …" for messages.
std::string describe(const GemmCase& problem);

/// The descriptors of a product and an algorithm for it. The opaque structs are initialised in place: no allocation.
///
/// cuBLASLt is column-major. A row-major matrix is the column-major transpose, so out^T[n, m] = b^T[n, k] a^T[k, m]:
/// the operands trade places, their leading dimensions are the row strides, and a row-major bias over n is a bias over
/// the rows of what the library sees.
class GemmPlan {
  public:
    /// With the algorithm that `table` says, where it has one that this library can run; else with the library's first
    /// choice within `workspace` bytes. CheckError when the library has none.
    GemmPlan(cublasLtHandle_t handle, const GemmTable& table, const GemmCase& problem, int64_t workspace);
    /// With one algorithm; nullopt when this library cannot run it within `workspace` bytes.
    static std::optional<GemmPlan> with(cublasLtHandle_t handle, const GemmCase& problem, int64_t workspace,
                                        const GemmAlgorithm& algorithm);

    /// Tiles over multiprocessors, as the library counts them.
    double waves() const { return choice_.waves; }
    GemmAlgorithm algorithm() const;
    /// Issues the product. `problem` is of the kind the plan was made for; its pointers are free.
    void run(cublasLtHandle_t handle, const GemmCase& problem, void* workspace, cudaStream_t stream);

    /// The library's choices for a product, best first by its own estimate, `most` at most.
    static std::vector<GemmAlgorithm> choices(cublasLtHandle_t handle, const GemmCase& problem, int64_t workspace,
                                              int most);

  private:
    struct Choice {
        cublasLtMatmulAlgo_t algorithm;
        std::size_t workspace;
        double waves;
    };

    explicit GemmPlan(const GemmCase& problem);
    void describe_operation(const GemmCase& problem);
    void set_bias(const void* bias);
    template <class Value>
    void set(cublasLtMatmulDescAttributes_t name, const Value& value);
    std::optional<Choice> measured(cublasLtHandle_t handle, const GemmTable& table, const GemmCase& problem,
                                   int64_t workspace);
    std::optional<Choice> configured(cublasLtHandle_t handle, const GemmCase& problem, int64_t workspace,
                                     const GemmAlgorithm& algorithm);
    std::vector<Choice> heuristic(cublasLtHandle_t handle, int64_t workspace, int most,
                                  const std::array<uint32_t, 4>& alignments);

    cublasLtMatmulDescOpaque_t operation_;
    cublasLtMatrixLayoutOpaque_t first_, second_, addend_, result_;
    Choice choice_{};
};

}  // namespace unsloth::kernels
