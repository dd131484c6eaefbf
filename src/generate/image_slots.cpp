#include "unsloth/generate/image_slots.h"

#include <algorithm>

#include "unsloth/core/check.h"

namespace unsloth::generate {

std::optional<int64_t> ImageSlots::acquire(const Key& key, int64_t images) {
    UNSLOTH_CHECK(images > 0 && images <= count_, images, " images in ", count_, " slots");
    const auto found = std::ranges::find(taken_, key, &Taken::key);
    if (found != taken_.end()) {
        ++found->holders;
        found->used = ++uses_;
        return found->first;
    }
    // Where what has to go was not needed for the longest time.
    std::optional<int64_t> best;
    uint64_t best_used = 0;
    for (int64_t first = 0; first + images <= count_; ++first) {
        bool held = false;
        uint64_t used = 0;
        for (const Taken& other : taken_) {
            if (!other.meets(first, first + images)) continue;
            held = held || other.holders > 0;
            used = std::max(used, other.used);
        }
        if (held || (best && used >= best_used)) continue;
        best = first;
        best_used = used;
    }
    if (!best) return std::nullopt;
    std::erase_if(taken_, [&](const Taken& other) { return other.meets(*best, *best + images); });
    taken_.push_back({.first = *best, .images = images, .holders = 1, .used = ++uses_, .has_keys = false, .key = key});
    return best;
}

ImageSlots::Taken& ImageSlots::at(int64_t first) {
    const auto found = std::ranges::find(taken_, first, &Taken::first);
    UNSLOTH_CHECK(found != taken_.end(), "no images are in slot ", first);
    return *found;
}
const ImageSlots::Taken& ImageSlots::at(int64_t first) const {
    return const_cast<ImageSlots&>(*this).at(first);
}

void ImageSlots::release(int64_t first) {
    Taken& images = at(first);
    UNSLOTH_CHECK(images.holders > 0, "slot ", first, " is released, and no one holds it");
    --images.holders;
    if (images.holders == 0 && !images.has_keys)
        std::erase_if(taken_, [&](const Taken& other) { return other.first == first; });
}

bool ImageSlots::has_keys(int64_t first) const {
    return at(first).has_keys;
}
void ImageSlots::note_keys(int64_t first) {
    at(first).has_keys = true;
}

}  // namespace unsloth::generate
