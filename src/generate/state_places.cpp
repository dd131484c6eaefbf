#include "unsloth/generate/state_places.h"

#include <algorithm>
#include <utility>

#include "unsloth/core/error.h"

namespace unsloth::generate {

int32_t StatePlaces::take() {
    const auto free = std::find(taken_.begin(), taken_.end(), false);
    UNSLOTH_CHECK(free != taken_.end(), "all ", taken_.size(), " places of states are taken");
    *free = true;
    return static_cast<int32_t>(free - taken_.begin());
}

void StatePlaces::give_back(int32_t place) {
    UNSLOTH_CHECK(taken_.at(static_cast<std::size_t>(place)), "no sequence has place ", place);
    taken_[static_cast<std::size_t>(place)] = false;
}

int32_t StatePlaces::hold(PrefixHash text) {
    const int32_t place = of_text_.at(text);
    at(place).used = ++uses_;
    ++at(place).holders;
    return place;
}

void StatePlaces::forget(Snapshot& snapshot) {
    if (snapshot.text != 0) of_text_.erase(std::exchange(snapshot.text, 0));
}

std::optional<int32_t> StatePlaces::allocate() {
    Snapshot* oldest = nullptr;
    for (Snapshot& snapshot : snapshots_)
        if (snapshot.holders == 0 && (oldest == nullptr || snapshot.used < oldest->used)) oldest = &snapshot;
    if (oldest == nullptr) return std::nullopt;
    forget(*oldest);
    oldest->holders = 1;
    oldest->used = ++uses_;
    return first_ + static_cast<int32_t>(oldest - snapshots_.data());
}

void StatePlaces::commit(int32_t place, PrefixHash text) {
    release(place);
    if (has(text)) return;  // of a sequence that came to it at the same time
    at(place).text = text;
    of_text_[text] = place;
}

}  // namespace unsloth::generate
