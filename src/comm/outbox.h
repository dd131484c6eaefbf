// A thread that does one piece of work after the other, concurrently with the thread that hands them over.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace unsloth::comm {

class Outbox {
  public:
    Outbox() = default;
    /// Work that waits should look at closes().
    ~Outbox() {
        {
            const std::lock_guard lock(mutex_);
            closes_ = true;
        }
        changed_.notify_all();
        if (thread_.joinable()) thread_.join();
    }
    Outbox(const Outbox&) = delete;
    Outbox& operator=(const Outbox&) = delete;

    /// What is done, or what it throws. The thread begins with the first.
    std::future<void> take(std::function<void()> work) {
        std::packaged_task<void()> task(std::move(work));
        std::future<void> done = task.get_future();
        {
            const std::lock_guard lock(mutex_);
            tasks_.push_back(std::move(task));
            if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
        }
        changed_.notify_all();
        return done;
    }
    bool closes() const { return closes_; }

  private:
    void run() {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return closes_ || !tasks_.empty(); });
            if (closes_) return;
            std::packaged_task<void()> task = std::move(tasks_.front());
            tasks_.pop_front();
            lock.unlock();
            task();
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::packaged_task<void()>> tasks_;
    std::atomic<bool> closes_{false};
    std::thread thread_;
};

}  // namespace unsloth::comm
