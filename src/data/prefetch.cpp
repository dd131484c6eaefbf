#include "unsloth/data/prefetch.h"

#include <utility>

#include "unsloth/core/error.h"

namespace unsloth::data {

Prefetcher::Prefetcher(Load load, int64_t first, int64_t end, int depth)
    : load_(std::move(load)), depth_(static_cast<std::size_t>(depth)) {
    UNSLOTH_CHECK(depth > 0, "depth ", depth);
    thread_ = std::thread([this, first, end] { run(first, end); });
}

Prefetcher::~Prefetcher() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void Prefetcher::run(int64_t first, int64_t end) {
    std::exception_ptr failure;
    try {
        for (int64_t step = first; step < end; ++step) {
            {
                std::unique_lock lock(mutex_);
                changed_.wait(lock, [&] { return stop_ || ready_.size() < depth_; });
                if (stop_) return;
            }
            StepBatch batch = load_(step);
            {
                const std::lock_guard lock(mutex_);
                ready_.push_back(std::move(batch));
            }
            changed_.notify_all();
        }
    } catch (...) {
        failure = std::current_exception();
    }
    {
        const std::lock_guard lock(mutex_);
        failure_ = failure;
        finished_ = true;
    }
    changed_.notify_all();
}

std::optional<StepBatch> Prefetcher::next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_ || !ready_.empty(); });
    if (!ready_.empty()) {
        StepBatch batch = std::move(ready_.front());
        ready_.pop_front();
        lock.unlock();
        changed_.notify_all();
        return batch;
    }
    if (failure_) std::rethrow_exception(failure_);
    return std::nullopt;
}

}  // namespace unsloth::data
