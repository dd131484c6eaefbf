#include "unsloth/serve/engine.h"

#include <algorithm>
#include <future>
#include <set>

#include "serve/deliveries.h"
#include "serve/texts.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::serve {
namespace {

constexpr auto idle_tick = std::chrono::milliseconds(100);
constexpr auto longest_pass = std::chrono::seconds(120);

double seconds(Engine::Clock::duration time) {
    return std::chrono::duration<double>(time).count();
}

openai::ApiError draining_error() {
    return openai::ApiError(503, "The service is shutting down. Ask another replica, or retry later.", "",
                            "shutting_down");
}

}  // namespace

Engine::Engine(ops::Context& ctx, model::Model& model, EngineOptions options, Metrics& metrics)
    : options_(std::move(options)), metrics_(metrics), decoder_(ctx, model, options_.decoder) {
    const generate::BlockAllocator& pool = decoder_.scheduler().pool();
    metrics_.set(Metric::cache_config_info, 1,
                 cat(label("block_size", std::to_string(pool.page_tokens())), ",",
                     label("num_gpu_blocks", std::to_string(pool.pages()))));
}

Engine::~Engine() = default;

void Engine::submit(Job job) {
    const auto count = static_cast<int64_t>(job.sequences.size());
    const auto refuse = [&](const char* reason, const openai::ApiError& error) {
        metrics_.add(Metric::admission_rejections, 1, label("reason", reason));
        throw error;
    };
    const std::lock_guard lock(mutex_);
    if (failed_)
        refuse("failed", openai::ApiError(503, "The engine has failed; the service is ending.", "", "engine_failed"));
    if (refuses_) refuse("draining", draining_error());
    if (waiting_sequences_ >= options_.most_waiting)
        refuse("queue_full", openai::ApiError(429, cat("The queue is full: ", waiting_sequences_, " sequences wait."),
                                              "", "queue_full"));
    metrics_.observe(Metric::request_params_n, static_cast<double>(count));
    auto active = std::make_shared<Active>();
    active->came = Clock::now();
    active->job = std::move(job);
    waiting_[active->job.client].push_back(active);
    waiting_sequences_ += count;
    changed_.notify_one();
}

void Engine::cancel(std::shared_ptr<const Receiver> receiver) {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(std::move(receiver));
    changed_.notify_one();
}

void Engine::between_passes(std::function<void()> work) {
    std::unique_lock lock(mutex_);
    if (runs_) {
        work_.push_back(std::move(work));
        changed_.notify_one();
        return;
    }
    work();
}

bool Engine::forget_keys() {
    std::promise<bool> answer;
    between_passes([&] {
        const bool idle = rows_.empty();
        if (idle) decoder_.forget_keys();
        answer.set_value(idle);
    });
    return answer.get_future().get();
}

void Engine::on_drain(std::function<void()> f) {
    const std::lock_guard lock(mutex_);
    on_drain_ = std::move(f);
}

bool Engine::healthy() const {
    const Clock::time_point ticked{Clock::duration(ticked_.load())};
    return !failed_ && Clock::now() - ticked < longest_pass;
}

void Engine::run() {
    {
        const std::lock_guard lock(mutex_);
        runs_ = true;
    }
    deliveries_ = std::make_unique<Deliveries>([this](int64_t number) {
        const std::lock_guard lock(mutex_);
        stopped_.push_back(number);
        changed_.notify_one();
    });
    try {
        while (wait_for_work()) {
            drop_late();
            drop_cancelled();
            end_stopped();
            admit();
            pass();
        }
        end_early();
    } catch (const std::exception& failure) {
        failed_ = true;
        log::error("a pass failed: ", failure.what());
        fail_all(openai::ApiError(500, "The engine has failed; see the service's log.", "", "engine_failed"));
        end_run();
        throw;
    }
    end_run();
}

