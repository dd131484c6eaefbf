// Work over disjoint ranges, on several threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace unsloth::formats {

/// How many ranges for_ranges makes of `count` things.
inline int64_t range_count(int64_t count, int64_t least, int threads) {
    const int64_t wanted =
        threads > 0 ? threads : static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
    return std::clamp<int64_t>(count / least, 1, wanted);
}

/// Runs body(begin, end, range) over disjoint ranges of [0, count), each on its thread, of at least `least` things:
/// below that a thread costs more than it saves. `threads` 0: as many as the machine has. `body` must not throw.
template <class Body>
void for_ranges(int64_t count, int64_t least, int threads, const Body& body) {
    const int64_t ranges = range_count(count, least, threads);
    std::vector<std::jthread> workers;
    for (int64_t i = 1; i < ranges; ++i)
        workers.emplace_back([&, i] { body(count * i / ranges, count * (i + 1) / ranges, i); });
    body(0, count / ranges, 0);
}

}  // namespace unsloth::formats
