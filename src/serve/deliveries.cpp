#include "serve/deliveries.h"

#include "unsloth/core/log.h"

namespace unsloth::serve {
namespace {

/// Passes whose tokens may wait.
constexpr std::size_t most_posted = 256;

openai::ApiError delivery_error() {
    return openai::ApiError(500, "The completion could not be written; see the service's log.", "", "internal_error");
}

}  // namespace

Engine::Deliveries::~Deliveries() {
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
    }
    changed_.notify_one();
    thread_.join();
}

void Engine::Deliveries::post(std::vector<Delivery> some) {
    if (some.empty()) return;
    std::unique_lock lock(mutex_);
    taken_.wait(lock, [this] { return posted_.size() < most_posted; });
    posted_.push_back(std::move(some));
    lock.unlock();
    changed_.notify_one();
}

void Engine::Deliveries::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return ends_ || !posted_.empty(); });
        if (posted_.empty()) return;
        std::vector<Delivery> some = std::move(posted_.front());
        posted_.pop_front();
        lock.unlock();
        taken_.notify_one();
        for (Delivery& one : some) {
            try {
                deliver(one);
            } catch (const std::exception& failure) {
                log::error("a completion could not be written: ", failure.what());
                on_stop_(one.to->number);
                std::exchange(one.to->receiver, nullptr)->failed(delivery_error());
            }
        }
        some.clear();  // what it holds may be the last of a request
        lock.lock();
    }
}

void Engine::Deliveries::deliver(Delivery& one) {
    Delivered& to = *one.to;
    if (!to.receiver) return;
    if (one.error) return to.receiver->failed(*one.error);
    generate::Completion& so_far = to.so_far;
    if (!one.prompt.empty()) so_far.prompt = std::move(one.prompt);
    if (one.end) {
        so_far.cached_tokens = one.end->cached_tokens;
        so_far.finish_reason = to.is_stopped ? generate::FinishReason::stop_text : one.end->finish_reason;
        if (!to.is_stopped) so_far.stop = std::move(one.end->stop);
        return to.receiver->ended(to.sequence, so_far);
    }
    if (to.is_stopped) return;  // tokens that were in flight
    so_far.ids.push_back(one.id);
    so_far.logprobs.push_back(one.logprob);
    if (!one.top.empty()) so_far.top.push_back(std::move(one.top));
    if (to.receiver->token(to.sequence, so_far)) return;
    to.is_stopped = true;
    on_stop_(to.number);
}

}  // namespace unsloth::serve