/// Somebody may wait for work that was posted.
void Engine::end_run() {
    deliveries_.reset();
    std::vector<std::function<void()>> work;
    {
        const std::lock_guard lock(mutex_);
        runs_ = false;
        work.swap(work_);
    }
    for (const auto& one : work) one();
}

/// False: the engine has drained, or has no more time for it.
bool Engine::wait_for_work() {
    std::vector<std::function<void()>> work;
    {
        std::unique_lock lock(mutex_);
        while (true) {
            const Clock::time_point now = Clock::now();
            ticked_ = now.time_since_epoch().count();
            if (!draining_ && options_.stops()) {
                draining_ = true;
                drains_since_ = now;
                if (on_drain_) work_.push_back(std::exchange(on_drain_, nullptr));
            }
            if (draining_) {
                refuses_ = now - drains_since_ >= options_.drain_delay;
                if (refuses_ && rows_.empty() && waiting_.empty()) return false;
                if (now - drains_since_ >= options_.drain_delay + options_.shutdown_timeout) return false;
            }
            if (!rows_.empty() || !waiting_.empty() || !work_.empty() || !cancelled_.empty() || !stopped_.empty())
                break;
            changed_.wait_for(lock, idle_tick);
        }
        work.swap(work_);
    }
    for (const auto& one : work) one();
    return true;
}

/// Jobs whose deadline has passed.
void Engine::drop_late() {
    const Clock::time_point now = Clock::now();
    const auto is_late = [&](const Job& job) { return job.deadline && *job.deadline <= now; };
    std::set<std::shared_ptr<Receiver>> late;
    for (const auto& [number, row] : rows_)
        if (is_late(row.active->job)) late.insert(row.active->job.receiver);
    const std::lock_guard lock(mutex_);
    for (const auto& [client, jobs] : waiting_)
        for (const std::shared_ptr<Active>& active : jobs)
            if (is_late(active->job)) late.insert(active->job.receiver);
    for (const std::shared_ptr<Receiver>& receiver : late) {
        Delivery& made = made_.emplace_back(std::make_shared<Delivered>(receiver));
        made.error = openai::ApiError(504, "The deadline has passed.", "", "deadline_exceeded");
        cancelled_.push_back(receiver);
    }
}

void Engine::drop_cancelled() {
    const std::lock_guard lock(mutex_);
    if (cancelled_.empty()) return;
    std::set<const Receiver*> left;
    for (const auto& receiver : cancelled_) left.insert(receiver.get());
    std::vector<int64_t> dropped;
    for (const auto& [number, row] : rows_)
        if (left.contains(row.active->job.receiver.get())) dropped.push_back(number);
    for (const int64_t number : dropped) {
        decoder_.cancel(number);
        metrics_.add(Metric::request_success, 1, label("finished_reason", "abort"));
        remove(number);
    }
    for (auto& [client, jobs] : waiting_)
        std::erase_if(jobs, [&](const std::shared_ptr<Active>& active) {
            if (!left.contains(active->job.receiver.get())) return false;
            waiting_sequences_ -= static_cast<int64_t>(active->job.sequences.size() - active->next);
            return true;
        });
    std::erase_if(waiting_, [](const auto& client) { return client.second.empty(); });
    cancelled_.clear();
}

/// With mutex_ held.
void Engine::remove(int64_t number) {
    const auto row = rows_.find(number);
    const auto running = running_.find(row->second.active->job.adapter_name);
    if (--running->second == 0) running_.erase(running);
    rows_.erase(row);
}

/// Sequences that their receivers ended; tokens that came meanwhile are for nothing.
void Engine::end_stopped() {
    std::vector<int64_t> numbers;
    {
        const std::lock_guard lock(mutex_);
        numbers.swap(stopped_);
    }
    for (const int64_t number : numbers) {
        if (!rows_.contains(number)) continue;  // it ended by itself
        generate::Completion answer = decoder_.so_far(number);
        answer.finish_reason = generate::FinishReason::stop_text;
        decoder_.cancel(number);
        end(number, answer);
    }
    deliveries_->post(std::exchange(made_, {}));
}

