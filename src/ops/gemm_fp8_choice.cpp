#include "ops/gemm_fp8_choice.h"

#include <algorithm>

#include "unsloth/spec/measured_card.h"

namespace unsloth::ops {
namespace {

constexpr int64_t rows_of_a_tile = 128;

constexpr int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/// What a tile of so many columns takes, in units of a column's share of a tile of 256: measured. Narrow
/// tiles fetch more for each product. In a product of many waves the card's power limit makes them pay for
/// that.
struct TileCost {
    int columns;
    int64_t brief, lasting;
};

/// What was measured on a card: its multiprocessors and the costs of tiles.
struct MeasuredCard {
    std::string_view name;
    int64_t multiprocessors;
    TileCost tiles[3];
};

constexpr MeasuredCard cards[] = {
    {"NVIDIA H200", 132, {{256, 256, 256}, {192, 197, 197}, {128, 122, 136}}},
};

/// Waves of tiles after which a product counts as lasting, and from which sharing w's tiles between two
/// blocks pays for their waiting for each other.
constexpr int64_t lasting_waves = 5, sharing_waves = 4;

int64_t waves(const MeasuredCard& card, int64_t m, int64_t n, int columns) {
    return ceil_div(ceil_div(m, rows_of_a_tile) * ceil_div(n, columns), card.multiprocessors);
}

}  // namespace

std::optional<kernels::Fp8Tile> fp8_gemm_tile(int64_t m, int64_t n, std::string_view card) {
    const auto measured = std::find_if(std::begin(cards), std::end(cards),
                                       [&](const MeasuredCard& c) { return c.name == spec::measured_card(card); });
    if (measured == std::end(cards)) return std::nullopt;
    const bool lasting = waves(*measured, m, n, 256) >= lasting_waves;
    kernels::Fp8Tile best;
    int64_t least = -1;
    for (const TileCost& tile : measured->tiles) {
        const int64_t count = waves(*measured, m, n, tile.columns);
        const int64_t cost = count * (lasting ? tile.lasting : tile.brief);
        if (least >= 0 && cost >= least) continue;
        least = cost;
        best.columns = tile.columns;
        best.cluster = tile.columns > 64 && count >= sharing_waves ? 2 : 1;
    }
    return best;
}

Fp8GemmChoice fp8_gemm_choice(int64_t m, int64_t n, int64_t rank, std::string_view card) {
    // Without a tail the library is as fast at large m (within 4 % either way) and faster at small m.
    if (rank == 0) return {};
    const std::optional<kernels::Fp8Tile> tile = fp8_gemm_tile(m, n, card);
    return tile ? Fp8GemmChoice{true, *tile} : Fp8GemmChoice{};
}

}  // namespace unsloth::ops
