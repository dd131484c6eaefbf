#include "unsloth/core/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>

namespace unsloth {

struct ContentHash::State {
    XXH3_state_t xxh;
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) {
    XXH3_128bits_reset(&state_->xxh);
}

ContentHash::~ContentHash() = default;

void ContentHash::add(std::string_view bytes) {
    XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

void ContentHash::add_field(std::string_view text) {
    const uint64_t size = text.size();
    add({reinterpret_cast<const char*>(&size), sizeof size});
    add(text);
}

std::string ContentHash::hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
    char text[33];
    std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                  static_cast<unsigned long long>(hash.low64));
    return text;
}

uint64_t ContentHash::word() const {
    return XXH3_128bits_digest(&state_->xxh).low64;
}

}  // namespace unsloth
