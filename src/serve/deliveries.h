// Takes tokens to the receivers of jobs on a thread of its own: the engine's next pass does not wait for texts and
// JSON.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "unsloth/generate/request.h"
#include "unsloth/serve/engine.h"

namespace unsloth::serve {

/// A sequence as its receiver has seen it. Of the delivering thread alone.
struct Engine::Delivered {
    std::shared_ptr<Receiver> receiver;
    std::size_t sequence = 0;
    int64_t number = 0;  ///< the decoder's
    generate::Completion so_far = {};
    bool is_stopped = false;  ///< the receiver wants no further token
};

/// A token, an end, or an error.
struct Engine::Delivery {
    std::shared_ptr<Delivered> to;
    int32_t id = 0;
    float logprob = 0;
    std::vector<std::pair<int32_t, float>> top = {};   ///< of the token, where it is asked for
    std::vector<generate::TokenLogprobs> prompt = {};  ///< with the first token, where it is asked for
    std::optional<generate::Completion> end = {};      ///< what is known at the end besides the tokens
    std::optional<openai::ApiError> error = {};        ///< to all sequences of the receiver
};

class Engine::Deliveries {
  public:
    /// Gets the number of each sequence that its receiver ends; from the delivering thread.
    using OnStop = std::function<void(int64_t number)>;
    explicit Deliveries(OnStop on_stop) : on_stop_(std::move(on_stop)), thread_([this] { work(); }) {}
    /// Waits until all are delivered.
    ~Deliveries();
    Deliveries(const Deliveries&) = delete;
    Deliveries& operator=(const Deliveries&) = delete;

    /// In order. Waits where the receivers lag by many passes.
    void post(std::vector<Delivery> some);

  private:
    void work();
    void deliver(Delivery& one);

    OnStop on_stop_;
    std::mutex mutex_;
    std::condition_variable changed_, taken_;
    std::deque<std::vector<Delivery>> posted_;
    bool ends_ = false;
    std::thread thread_;  ///< the last member: it uses the others
};

}  // namespace unsloth::serve
