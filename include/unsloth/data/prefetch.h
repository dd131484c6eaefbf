// A thread that makes the next steps' batches while the device works on this one.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "unsloth/data/batch.h"

namespace unsloth::data {

/// Calls load(first), load(first + 1), ... load(end - 1) on a thread of its own and keeps at most `depth`
/// results waiting.
class Prefetcher {
  public:
    using Load = std::function<StepBatch(int64_t step)>;

    Prefetcher(Load load, int64_t first, int64_t end, int depth = 2);
    Prefetcher(const Prefetcher&) = delete;
    Prefetcher& operator=(const Prefetcher&) = delete;
    /// Stops after the call of `load` in progress, if any.
    ~Prefetcher();

    /// The next step, in order; nothing after the last. What `load` threw is thrown here, once its turn comes
    /// and at every later call.
    std::optional<StepBatch> next();

  private:
    void run(int64_t first, int64_t end);

    Load load_;
    std::size_t depth_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<StepBatch> ready_;
    std::exception_ptr failure_;
    bool finished_ = false;  ///< the thread has nothing more to give
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace unsloth::data
