// cuBLASLt's algorithms for one product, to be timed: what tables of choices are made from (`tune`, `bench
// gemm`). Built with UNSLOTH_CUDA only.
#pragma once

#include <memory>
#include <string>

#include "unsloth/ops/gemm.h"
#include "unsloth/spec/kernel_table.h"

namespace unsloth::ops {

class GemmTrials {
  public:
    /// The algorithms for `like` within ctx.workspace; ctx is a CUDA device's.
    GemmTrials(Context& ctx, const Gemm& like);
    ~GemmTrials();

    std::size_t count() const;
    std::size_t first() const { return 0; }  ///< the library's first choice
    std::size_t ours() const;                ///< what gemm() takes
    /// Issues the product; `args` has the sizes, strides, types and alignments of `like`.
    void run(std::size_t trial, const Gemm& args);

    /// The algorithm's parameters: equal for equal algorithms.
    std::string name(std::size_t trial) const;
    /// Whether its time is that of its waves of tiles, and how many full ones `like` takes.
    bool in_waves(std::size_t trial) const;
    double waves(std::size_t trial) const;
    /// As a table's choice for these numbers of rows of a GEMM that is k_base wide without adapters.
    spec::KernelChoice choice(std::size_t trial, spec::Interval tokens, int64_t k_base) const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace unsloth::ops