/// Free rows go to the clients in turn, a sequence each.
void Engine::admit() {
    const std::lock_guard lock(mutex_);
    while (!waiting_.empty() && static_cast<int64_t>(rows_.size()) < decoder_.scheduler().rows()) {
        auto client = waiting_.upper_bound(last_client_);
        if (client == waiting_.end()) client = waiting_.begin();
        last_client_ = client->first;
        const std::shared_ptr<Active> active = client->second.front();
        const std::size_t sequence = active->next++;
        generate::Request& request = active->job.sequences[sequence];
        const auto prompt = static_cast<double>(request.prompt.size());
        metrics_.add(Metric::prompt_tokens, prompt);
        metrics_.add(Metric::prefix_cache_queries, prompt);
        metrics_.observe(Metric::request_prompt_tokens, prompt);
        metrics_.observe(Metric::queue_time, seconds(Clock::now() - active->came));
        const int64_t number = decoder_.add(std::move(request));
        const auto receiver = std::make_shared<Delivered>(active->job.receiver, sequence, number);
        rows_.emplace(number, Row{active, receiver, Clock::now(), {}, {}, static_cast<int64_t>(prompt), 0});
        ++running_[active->job.adapter_name];
        --waiting_sequences_;
        if (active->next < active->job.sequences.size()) continue;
        client->second.pop_front();
        if (client->second.empty()) waiting_.erase(client);
    }
}

void Engine::pass() {
    now_ = {};
    decoder_.step(
        [this](int64_t number, int32_t id) {
            take_token(number, id);
            return true;
        },
        [this](int64_t number, const generate::Completion& answer) { end(number, answer); });
    count_pass();
    deliveries_->post(std::exchange(made_, {}));
}

void Engine::take_token(int64_t number, int32_t id) {
    Row& row = rows_.at(number);
    if (now_ == Clock::time_point{}) now_ = Clock::now();
    const generate::Completion& so_far = decoder_.so_far(number);
    Delivery& made = made_.emplace_back(row.receiver, id, so_far.logprobs.back());
    if (!so_far.top.empty()) made.top = so_far.top.back();
    if (row.tokens++ == 0) {
        row.first = now_;
        pass_tokens_ += row.prompt;
        metrics_.observe(Metric::time_to_first_token, seconds(now_ - row.active->came));
        metrics_.observe(Metric::prefill_time, seconds(now_ - row.began));
        made.prompt = so_far.prompt;
    } else {
        ++latest_[row.last];
    }
    row.last = now_;
    ++pass_tokens_;
}

/// Before clients hear of the tokens.
void Engine::count_pass() {
    const generate::Scheduler& scheduler = decoder_.scheduler();
    const auto pages = static_cast<double>(scheduler.pool().pages());
    cache_usage_ = 1 - static_cast<double>(scheduler.pool().free()) / pages;
    if (const int64_t preemptions = scheduler.preemptions(); preemptions > preemptions_)
        metrics_.add(Metric::preemptions, static_cast<double>(preemptions - std::exchange(preemptions_, preemptions)));
    int64_t generated = 0;
    for (const Delivery& made : made_) generated += made.end ? 0 : 1;
    if (generated > 0) metrics_.add(Metric::generation_tokens, static_cast<double>(generated));
    for (const auto& [before, rows] : latest_)
        metrics_.observe(Metric::inter_token_latency, seconds(now_ - before), static_cast<uint64_t>(rows));
    latest_.clear();
    if (const int64_t tokens = std::exchange(pass_tokens_, 0); tokens > 0)
        metrics_.observe(Metric::iteration_tokens, static_cast<double>(tokens));
}

