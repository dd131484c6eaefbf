// The order of an epoch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace unsloth {

/// What a row's 64-bit lot is drawn for; each use has its own stream of random numbers. The values lie beyond
/// what dropout's counter (core/philox.h) has in its last word, a channel / 4.
enum class LotUse : uint32_t { epoch_order = 0xDA7A0001u, validation_split = 0xDA7A0002u };

/// The lot of a source row: two words of Philox4x32-10 with the seed as key and {row (64 bits), epoch, use}
/// as counter.
uint64_t row_lot(uint64_t seed, int64_t row, uint32_t epoch, LotUse use);

/// A permutation of 0 ... rows.size() - 1: the places of `rows` (source row ids) sorted by (lot, row id). It
/// depends on (seed, epoch) and the ids alone, not on workers, ranks, batch sizes or what was drawn before;
/// leaving a row out does not disturb the others' order. `shuffle` false: the given order.
std::vector<int64_t> epoch_order(std::span<const int64_t> rows, uint64_t seed, uint32_t epoch, bool shuffle);

}  // namespace unsloth
