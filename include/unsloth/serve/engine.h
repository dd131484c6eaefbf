// The one thread that decodes: it owns a decoder, and gives the rows of its passes to requests of many clients in turn.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/generate/decoder.h"
#include "unsloth/openai/error.h"
#include "unsloth/serve/metrics.h"

namespace unsloth::serve {

/// Gets what becomes of a job's sequences. All calls come from one thread, which is not the engine's.
class Receiver {
  public:
    virtual ~Receiver() = default;
    /// `so_far` ends with the new token. False: the sequence ends with it, and ended() is called once the engine knows.
    virtual bool token(std::size_t sequence, const generate::Completion& so_far) = 0;
    virtual void ended(std::size_t sequence, const generate::Completion& answer) = 0;
    /// Nothing more comes of the sequences that have not ended.
    virtual void failed(const openai::ApiError& why) = 0;
};

struct Job {
    std::shared_ptr<Receiver> receiver;
    std::vector<generate::Request> sequences;
    std::string client;                   ///< rows go to clients in turn
    std::shared_ptr<const void> adapter;  ///< is held until the last sequence has ended
    std::string adapter_name;             ///< for metrics; empty: the base
    /// What has not ended by then is dropped, and its receiver gets ApiError 504.
    std::optional<std::chrono::steady_clock::time_point> deadline = {};
};

/// What the engine has to do at the moment.
struct Load {
    int64_t running = 0, waiting = 0;  ///< sequences
    double cache_usage = 0;            ///< of its tokens
    int64_t rows = 0, cache_tokens = 0;
};

struct EngineOptions {
    generate::DecoderOptions decoder = {};
    int64_t most_waiting = 1024;  ///< sequences; requests beyond them are refused
    int64_t most_adapters = 0;    ///< for metrics
    std::chrono::milliseconds drain_delay{0}, shutdown_timeout{30'000};
    /// Asked between passes, and ten times a second: true begins to drain.
    std::function<bool()> stops = [] { return false; };
};

class Engine {
  public:
    using Clock = std::chrono::steady_clock;

    /// As generate::Decoder's constructor, whose errors it has.
    Engine(ops::Context& ctx, model::Model& model, EngineOptions options, Metrics& metrics);
    ~Engine();

    /// generate::Decoder::record_passes(), before run().
    void record_passes() { decoder_.record_passes(); }
    /// Decodes until options.stops(), and then as options says: new jobs are taken for drain_delay, running ones end
    /// within shutdown_timeout, and what is left ends early. Errors of passes reach all receivers, and the caller. When
    /// it returns, no receiver is called any more.
    void run();

    // From any thread:
    /// ApiError 429 where too many wait, 503 while draining or after an error.
    void submit(Job job);
    /// The client left: its sequences are dropped before the next pass. Its receiver may still get tokens of passes
    /// that were in flight.
    void cancel(std::shared_ptr<const Receiver> receiver);
    /// Runs `work` between two passes; before run(), or after it, at once.
    void between_passes(std::function<void()> work);
    bool draining() const { return draining_; }
    /// Keys of earlier prompts are not found any more. False, and nothing happens, while sequences run. Waits for the
    /// pass that is in flight.
    bool forget_keys();
    /// Calls `f` once, between two passes, when draining begins.
    void on_drain(std::function<void()> f);
    Load load() const;
    /// Sets the gauges.
    void report();
    /// Whether passes end within a time that no pass takes.
    bool healthy() const;
    int64_t context() const { return decoder_.scheduler().context(); }  ///< prompt and answer of one sequence
    /// Tokens of the largest image of a prompt.
    int64_t longest_image() const { return decoder_.scheduler().longest_image(); }
    int64_t most_images() const { return decoder_.scheduler().most_images(); }

  private:
    struct Active {
        Job job;
        std::size_t next = 0;  ///< the next sequence to begin
        Clock::time_point came;
    };
    struct Delivered;
    struct Delivery;
    class Deliveries;
    struct Row {
        std::shared_ptr<Active> active;
        std::shared_ptr<Delivered> receiver;
        Clock::time_point began, first, last;
        int64_t prompt = 0, tokens = 0;
    };

    bool wait_for_work();
    void drop_late();
    void drop_cancelled();
    void end_stopped();
    void admit();
    void pass();
    void take_token(int64_t number, int32_t id);
    void count_pass();
    void end(int64_t number, const generate::Completion& answer);
    void end_early();
    void end_run();
    void fail_all(const openai::ApiError& why);
    void remove(int64_t number);

    EngineOptions options_;
    Metrics& metrics_;
    generate::Decoder decoder_;
    std::map<int64_t, Row> rows_;  ///< by the decoder's number
    int64_t preemptions_ = 0;
    std::vector<Delivery> made_;                   ///< by the pass
    Clock::time_point now_;                        ///< when its tokens came
    std::map<Clock::time_point, int64_t> latest_;  ///< rows that got a token, by when they got the one before
    int64_t pass_tokens_ = 0;
    std::unique_ptr<Deliveries> deliveries_;  ///< while it runs
    std::atomic<double> cache_usage_ = 0;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, std::deque<std::shared_ptr<Active>>> waiting_;  ///< by client; none is empty
    std::string last_client_;
    int64_t waiting_sequences_ = 0;
    std::vector<std::shared_ptr<const Receiver>> cancelled_;  ///< held: no other gets their addresses
    std::vector<int64_t> stopped_;                            ///< numbers that their receivers end
    std::map<std::string, int64_t> running_;                  ///< rows, by the name of their adapter
    std::vector<std::function<void()>> work_;
    std::function<void()> on_drain_;
    bool runs_ = false, refuses_ = false;
    std::atomic<bool> draining_ = false, failed_ = false;
    std::atomic<Clock::rep> ticked_ = Clock::now().time_since_epoch().count();
    Clock::time_point drains_since_;
};

}  // namespace unsloth::serve