void Engine::end(int64_t number, const generate::Completion& answer) {
    Row row = rows_.at(number);
    {
        const std::lock_guard lock(mutex_);
        remove(number);
    }
    const Clock::time_point now = Clock::now();
    metrics_.add(Metric::request_success, 1, label("finished_reason", finish_reason_name(answer.finish_reason)));
    metrics_.add(Metric::prefix_cache_hits, static_cast<double>(answer.cached_tokens));
    metrics_.observe(Metric::e2e_latency, seconds(now - row.active->came));
    metrics_.observe(Metric::inference_time, seconds(now - row.began));
    if (row.tokens > 0) metrics_.observe(Metric::decode_time, seconds(now - row.first));
    metrics_.observe(Metric::request_generation_tokens, static_cast<double>(answer.ids.size()));
    row.active.reset();  // the adapter's place is free before anyone hears of the end
    Delivery& made = made_.emplace_back(row.receiver);
    if (row.tokens == 0) made.prompt = answer.prompt;
    made.end = generate::Completion{
        .stop = answer.stop, .cached_tokens = answer.cached_tokens, .finish_reason = answer.finish_reason};
}

/// What still runs ends where it is, and what waits is refused.
void Engine::end_early() {
    if (!rows_.empty()) log::warning("shutdown_timeout is over: ", rows_.size(), " answers end early");
    while (!rows_.empty()) end(rows_.begin()->first, generate::Completion(decoder_.so_far(rows_.begin()->first)));
    deliveries_->post(std::exchange(made_, {}));
    fail_all(draining_error());
}

void Engine::fail_all(const openai::ApiError& why) {
    std::set<std::shared_ptr<Receiver>> receivers;
    for (const auto& [number, row] : rows_) receivers.insert(row.active->job.receiver);
    {
        const std::lock_guard lock(mutex_);
        rows_.clear();
        running_.clear();
        refuses_ = true;
        for (const auto& [client, jobs] : waiting_)
            for (const std::shared_ptr<Active>& active : jobs) receivers.insert(active->job.receiver);
        waiting_.clear();
        waiting_sequences_ = 0;
    }
    for (const std::shared_ptr<Receiver>& receiver : receivers) {
        Delivery& made = made_.emplace_back(std::make_shared<Delivered>(receiver));
        made.error = why;
    }
    deliveries_->post(std::exchange(made_, {}));
}

Load Engine::load() const {
    const std::lock_guard lock(mutex_);
    Load now{.waiting = waiting_sequences_, .cache_usage = cache_usage_, .rows = decoder_.scheduler().rows()};
    for (const auto& [name, count] : running_) now.running += count;
    const generate::BlockAllocator& pool = decoder_.scheduler().pool();
    now.cache_tokens = pool.pages() * pool.page_tokens();
    return now;
}

void Engine::report() {
    const Load now_loaded = load();
    metrics_.set(Metric::kv_cache_usage, now_loaded.cache_usage);
    metrics_.set(Metric::requests_waiting, static_cast<double>(now_loaded.waiting));
    metrics_.set(Metric::requests_running, static_cast<double>(now_loaded.running));
    std::set<std::string> running, waiting;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [name, count] : running_) running.insert(name);
        for (const auto& [client, jobs] : waiting_)
            for (const std::shared_ptr<Active>& active : jobs) waiting.insert(active->job.adapter_name);
    }
    const auto listed = [](const std::set<std::string>& names) {
        std::string text;
        for (const std::string& name : names)
            if (!name.empty()) text += (text.empty() ? "" : ",") + name;
        return text;
    };
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    metrics_.set(
        Metric::lora_requests_info, std::chrono::duration<double>(now).count(),  // gateways take the newest
        cat(label("max_lora", std::to_string(options_.most_adapters)), ",",
            label("running_lora_adapters", listed(running)), ",", label("waiting_lora_adapters", listed(waiting))),
        /*alone=*/true);
}

}  // namespace unsloth::serve
