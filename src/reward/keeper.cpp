#include "reward/keeper.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "unsloth/core/error.h"
#include "unsloth/core/json_depth.h"
#include "unsloth/core/log.h"

namespace unsloth::reward {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds look_again{20};  // whether a process ended is asked for
constexpr int deepest_message = 200;

std::string seconds_text(std::chrono::milliseconds time) {
    return cat(static_cast<double>(time.count()) / 1000, " s");
}

std::string text_of(const json& message, const char* key) {
    const auto found = message.find(key);
    return found != message.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

std::string escaped(std::string_view bytes) {
    constexpr char digits[] = "0123456789abcdef";
    std::string result;
    for (const char c : bytes.substr(0, 200)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte < 0x7F && c != '\\')
            result += c;
        else
            result += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    }
    return bytes.size() > 200 ? cat("'", result, "…' (", bytes.size(), " bytes or more)") : cat("'", result, "'");
}

/// A running call.
struct Keeper::Task {
    Call* call;
    Helper* helper;
    enum class State : uint8_t { loading, scoring, done } state = State::loading;
    int attempts = 0;
    int64_t id = 0;
    Clock::time_point since{};
    std::map<std::size_t, Limits::Time> pending{};  ///< functions without an answer

    /// When it is too late, and for what.
    std::pair<Clock::time_point, std::size_t> deadline(Limits::Time start) const {
        if (state == State::loading) return {since + start, 0};
        const auto first = std::ranges::min_element(pending, {}, [](const auto& one) { return one.second; });
        return {since + first->second, first->first};
    }
};

Keeper::Keeper(std::vector<HelperPlan> plans, const Settings& settings)
    : settings_(settings), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_.open()) throw Error("process.system-call", cat("cannot make an event: ", std::strerror(errno)));
    for (HelperPlan& plan : plans) helpers_.emplace_back(std::move(plan), settings_);
    ready_.resize(helpers_.size());
    // Signals are for the other threads; helpers have none blocked (Process).
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { work(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Keeper::~Keeper() {
    {
        const std::lock_guard lock(mutex_);
        leaving_ = true;
    }
    ::eventfd_write(wake_.get(), 1);
    thread_.join();
}

void Keeper::work() {
    for (;;) {
        std::function<void()> job;
        {
            const std::lock_guard lock(mutex_);
            if (leaving_) break;
            job = std::exchange(job_, nullptr);
        }
        if (job)
            job();
        else
            wait(Clock::time_point::max());
    }
    quit_all();
}

void Keeper::do_in_thread(std::function<void()> job) {
    std::promise<void> done;
    {
        const std::lock_guard lock(mutex_);
        job_ = [&] {
            try {
                job();
                done.set_value();
            } catch (...) {
                done.set_exception(std::current_exception());
            }
        };
    }
    ::eventfd_write(wake_.get(), 1);
    done.get_future().get();
}

/// Waits until something can be read or written, at most until `until`; then reads or writes it.
void Keeper::wait(Clock::time_point until) {
    std::vector<pollfd> all{{wake_.get(), POLLIN, 0}};
    for (const Helper& helper : helpers_) helper.collect(all);
    int longest = -1;
    if (until != Clock::time_point::max()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
        longest = static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), look_again).count());
    }
    ::poll(all.data(), all.size(), longest);
    eventfd_t count = 0;
    ::eventfd_read(wake_.get(), &count);
    serve_all();
}

void Keeper::serve_all() {
    for (Helper& helper : helpers_) helper.serve();
}

std::vector<json> Keeper::load() {
    do_in_thread([this] {
        std::vector<Call> calls(helpers_.size());
        for (std::size_t i = 0; i < calls.size(); ++i) calls[i].helper = i;
        drive(calls, 0);
        for (const Call& call : calls) {
            if (call.outcomes.empty()) continue;
            const Outcome& outcome = call.outcomes.begin()->second;
            const std::string& name = helpers_[call.helper].name();
            if (outcome.kind == Outcome::Kind::raised)
                throw Error("reward.not-loaded",
                            cat(name, " cannot be loaded: ", text_of(outcome.message, "kind"), ": ",
                                text_of(outcome.message, "message")),
                            text_of(outcome.message, "traceback"));
            throw Error("reward.not-loaded", cat(name, " cannot be loaded: ", outcome.words));
        }
    });
    return ready_;
}

void Keeper::run(std::vector<Call>& calls, int64_t step) {
    do_in_thread([&] { drive(calls, step); });
}

double Keeper::resident_gib() {
    double sum = 0;
    do_in_thread([&] {
        for (const Helper& helper : helpers_) sum += helper.resident_gib();
    });
    return sum;
}

void Keeper::drive(std::vector<Call>& calls, int64_t step) {
    step_ = step;
    std::deque<Task> tasks;
    for (Call& call : calls) tasks.push_back({&call, &helpers_[call.helper]});
    // The first unfinished task of each helper is running.
    std::map<Helper*, Task*> running;
    for (;;) {
        auto until = Clock::time_point::max();
        for (Task& task : tasks) {
            Task*& current = running[task.helper];
            if (task.state == Task::State::done || (current != nullptr && current != &task)) continue;
            if (current == nullptr) begin(task);
            current = &task;
            advance(task);
            if (task.state == Task::State::done)
                current = nullptr;
            else
                until = std::min(until, task.deadline(settings_.limits.start).first);
        }
        if (std::ranges::all_of(tasks, [](const Task& task) { return task.state == Task::State::done; })) break;
        if (settings_.give_up && settings_.give_up()) {
            for (const auto& [helper, task] : running)
                if (task != nullptr) helper->end(settings_.limits.terminate);
            throw GivenUp("rewards: the functions that were at work have ended");
        }
        wait(std::min(until, Clock::now() + look_again));
    }
    serve_all();  // what was printed before the last answer
    for (Helper& helper : helpers_) helper.printed().end_step();
}

