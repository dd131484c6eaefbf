#include "unsloth/core/parallel.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace unsloth {

void parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body, int threads) {
    if (count <= 0) return;
    const int64_t wanted =
        threads > 0 ? threads : static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
    const int64_t ranges = std::clamp<int64_t>(count / std::max<int64_t>(grain, 1), 1, wanted);
    std::exception_ptr failure;
    std::mutex guard;
    const auto run = [&](int64_t i) {
        try {
            body(count * i / ranges, count * (i + 1) / ranges);
        } catch (...) {
            const std::lock_guard lock(guard);
            if (!failure) failure = std::current_exception();
        }
    };
    {
        std::vector<std::jthread> workers;
        for (int64_t i = 1; i < ranges; ++i) workers.emplace_back(run, i);
        run(0);
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace unsloth
