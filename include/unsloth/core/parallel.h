// Loops over ranges on several threads.
#pragma once

#include <cstdint>
#include <functional>

namespace unsloth {

/// Runs body(begin, end) over disjoint ranges that together are [0, count), each of about count / threads elements but
/// of at least `grain`, and returns when all have ended. `threads`: 0 means as many as the machine has. The ranges
/// depend on the number of threads: a body's result must not. The first exception of a body (in no certain order) is
/// thrown again here.
void parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body,
                     int threads = 0);

}  // namespace unsloth
