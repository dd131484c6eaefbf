#include "ops/gemm_fp8_choice.h"

namespace unsloth::ops {
namespace {

constexpr int64_t rows_of_a_tile = 128;

constexpr int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/// Waves of tiles after which a product counts as one of many: then the card's power limit makes narrow tiles pay for
/// fetching more for each product. And from which sharing w's tiles between two blocks pays for their waiting for each
/// other.
constexpr int64_t many_waves = 5, sharing_waves = 4;

int64_t waves(const spec::KernelTable& table, int64_t m, int64_t n, int64_t columns) {
    return ceil_div(ceil_div(m, rows_of_a_tile) * ceil_div(n, columns), table.card.multiprocessors);
}

kernels::Fp8Tile tile_of(const spec::KernelTable& table, const spec::KernelChoice& choice, int64_t m, int64_t n) {
    kernels::Fp8Tile tile;
    tile.columns = static_cast<int>(choice.parameters.at(0));
    tile.cluster = waves(table, m, n, tile.columns) >= sharing_waves ? 2 : 1;
    return tile;
}

}  // namespace

Fp8GemmChoice fp8_gemm_choice(const spec::KernelTable& table, int64_t m, int64_t n, int64_t k, int64_t rank) {
    const spec::ProductKey key{.op = spec::KernelOperator::gemm_fp8, .tokens = m, .n = n, .k = k, .rank = rank};
    if (const spec::KernelChoice* choice = table.find(key))
        return choice->kernel == spec::KernelSource::library ? Fp8GemmChoice{}
                                                             : Fp8GemmChoice{true, tile_of(table, *choice, m, n)};
    const spec::KernelChoice* best = nullptr;
    double least = 0;
    for (const spec::KernelChoice* candidate : table.candidates(key)) {
        const bool many = waves(table, m, n, 256) >= many_waves;
        const double cost =
            static_cast<double>(waves(table, m, n, candidate->parameters.at(0))) * candidate->wave.at(many ? 1 : 0);
        if (best != nullptr && cost >= least) continue;
        least = cost;
        best = candidate;
    }
    return best ? Fp8GemmChoice{true, tile_of(table, *best, m, n)} : Fp8GemmChoice{};
}

}  // namespace unsloth::ops
