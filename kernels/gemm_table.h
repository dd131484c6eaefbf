// Which cuBLASLt algorithm a product takes on a card that was measured (spec/kernel_table.h). Host code without CUDA
// headers.
//
// The library's own first choice loses 5 to 10 % at the sizes of a training step: mostly to a last wave of tiles that
// fills few of the card's multiprocessors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/gemm_cublaslt.h"
#include "unsloth/spec/kernel_table.h"

namespace unsloth::kernels {

/// cuBLASLt's configuration attributes of an algorithm (CUBLASLT_ALGO_CONFIG_*), as it numbers them.
struct GemmAlgorithm {
    int32_t id = 0;
    uint32_t tile = 0, stages = 0;
    int32_t split_k = 1;
    uint32_t reduction = 0;  ///< 0, or with split_k > 1 COMPUTE_TYPE (2): parts added in fp32 in a fixed order
    uint32_t swizzle = 0, custom = 0;
    uint16_t inner_shape = 0, cluster = 0;

    bool operator==(const GemmAlgorithm&) const = default;
};

/// As the parameters of a choice, in this order, and back.
GemmAlgorithm algorithm_of(const spec::KernelChoice& choice);
std::vector<int64_t> parameters_of(const GemmAlgorithm& algorithm);
/// The parameters in braces, for people.
std::string text_of(const GemmAlgorithm& algorithm);

spec::ProductForm form_of(const GemmCase& problem);

/// An adapter adds its rank (three projections' at most) to K; a measured product applies to all ranks up to this sum.
constexpr int64_t widest_tail = 1023;
/// Rows from which the time of a product is that of its waves.
constexpr int64_t fewest_rows_of_waves = 1024;

/// The choice for a product that was measured itself; nullptr when this one was not, or is of another kind than was
/// measured (another type, a bias, rows not aligned to 16 bytes).
const spec::KernelChoice* measured_product(const spec::KernelTable& table, const GemmCase& problem);

/// The tiles to choose from for a product of many rows; empty where the time of waves does not describe it.
std::vector<const spec::KernelChoice*> measured_tiles(const spec::KernelTable& table, const GemmCase& problem);

/// Waves that start, of `waves` as cuBLASLt counts them (tiles over multiprocessors): the last takes as long as a full
/// one.
double full_waves(double waves);
/// The time of a product of `waves` waves.
double predicted_ns(const spec::KernelChoice& tile, double waves, int64_t k);

}  // namespace unsloth::kernels
