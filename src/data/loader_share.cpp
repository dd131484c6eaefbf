// A rank's share of the rows of a round.
#include <algorithm>
#include <numeric>

#include "unsloth/data/loader.h"

namespace unsloth::data {

/// Our part of a round, as places in the epoch's order, ascending: of rows equal numbers, the first ranks taking one
/// more where they do not come out even, so that the ranks' tokens differ little; of micro-batches filled by tokens the
/// one of our number, if the epoch has it.
std::vector<int64_t> StepLoader::own_places(int64_t round) const {
    const auto [begin, end] = round_places(round);
    std::vector<int64_t> own;
    if (fills_by_tokens()) {
        const int64_t batch = round * options_.world_size + options_.rank;
        if (batch >= batches_per_epoch()) return own;
        own.resize(static_cast<std::size_t>(batch_ends_[static_cast<std::size_t>(batch)] - begin_of_batch(batch)));
        std::iota(own.begin(), own.end(), begin_of_batch(batch));
        return own;
    }
    std::vector<int64_t> places(static_cast<std::size_t>(end - begin));
    std::iota(places.begin(), places.end(), begin);
    if (options_.world_size == 1) return places;
    return share_of(places);
}

/// Longest rows first, each to the rank that has least tokens so far and may still take a row (Graham's rule for equal
/// loads).
std::vector<int64_t> StepLoader::share_of(std::vector<int64_t> places) const {
    const auto tokens = [&](int64_t place) {
        return unit_tokens_[static_cast<std::size_t>(order_[static_cast<std::size_t>(place)])];
    };
    const auto ranks = static_cast<std::size_t>(options_.world_size);
    std::vector<std::size_t> room(ranks, places.size() / ranks);
    for (std::size_t r = 0; r < places.size() % ranks; ++r) ++room[r];
    std::stable_sort(places.begin(), places.end(), [&](int64_t a, int64_t b) { return tokens(a) > tokens(b); });
    std::vector<int64_t> load(ranks), own;
    for (const int64_t place : places) {
        std::size_t least = ranks;
        for (std::size_t r = 0; r < ranks; ++r)
            if (room[r] > 0 && (least == ranks || load[r] < load[least])) least = r;
        --room[least];
        load[least] += tokens(place);
        if (static_cast<int>(least) == options_.rank) own.push_back(place);
    }
    std::sort(own.begin(), own.end());
    return own;
}

}  // namespace unsloth::data
