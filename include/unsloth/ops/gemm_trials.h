// cuBLASLt's algorithms for one product, to be timed: what the committed tables of algorithms are made from (`bench
// gemm`). Built with UNSLOTH_CUDA only.
#pragma once

#include <memory>
#include <string>

#include "unsloth/ops/gemm.h"

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

    /// From now on gemm() on this context takes the trial for products of like's sizes and transposes. Work that was
    /// recorded keeps what it was recorded with.
    void prefer(std::size_t trial);

    /// The algorithm as the tables write it: equal for equal algorithms.
    std::string name(std::size_t trial) const;
    /// Whether its time is that of its waves of tiles, and how many full ones `like` takes.
    bool in_waves(std::size_t trial) const;
    double waves(std::size_t trial) const;
    /// Lines of the tables: this algorithm for m_first … m_last rows of a product that is k_base wide without adapters;
    /// and its cost of a wave, ns_per_k K + ns.
    std::string product_line(std::size_t trial, int64_t m_first, int64_t m_last, int64_t k_base) const;
    static std::string tile_line(bool transpose_b, double ns_per_k, double ns, const std::string& name);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace unsloth::ops
