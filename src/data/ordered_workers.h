// A small ordered parallel map.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace unsloth::data {

/// Pieces of work come from next(), which `workers` threads call one at a time until it gives nothing; each runs
/// make(piece) on its own, and take(result) is called in the order of the pieces on the calling thread. No worker runs
/// more than a few results ahead. The first exception, in the order of the pieces, of next, of make or of take is
/// thrown here after the workers have ended.
template <class Piece, class Result, class Next, class Make, class Take>
class OrderedWorkers {
  public:
    OrderedWorkers(int workers, Next next, Make make, Take take)
        : ahead_(4 * int64_t{workers}), next_piece_(std::move(next)), make_(std::move(make)), take_(std::move(take)) {
        for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
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
        for (int64_t k = 0;; ++k) {
            Outcome outcome = wait_for(k);
            if (outcome.failure) std::rethrow_exception(outcome.failure);
            if (!outcome.result) return;
            take_(std::move(*outcome.result));
        }
    }

  private:
    /// Of one piece; with neither, the end.
    struct Outcome {
        std::optional<Result> result;
        std::exception_ptr failure;
    };

    void work() {
        while (true) {
            int64_t k = 0;
            std::optional<Piece> piece;
            Outcome outcome;
            {
                std::unique_lock lock(mutex_);
                changed_.wait(lock, [&] { return stop_ || (!reading_ && next_ < taken_ + ahead_); });
                if (stop_) return;
                k = next_++;
                reading_ = true;  // the others may hand in results meanwhile
            }
            try {
                piece = next_piece_();
            } catch (...) {
                outcome.failure = std::current_exception();
            }
            {
                const std::lock_guard lock(mutex_);
                reading_ = false;
                if (!piece) {
                    stop_ = true;
                    done_.emplace(k, std::move(outcome));
                }
            }
            changed_.notify_all();
            if (!piece) return;
            try {
                outcome.result.emplace(make_(*piece));
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

    const int64_t ahead_;
    Next next_piece_;
    Make make_;
    Take take_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<int64_t, Outcome> done_;
    int64_t next_ = 0;
    int64_t taken_ = 0;
    bool reading_ = false;              ///< a worker is in next()
    bool stop_ = false;                 ///< no more pieces
    std::vector<std::thread> threads_;  ///< last: they use everything above
};

/// See OrderedWorkers.
template <class Piece, class Result, class Next, class Make, class Take>
void run_in_order(int workers, Next next, Make make, Take take) {
    OrderedWorkers<Piece, Result, Next, Make, Take>(workers, std::move(next), std::move(make), std::move(take)).run();
}

}  // namespace unsloth::data
