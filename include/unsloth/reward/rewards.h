// Reward functions: what scores completions. Built in, Python functions in a helper process, commands, HTTP servers.
//
// Rewards rewards(list, settings);   // checks the list; usage Error
// rewards.start();                   // starts helpers, which import the user's files; usage Error with the traceback
// rewards.score(batch);              // once a generation batch; rows of this rank
//
// Files that use Batch or Scored include nlohmann/json.hpp.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/reward/advantages.h"

namespace unsloth::reward {

/// Name and one value a row.
using Column = std::pair<std::string, std::vector<nlohmann::json>>;

/// What trainer_state holds for reward functions, as in transformers' TrainerState.
struct TrainerState {
    int64_t global_step = 0, max_steps = 0;
    double epoch = 0, num_train_epochs = 0;
};

/// Completions to score, groups side by side and whole: row i is completion i mod G of group i / G.
struct Batch {
    std::vector<nlohmann::json> prompts;    ///< [rows] as in the data: a string, or a list of messages
    std::vector<std::string> prompt_texts;  ///< [rows] as the model saw them; empty: prompts are strings
    std::vector<std::string> completions;   ///< [rows] without special tokens; bytes that are not UTF-8 become U+FFFD
    std::vector<std::vector<int32_t>> completion_ids;  ///< [rows] with the EOS, without padding
    std::vector<Column> columns;                       ///< of the data's rows, all but the prompt and the completion
    int num_generations = 1;                           ///< G
    TrainerState trainer_state;
};

struct Scored {
    std::vector<Scores> scores;  ///< [functions][rows], in the order of names()
    Metrics metrics;             ///< what functions logged, and the helpers' memory (reward/helper_rss_gib)
    std::vector<Column> extra;   ///< columns that functions added for completions.jsonl
    std::vector<bool> dropped;   ///< [rows] of groups that on_error "drop" took out: every score is null
    int unscored_rows = 0;       ///< rows that no function scored
    double seconds = 0;
};

/// Deadlines and bounds.
struct Limits {
    using Time = std::chrono::milliseconds;
    Time start{120'000};               ///< to import the user's files
    Time call{60'000}, call_row{100};  ///< a call has call + rows * call_row, unless the reward has a timeout
    Time terminate{2'000};             ///< from SIGTERM to SIGKILL
    Time quit{5'000};                  ///< for a helper to end by itself
    std::size_t log_bytes = 64 << 10;  ///< of a helper's output, each step; the rest is counted
    std::size_t line_bytes = 256 << 20;
    int deaths = 3, death_steps = 10;  ///< this number of deaths within these steps stops the run
    int unscored_steps = 10;           ///< this number of consecutive steps without any score stops the run
};

struct Settings {
    std::filesystem::path folder = ".";  ///< that relative files of the list are in
    std::string python = "auto";         ///< auto: $VIRTUAL_ENV/bin/python, or python3
    int workers = 1;                     ///< helpers for the same functions; each scores whole groups
    int64_t max_completion_length = 0;   ///< what overlong and cosine take where they have no max_length; 0: nothing
    uint64_t seed = 42;
    int rank = 0, ranks = 1;                          ///< for messages
    std::string tokenizer_folder;                     ///< functions may read it; empty: none
    std::optional<std::vector<std::string>> columns;  ///< the data's, where they are known: missing ones are refused
    double memory_gib = 0;                            ///< address space that a helper may take; 0: any
    std::function<void(const std::string&)> log;      ///< a line of a helper's output, with its prefix; empty: the log
    /// Asked several times a second while helpers and servers are waited for; true: the run was asked to stop, and
    /// start() and score() throw GivenUp. Called from several threads. Empty: never.
    std::function<bool()> give_up;
    Limits limits;
};

/// score() was given up because Settings::give_up said so; helpers that were at work have ended.
class __attribute__((visibility("default"))) GivenUp : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

class Rewards {
  public:
    /// `list`: the option `rewards`, a JSON list. usage Error that names the entry for what it does not allow.
    Rewards(const nlohmann::json& list, Settings settings);
    /// Ends all helpers and what they started.
    ~Rewards();
    Rewards(const Rewards&) = delete;
    Rewards& operator=(const Rewards&) = delete;

    const std::vector<std::string>& names() const;
    const std::vector<double>& weights() const;
    /// Columns that built-in rewards read, and after start() those that functions cannot be called without.
    std::vector<std::string> required_columns() const;
    /// Error reward.missing-column where a reward needs a column that is none of `columns`. After start() those of
    /// functions are known too.
    void require_columns(std::vector<std::string> columns);
    /// The longest that score() can take with this number of rows: two attempts, and a new helper between them. What
    /// waits for other ranks must have more.
    std::chrono::milliseconds longest_call(std::size_t rows) const;

    /// Starts the helpers and loads their functions. usage Error with the traceback where one cannot be loaded.
    void start();
    /// Scores of all functions. runtime Error where a function fails whose on_error is "stop", where helpers die too
    /// often, where no row was scored for too many steps, and where a helper breaks the protocol twice. input Error
    /// where a column is missing. Calls start() first if needed. For one thread at a time.
    Scored score(const Batch& batch);

  private:
    struct Parts;
    std::unique_ptr<Parts> parts_;
};

}  // namespace unsloth::reward
