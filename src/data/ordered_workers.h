// A small ordered parallel map.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace unsloth {

/// Runs make(k) for k in [0, count) on `workers` threads and take(result) for ascending k on the calling
/// thread; no worker runs more than a few results ahead. The first exception, in the order of k, of make or
/// of take is thrown here after the workers have ended.
template <class Result, class Make, class Take>
class OrderedWorkers {
  public:
    OrderedWorkers(int64_t count, int workers, Make make, Take take)
        : count_(count), ahead_(4 * int64_t{workers}), make_(std::move(make)), take_(std::move(take)) {
        const int64_t threads = std::min<int64_t>(workers, count);
        for (int64_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    }
    OrderedWorkers(const OrderedWorkers&) = delete;
    OrderedWorkers& operator=(const OrderedWorkers&) = delete;
    ~OrderedWorkers() {
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
        }
        changed_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }

    void run() {
        for (int64_t k = 0; k < count_; ++k) {
            Outcome outcome = wait_for(k);
            if (outcome.failure) std::rethrow_exception(outcome.failure);
            take_(std::move(*outcome.result));
        }
    }

  private:
    struct Outcome {
        std::optional<Result> result;
        std::exception_ptr failure;
    };

    void work() {
        while (true) {
            int64_t k = 0;
            {
                std::unique_lock lock(mutex_);
                changed_.wait(lock, [&] { return stop_ || next_ == count_ || next_ < taken_ + ahead_; });
                if (stop_ || next_ == count_) return;
                k = next_++;
            }
            Outcome outcome;
            try {
                outcome.result.emplace(make_(k));
            } catch (...) {
                outcome.failure = std::current_exception();
            }
            {
                const std::lock_guard lock(mutex_);
                done_.emplace(k, std::move(outcome));
            }
            changed_.notify_all();
        }
    }

    Outcome wait_for(int64_t k) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return done_.count(k) > 0; });
        Outcome outcome = std::move(done_.extract(k).mapped());
        taken_ = k + 1;
        changed_.notify_all();
        return outcome;
    }

    const int64_t count_;
    const int64_t ahead_;
    Make make_;
    Take take_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<int64_t, Outcome> done_;
    int64_t next_ = 0;
    int64_t taken_ = 0;
    bool stop_ = false;
    std::vector<std::thread> threads_;  ///< last: they use everything above
};

/// See OrderedWorkers.
template <class Result, class Make, class Take>
void run_in_order(int64_t count, int workers, Make make, Take take) {
    OrderedWorkers<Result, Make, Take>(count, workers, std::move(make), std::move(take)).run();
}

}  // namespace unsloth