/// Sends the call, to a new helper where there is none.
void Keeper::begin(Task& task) {
    Helper& helper = *task.helper;
    helper.serve();
    if (helper.running() && helper.gone())
        note_death(cat("the helper of ", helper.name(), " ended between two calls: ", helper.end({})));
    task.since = Clock::now();
    task.pending = task.call->functions;
    for (const auto& [function, outcome] : task.call->outcomes) task.pending.erase(function);  // of the first attempt
    if (!helper.running()) {
        task.state = Task::State::loading;
        helper.start();
        return;
    }
    task.state = task.pending.empty() ? Task::State::done : Task::State::scoring;
    if (task.pending.empty()) return;
    task.id = ++last_id_;
    helper.send(task.call->request(task.id, task.pending));
}

void Keeper::advance(Task& task) {
    Helper& helper = *task.helper;
    if (task.state == Task::State::done) return;
    const bool gone = helper.gone();
    if (gone) helper.serve();  // its last words
    const auto since = task.since;
    while (const auto line = helper.take_line()) {
        hear(task, *line);
        // It started again, perhaps with another helper, of which nothing is known yet.
        if (task.state == Task::State::done || task.since != since) return;
    }
    if (const std::string broken = helper.broken_line(); !broken.empty()) {
        fail(task, Outcome::Kind::broken, cat("sent a line without an end: ", escaped(broken)));
    } else if (gone) {
        const std::string how = helper.end({});
        note_death(cat("the helper of ", helper.name(), " died: ", how));
        fail(task, Outcome::Kind::lost, cat("died: ", how));
    } else if (const auto [deadline, function] = task.deadline(settings_.limits.start); Clock::now() >= deadline) {
        fail(task, Outcome::Kind::lost,
             task.state == Task::State::loading
                 ? cat("did not load within ", seconds_text(settings_.limits.start))
                 : cat("did not answer within ", seconds_text(task.pending.at(function))));
    }
}

void Keeper::hear(Task& task, const std::string& line) {
    const bool shallow = json_nesting_depth(line) <= deepest_message;
    const json message = shallow ? json::parse(line, nullptr, /*allow_exceptions=*/false) : json();
    const auto broken = [&] {
        fail(task, Outcome::Kind::broken, cat("sent what is no answer to the message: ", escaped(line)));
    };
    if (!message.is_object()) return broken();
    if (task.state == Task::State::loading) return hear_load(task, message);
    const auto number = message.find("function"), id = message.find("id");
    const std::string type = text_of(message, "type");
    const bool names_call = id != message.end() && *id == task.id && number != message.end() &&
                            number->is_number_unsigned() && task.pending.contains(number->get<std::size_t>());
    if (!names_call || (type != "scores" && type != "error")) return broken();
    Outcome& outcome = task.call->outcomes[number->get<std::size_t>()];
    outcome.kind = type == "scores" ? Outcome::Kind::scores : Outcome::Kind::raised;
    outcome.message = message;
    task.pending.erase(number->get<std::size_t>());
    if (task.pending.empty()) task.state = Task::State::done;
}

void Keeper::hear_load(Task& task, const json& message) {
    const std::string type = text_of(message, "type");
    if (type == "ready") {
        ready_[task.call->helper] = message;
        if (task.call->functions.empty())
            task.state = Task::State::done;
        else
            begin(task);
    } else if (type == "error") {
        task.helper->end(settings_.limits.terminate);
        conclude(task, {Outcome::Kind::raised, message, {}});
    } else {
        fail(task, Outcome::Kind::broken,
             cat("sent what is no answer to the message: ",
                 escaped(message.dump(-1, ' ', true, json::error_handler_t::replace))));
    }
}

/// Ends the helper; the first time a new one is asked the same.
void Keeper::fail(Task& task, Outcome::Kind kind, const std::string& what) {
    Helper& helper = *task.helper;
    helper.end(settings_.limits.terminate);
    const bool load_only = task.call->functions.empty();
    if (task.attempts == 0 && !load_only) {
        task.attempts = 1;
        log::warning("the helper of ", helper.name(), " ", what, "; a new one is asked once more");
        begin(task);
        return;
    }
    conclude(task, {kind, {}, cat("its helper ", what, load_only ? "" : ", for the second time")});
}

/// The same for all functions that have no answer; of a call that only loads for function 0.
void Keeper::conclude(Task& task, const Outcome& outcome) {
    if (task.call->functions.empty()) task.call->outcomes[0] = outcome;
    for (const auto& [function, ignored] : task.pending) task.call->outcomes[function] = outcome;
    task.state = Task::State::done;
}

void Keeper::note_death(const std::string& what) {
    deaths_.push_back(step_);
    const Limits& limits = settings_.limits;
    while (deaths_.front() + limits.death_steps <= step_) deaths_.pop_front();
    if (static_cast<int>(deaths_.size()) >= limits.deaths)
        throw Error("reward.helpers-died",
                    cat("rewards: ", what, "; ", deaths_.size(), " helpers died within ", limits.death_steps, " steps"),
                    "What they printed is in the log, after [reward].");
}

void Keeper::quit_all() {
    for (Helper& helper : helpers_) helper.ask_to_quit();
    const auto deadline = Clock::now() + settings_.limits.quit;
    const auto left = [](const Helper& helper) { return helper.running() && !helper.gone(); };
    while (std::ranges::any_of(helpers_, left) && Clock::now() < deadline)
        wait(std::min(deadline, Clock::now() + look_again));
    for (Helper& helper : helpers_) {
        helper.end(settings_.limits.terminate);
        helper.printed().end_step();
    }
}

}  // namespace unsloth::reward
