// One kind of product as cuBLASLt knows it: descriptors and algorithm. For kernels/*.cpp alone.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cublaslt.h"
#include "kernels/gemm_table.h"

namespace unsloth::kernels {

/// Bytes, a power of two of 256 at most, to which a pointer is aligned: cuBLASLt looks at no more than that.
uint32_t gemm_alignment(const void* pointer);

/// "[m x k] x [k x n], row strides …" for messages.
std::string describe(const GemmCase& problem);

/// A product and an algorithm for it.
class GemmPlan {
  public:
    /// With the algorithm that `table` says, where it has one that this library can run; else with the library's first
    /// choice within `workspace` bytes. CheckError when the library has none.
    GemmPlan(cublasLtHandle_t handle, const spec::KernelTable& table, const GemmCase& problem, int64_t workspace);
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
    std::optional<Choice> measured(cublasLtHandle_t handle, const spec::KernelTable& table, const GemmCase& problem,
                                   int64_t workspace);
    std::optional<Choice> configured(cublasLtHandle_t handle, const GemmCase& problem, int64_t workspace,
                                     const GemmAlgorithm& algorithm);
    std::vector<Choice> heuristic(cublasLtHandle_t handle, int64_t workspace, int most,
                                  const std::array<uint32_t, 4>& alignments);

    CublasLtProduct product_;
    Choice choice_{};
};

}  // namespace unsloth::kernels
