#include "unsloth/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "unsloth/core/philox.h"

namespace unsloth {

uint64_t row_lot(uint64_t seed, int64_t row, uint32_t epoch, LotUse use) {
    const auto low = [](uint64_t value) { return static_cast<uint32_t>(value); };
    const auto high = [](uint64_t value) { return static_cast<uint32_t>(value >> 32); };
    const auto id = static_cast<uint64_t>(row);
    const PhiloxWords words =
        philox4x32(low(seed), high(seed), low(id), high(id), epoch, static_cast<uint32_t>(use));
    return static_cast<uint64_t>(words.w[0]) << 32 | words.w[1];
}

std::vector<int64_t> epoch_order(std::span<const int64_t> rows, uint64_t seed, uint32_t epoch, bool shuffle) {
    std::vector<int64_t> order(rows.size());
    std::iota(order.begin(), order.end(), 0);
    if (!shuffle) return order;

    const auto row_at = [&](int64_t place) { return rows[static_cast<std::size_t>(place)]; };
    std::vector<uint64_t> lots(rows.size());
    std::transform(rows.begin(), rows.end(), lots.begin(),
                   [&](int64_t row) { return row_lot(seed, row, epoch, LotUse::epoch_order); });
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return std::pair(lots[static_cast<std::size_t>(a)], row_at(a)) <
               std::pair(lots[static_cast<std::size_t>(b)], row_at(b));
    });
    return order;
}

}  // namespace unsloth
