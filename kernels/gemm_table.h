// Which cuBLASLt algorithm a product takes on a card that was measured. Host code without CUDA headers.
//
// The library's own first choice loses 5 to 10 % at the sizes of a training step: mostly to a last wave of tiles that
// fills few of the card's multiprocessors. The choice here comes from committed tables, never from timings of the
// present run: another algorithm adds in another order, and a resumed run has to give the bits it would have given.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/gemm_cublaslt.h"

namespace unsloth::kernels {

/// What tells one measured card from another.
struct GemmCard {
    std::string name;            ///< as CUDA gives it: "NVIDIA H200"
    int compute_capability = 0;  ///< 10 major + minor
    int multiprocessors = 0;     ///< fewer in a slice of a card, for which nothing was measured
};

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

/// Which operands a product uses transposed: `nt` is a b^T (forward), `nn` a b (the input's gradient).
enum class GemmForm : uint8_t { nn, nt, tn, tt };

GemmForm form_of(const GemmCase& problem);

/// A product whose best algorithm was measured: for few rows, where no model of the time holds.
struct GemmProduct {
    int64_t m_first, m_last;  ///< the rows it serves, both included
    int64_t n, k;             ///< k as the model has it: adapters widen it by up to `widest_tail`
    GemmForm form;
    GemmAlgorithm algorithm;
};

/// An algorithm for products of many rows, and what a wave of its tiles (one on each multiprocessor) takes.
struct GemmTile {
    GemmForm form;
    double ns_per_k, ns;  ///< a wave's time is ns_per_k K + ns, whatever its tiles do
    GemmAlgorithm algorithm;
};

/// What is known of a card.
struct GemmTable {
    std::span<const GemmProduct> products;
    std::span<const GemmTile> tiles;
};

/// An adapter adds its rank (three projections' at most) to K; a measured product serves every rank up to this sum.
constexpr int64_t widest_tail = 1023;
/// Rows from which the time of a product is that of its waves.
constexpr int64_t fewest_rows_of_waves = 1024;

/// The table of `card`; empty for one that was not measured.
GemmTable measured_table(const GemmCard& card);

/// The algorithm of a measured product; nullptr when this one was not.
const GemmAlgorithm* measured_product(const GemmTable& table, const GemmCase& problem);

/// The tiles to choose from for a product of many rows; empty where the time of waves does not describe it (few rows or
/// columns, another type or form than was measured, a bias, rows not aligned to 16 bytes).
std::vector<GemmTile> measured_tiles(const GemmTable& table, const GemmCase& problem);

/// Waves that start, of `waves` as cuBLASLt counts them (tiles over multiprocessors): the last takes as long as a full
/// one.
double full_waves(double waves);
/// The time of a product of `waves` waves.
double predicted_ns(const GemmTile& tile, double waves, int64_t k);

/// As gemm_table_*.cpp holds them; equal for equal ones.
std::string table_text(const GemmAlgorithm& algorithm);
std::string table_text(const GemmProduct& product);
/// A GemmTile whose algorithm is given as its text.
std::string tile_text(GemmForm form, double ns_per_k, double ns, const std::string& algorithm);

}  // namespace unsloth::kernels
