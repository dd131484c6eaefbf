#include "ops/gemm_coded_choice.h"

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

int64_t waves(int64_t multiprocessors, int64_t m, int64_t n, int64_t columns) {
    return ceil_div(ceil_div(m, rows_of_a_tile) * ceil_div(n, columns), multiprocessors);
}

kernels::CodedTile tile_of(int64_t multiprocessors, int64_t columns, int64_t m, int64_t n) {
    kernels::CodedTile tile;
    tile.columns = static_cast<int>(columns);
    tile.cluster = waves(multiprocessors, m, n, columns) >= sharing_waves ? 2 : 1;
    return tile;
}

}  // namespace

CodedGemmChoice coded_gemm_choice(const spec::KernelTable& table, int64_t m, int64_t n, int64_t k, int64_t rank) {
    const int64_t card = table.card.multiprocessors;
    const spec::ProductKey key{.op = spec::KernelOperator::gemm_fp8, .tokens = m, .n = n, .k = k, .rank = rank};
    if (const spec::KernelChoice* choice = table.find(key))
        return choice->kernel == spec::KernelSource::library
                   ? CodedGemmChoice{}
                   : CodedGemmChoice{true, tile_of(card, choice->parameters.at(0), m, n)};
    const spec::KernelChoice* best = nullptr;
    double least = 0;
    for (const spec::KernelChoice* candidate : table.candidates(key)) {
        const bool many = waves(card, m, n, 256) >= many_waves;
        const double cost =
            static_cast<double>(waves(card, m, n, candidate->parameters.at(0))) * candidate->wave.at(many ? 1 : 0);
        if (best != nullptr && cost >= least) continue;
        least = cost;
        best = candidate;
    }
    return best ? CodedGemmChoice{true, tile_of(card, best->parameters.at(0), m, n)} : CodedGemmChoice{};
}

kernels::CodedTile int8_gemm_tile(int64_t multiprocessors, int64_t m, int64_t n) {
    // A column of a tile of 128 takes 1.14 times as long as one of 192 (16384 x 28672 x 4096, H200, 2026-11-24).
    const auto cost = [&](int64_t columns, double of_a_column) {
        return static_cast<double>(waves(multiprocessors, m, n, columns) * columns) * of_a_column;
    };
    return tile_of(multiprocessors, cost(128, 1.14) < cost(192, 1) ? 128 : 192, m, n);
}

}  // namespace unsloth::ops
