// The order of an epoch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace unsloth::data {

/// What a row's 64-bit random number is drawn for; each use has a stream of its own. The values are larger than
/// what dropout's counter (core/philox.h) has in its last word, a channel / 4.
enum class RngStream : uint32_t {
    epoch_order = 0xDA7A0001u,
    validation_split = 0xDA7A0002u,
    mixture_order = 0xDA7A0003u,
    batch_order = 0xDA7A0004u
};

/// The lot of a source row: two words of Philox4x32-10 with the seed as key and {row (64 bits), epoch, use}
/// as counter.
uint64_t row_lot(uint64_t seed, int64_t row, uint32_t epoch, RngStream use);

/// A permutation of 0 ... rows.size() - 1: the places of `rows` (source row ids) sorted by (lot, row id). It
/// depends on (seed, epoch) and the ids alone, not on workers, ranks, batch sizes or what was drawn before;
/// leaving a row out does not disturb the others' order. `shuffle` false: the given order.
std::vector<int64_t> epoch_order(std::span<const int64_t> rows, uint64_t seed, uint32_t epoch, bool shuffle,
                                 RngStream use = RngStream::epoch_order);

/// The places of the rows that data.val_size holds out for validation, ascending. `val_size` below 1 is a fraction
/// (rounded up), else a number of rows; 0: none. A row's lot is a hash of (seed, row id): the rows with the smallest
/// are held out, so few change sides when the file grows. Usage Error when no row would be left to train on.
std::vector<int64_t> validation_places(std::span<const int64_t> rows, double val_size, uint64_t seed);

/// One source of a mixture.
struct MixtureSource {
    std::vector<int64_t> places;  ///< of its rows in the list of all rows' ids
    int64_t count = 0;            ///< rows that an epoch takes of it: fewer than there are, or more
};

/// How many rows of each source an epoch takes, by weight: N x weight / (sum of the weights), rounded to the nearest,
/// at least 1, where N is the number of all rows. A source without rows gives none.
std::vector<int64_t> mixture_counts(std::span<const int64_t> source_rows, std::span<const double> weights);

/// The order of an epoch over weighted sources, as places in `rows`; a place may come several times. A source is passed
/// over again and again, each pass in the order that epoch_order() gives with the pass for the epoch, and epoch e takes
/// the places [e x count, (e + 1) x count) of these passes: so every row of it comes as often as the others, to within
/// one. What is taken of all sources is then sorted by the lots of (row, pass). A function of (seed, epoch) and the
/// ids; `shuffle` false: passes in the given order, one source after another.
std::vector<int64_t> mixture_order(std::span<const MixtureSource> sources, std::span<const int64_t> rows, uint64_t seed,
                                   uint32_t epoch, bool shuffle);

}  // namespace unsloth::data
