// What the passes of a model really did, in layers: settings that must not change a bit are seen here alone.
#pragma once

#include <cstdint>

namespace unsloth::model {

struct PassCounts {
    int64_t qkv = 0, attention = 0, mid = 0, gate_up = 0, down = 0;  ///< parts of a layer's forward, recomputed too
    int64_t moved_out = 0, moved_back = 0;                           ///< layers, to host memory and back
    int64_t recorded = 0, replayed = 0;                              ///< passes; a replay counts what it repeats too
    bool operator==(const PassCounts&) const = default;
};

inline PassCounts combine(PassCounts a, const PassCounts& b, int64_t sign) {
    for (const auto member :
         {&PassCounts::qkv, &PassCounts::attention, &PassCounts::mid, &PassCounts::gate_up, &PassCounts::down,
          &PassCounts::moved_out, &PassCounts::moved_back, &PassCounts::recorded, &PassCounts::replayed})
        a.*member += sign * (b.*member);
    return a;
}
inline PassCounts operator+(const PassCounts& a, const PassCounts& b) {
    return combine(a, b, 1);
}
inline PassCounts operator-(const PassCounts& a, const PassCounts& b) {
    return combine(a, b, -1);
}

}  // namespace unsloth::model
