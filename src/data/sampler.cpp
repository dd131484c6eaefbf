#include "unsloth/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/core/philox.h"

namespace unsloth::data {
namespace {

/// How many rows go to validation.
int64_t validation_count(double val_size, int64_t rows) {
    if (!(val_size >= 0) || (val_size >= 1 && val_size != std::floor(val_size)))
        throw Error("option.out-of-range",
                    cat("data.val_size is ", val_size, ": expected a fraction below 1 or a whole number of rows"));
    constexpr double slack = 1e-9;  // 0.07 of 100 rows are 7, although 0.07 * 100 > 7
    const double wanted = val_size < 1 ? std::ceil(val_size * static_cast<double>(rows) - slack) : val_size;
    if (wanted >= static_cast<double>(rows) && wanted > 0)
        throw Error("data.too-few-rows",
                    cat("data.val_size is ", val_size, ", which leaves none of the ", rows, " rows to train on"),
                    "Choose a smaller one, or name an eval_file.");
    return static_cast<int64_t>(wanted);
}

}  // namespace

uint64_t row_lot(uint64_t seed, int64_t row, uint32_t epoch, RngStream use) {
    const auto low = [](uint64_t value) { return static_cast<uint32_t>(value); };
    const auto high = [](uint64_t value) { return static_cast<uint32_t>(value >> 32); };
    const auto id = static_cast<uint64_t>(row);
    const PhiloxWords words = philox4x32(low(seed), high(seed), low(id), high(id), epoch, static_cast<uint32_t>(use));
    return static_cast<uint64_t>(words.w[0]) << 32 | words.w[1];
}

std::vector<int64_t> epoch_order(std::span<const int64_t> rows, uint64_t seed, uint32_t epoch, bool shuffle,
                                 RngStream use) {
    std::vector<int64_t> order(rows.size());
    std::iota(order.begin(), order.end(), 0);
    if (!shuffle) return order;

    const auto row_at = [&](int64_t place) { return rows[static_cast<std::size_t>(place)]; };
    std::vector<uint64_t> lots(rows.size());
    std::transform(rows.begin(), rows.end(), lots.begin(), [&](int64_t row) { return row_lot(seed, row, epoch, use); });
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return std::pair(lots[static_cast<std::size_t>(a)], row_at(a)) <
               std::pair(lots[static_cast<std::size_t>(b)], row_at(b));
    });
    return order;
}

std::vector<int64_t> validation_places(std::span<const int64_t> rows, double val_size, uint64_t seed) {
    const auto wanted = static_cast<std::size_t>(validation_count(val_size, static_cast<int64_t>(rows.size())));
    std::vector<std::pair<uint64_t, int64_t>> lots;  // {lot, place}
    for (std::size_t i = 0; i < rows.size(); ++i)
        lots.emplace_back(row_lot(seed, rows[i], 0, RngStream::validation_split), static_cast<int64_t>(i));
    std::sort(lots.begin(), lots.end());
    std::vector<int64_t> places;
    for (std::size_t k = 0; k < wanted; ++k) places.push_back(lots[k].second);
    std::sort(places.begin(), places.end());
    return places;
}

std::vector<int64_t> mixture_counts(std::span<const int64_t> source_rows, std::span<const double> weights) {
    UNSLOTH_CHECK(source_rows.size() == weights.size(), source_rows.size(), " sources, ", weights.size(), " weights");
    double rows = 0, sum = 0;
    for (std::size_t s = 0; s < weights.size(); ++s) {
        rows += static_cast<double>(source_rows[s]);
        sum += source_rows[s] > 0 ? weights[s] : 0;
    }
    std::vector<int64_t> counts;
    for (std::size_t s = 0; s < weights.size(); ++s)
        counts.push_back(source_rows[s] == 0 ? 0 : std::max<int64_t>(1, std::llround(rows * weights[s] / sum)));
    return counts;
}

std::vector<int64_t> mixture_order(std::span<const MixtureSource> sources, std::span<const int64_t> rows, uint64_t seed,
                                   uint32_t epoch, bool shuffle) {
    struct Taken {
        uint64_t lot;
        int64_t row, pass, place;
        bool operator<(const Taken& other) const {
            return std::tie(lot, row, pass) < std::tie(other.lot, other.row, other.pass);
        }
    };
    std::vector<Taken> taken;
    for (const MixtureSource& source : sources) {
        const auto size = static_cast<int64_t>(source.places.size());
        std::vector<int64_t> ids, pass_order;
        for (const int64_t place : source.places) ids.push_back(rows[static_cast<std::size_t>(place)]);
        int64_t ordered_pass = -1;
        for (int64_t at = int64_t{epoch} * source.count; at < (int64_t{epoch} + 1) * source.count; ++at) {
            const int64_t pass = at / size;
            if (pass != ordered_pass) pass_order = epoch_order(ids, seed, static_cast<uint32_t>(pass), shuffle);
            ordered_pass = pass;
            const auto chosen = static_cast<std::size_t>(pass_order[static_cast<std::size_t>(at % size)]);
            // Row ids have 31 bits: the pass above them gives a row's repetitions lots of their own.
            const uint64_t lot = row_lot(seed, ids[chosen] | pass << 32, epoch, RngStream::mixture_order);
            taken.push_back({lot, ids[chosen], pass, source.places[chosen]});
        }
    }
    if (shuffle) std::sort(taken.begin(), taken.end());
    std::vector<int64_t> order;
    for (const Taken& item : taken) order.push_back(item.place);
    return order;
}

}  // namespace unsloth::data
