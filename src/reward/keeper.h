// The thread that keeps the helpers: it starts them, reads what they print at all times, carries calls to them with
// deadlines, and ends them.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "reward/helper.h"
#include "unsloth/core/awake_clock.h"

namespace unsloth::reward {

/// What became of one function in a call.
struct Outcome {
    /// scores; raised: the function did; lost: the helper hung or died, twice; broken: the protocol, twice.
    enum class Kind : uint8_t { scores, raised, lost, broken } kind = Kind::scores;
    nlohmann::json message;  ///< the helper's: scores, or error
    std::string words;       ///< of lost and broken
};

/// A message to one helper, which answers once for each of the functions.
struct Call {
    std::size_t helper = 0;
    /// The line, made when it is sent; `left`: the functions that are to answer.
    std::function<std::string(int64_t id, const std::map<std::size_t, Limits::Time>& left)> request;
    std::map<std::size_t, Limits::Time> functions;  ///< and how long each may take
    std::map<std::size_t, Outcome> outcomes;
};

class Keeper {
  public:
    Keeper(std::vector<HelperPlan> plans, const Settings& settings);
    /// Asks the helpers to quit, and ends them and what they started.
    ~Keeper();
    Keeper(const Keeper&) = delete;
    Keeper& operator=(const Keeper&) = delete;

    /// Starts all helpers. Their ready messages. usage Error with the traceback for what cannot be loaded.
    std::vector<nlohmann::json> load();
    /// Carries out the calls: those to one helper one after the other, those to several at the same time. A helper that
    /// hangs, dies or breaks the protocol is replaced, and asked once more. runtime Error where helpers die too often.
    void run(std::vector<Call>& calls, int64_t step);
    double resident_gib();

  private:
    using Clock = AwakeClock;
    struct Task;

    void work();
    void do_in_thread(std::function<void()> job);
    void wait(Clock::time_point until);
    void serve_all();
    void drive(std::vector<Call>& calls, int64_t step);
    void begin(Task& task);
    void advance(Task& task);
    void hear(Task& task, const std::string& line);
    void hear_load(Task& task, const nlohmann::json& message);
    void fail(Task& task, Outcome::Kind kind, const std::string& what);
    void conclude(Task& task, const Outcome& outcome);
    void note_death(const std::string& what);
    void quit_all();

    const Settings& settings_;
    std::deque<Helper> helpers_;
    std::vector<nlohmann::json> ready_;
    std::deque<int64_t> deaths_;  ///< the steps of the latest
    int64_t step_ = 0, last_id_ = 0;
    Descriptor wake_;
    std::mutex mutex_;
    std::function<void()> job_;
    bool leaving_ = false;
    std::thread thread_;
};

/// Bytes of a helper for a message: the first 200, what is no printable ASCII escaped.
std::string escaped(std::string_view bytes);

}  // namespace unsloth::reward
