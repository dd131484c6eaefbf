// The algorithms that cuBLASLt has for one product, to be timed: what tables of choices are made from.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/gemm_table.h"

namespace unsloth::kernels {

/// Used by one thread at a time. Every algorithm adds the parts of a split K in fp32 in a fixed order.
class GemmTrials {
  public:
    /// The library's choices for `problem`, the tiles of `table`, and neighbours of both that the library
    /// did not name (other clusters, other options), as far as they run within `workspace_bytes`.
    GemmTrials(int device, const spec::KernelTable& table, const GemmCase& problem, int64_t workspace_bytes);
    ~GemmTrials();
    GemmTrials(const GemmTrials&) = delete;
    GemmTrials& operator=(const GemmTrials&) = delete;

    std::size_t count() const;
    std::size_t first() const { return 0; }  ///< the library's first choice
    std::size_t ours() const;                ///< what CublasLt::run takes by `table`
    GemmAlgorithm algorithm(std::size_t trial) const;
    double waves(std::size_t trial) const;
    /// Issues the product. `problem` differs from the constructor's in its pointers at most.
    void run(std::size_t trial, const GemmCase& problem, void* workspace, void* stream);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace unsloth::kernels
