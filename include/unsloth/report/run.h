// What a run's folder says of the run: its metrics, its configuration, how it ended.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/core/folder_lock.h"

namespace unsloth::report {

inline constexpr double absent = std::numeric_limits<double>::quiet_NaN();

/// A logged step; what a row lacks, or has as null, is `absent` or 0.
struct StepRow {
    int64_t step = 0;
    double epoch = absent, loss = absent, grad_norm = absent, learning_rate = absent, tokens_per_second = absent,
           step_ms = absent, memory_gib = absent, mfu = absent;
    int64_t tokens = 0, trained_tokens = 0;
    std::map<std::string, double> more;  ///< the objective's own figures, by their names in the file
    std::vector<float> part_norms;       ///< of Run::parts, before clipping; may end early
};

struct EvalRow {
    int64_t step = 0;
    double loss = absent;
    std::map<std::string, double> more;  ///< without "eval_" in front
};

/// An answer to one of training.sample_prompts.
struct SampleRow {
    int64_t step = 0;
    std::string prompt, answer;
    int64_t number = 0;               ///< of the prompt, from 1; 0: an earlier version did not say
    std::vector<std::string> images;  ///< data: URLs of thumbnails, in a few rows
    /// Whether both answer the same prompt.
    bool is_of(const SampleRow& other) const {
        return prompt == other.prompt && (number == other.number || number == 0 || other.number == 0);
    }
};
inline constexpr const char* samples_file = "samples.jsonl";

/// A training row with images.
struct PicturedRow {
    int64_t row = 0, tokens = 0;
    std::string text;  ///< as `data` shows it
    struct Image {
        int64_t begin = 0, end = 0;  ///< its tokens, half-open
        std::string url;             ///< data: URL of a thumbnail; empty: it could not be decoded
    };
    std::vector<Image> images;
};
inline constexpr const char* pictured_file = "pictured_rows.jsonl";

/// A completion that a run of reinforcement learning sampled.
struct CompletionRow {
    int64_t step = 0;
    std::string prompt, completion;
    std::string scores;  ///< "exact 1, advantage 0.72"
};
inline constexpr const char* completions_file = "completions.jsonl";

/// The last line of a run that has ended.
struct Ending {
    std::string exit_reason, error, error_id;  ///< the latter two empty without an error
    double seconds = absent, train_loss = absent, final_eval_loss = absent, best_eval_loss = absent,
           tokens_per_second = absent, memory_gib = absent;
    int64_t best_step = 0, tokens = 0;
};

struct Run {
    std::filesystem::path folder;
    std::string config;  ///< run_config.json as it is; empty where there is none
    std::vector<StepRow> steps;
    std::vector<EvalRow> evals;
    std::vector<std::string> parts;          ///< whose gradients' norms are logged: embed_tokens, layers.0, …, head
    std::vector<SampleRow> samples;          ///< by step
    std::vector<PicturedRow> pictured;       ///< a few of the training rows
    std::vector<CompletionRow> completions;  ///< by step; of each the first few
    std::optional<Ending> ending;
    FolderUse use;                ///< without an ending: whether a process still runs it
    int64_t last_sign = 0;        ///< when the metrics were written last, in seconds since 1970
    int64_t total_steps = 0;      ///< 0: not known
    double planned_gib = absent;  ///< of the device's memory, by the plan
    /// What the plan holds it for, with bytes. Buffers that are never needed at once share, so the sum may be more.
    std::vector<std::pair<std::string, int64_t>> planned_groups;
    std::vector<int64_t> row_tokens;  ///< rows of up to 2^i tokens, and above 2^(i-1), by i; empty: not known
    double planned_rate = absent;     ///< tokens per second with full rows, as the plan predicts
    std::string device;               ///< of the first rank: "NVIDIA H200", "CPU"; empty: not known

    /// The folder's own name.
    std::string name() const;
    /// How much is done, in [0, 1]; `absent` when it is not known.
    double share() const;
    /// Whether it stopped without recording its end: no process holds its folder any more.
    bool killed() const;
    /// Of a killed run: "stopped without finishing at step 12 (last heartbeat 2026-11-22 13:05:17)".
    std::string killed_text() const;
    /// Seconds that are left at the rate of the last steps; `absent` when it is not known, or the run has ended.
    double seconds_left() const;
    /// The most memory of a GPU that a step or the end reports, in GiB; `absent` where none was measured.
    double peak_gib() const;
};
inline constexpr const char* cpu_device = "CPU";  ///< Run::device of a run without a GPU

/// Reads a run's folder, and what comes to its metrics later.
class RunReader {
  public:
    /// Input Error where there is no metrics.jsonl (or the file that the folder's run_config.json names).
    explicit RunReader(const std::filesystem::path& folder);

    /// Reads on; true when there was something new. A file that became shorter, or another one, is read from its start:
    /// that is a run resumed from a checkpoint. A last line without its end waits.
    bool update();
    const Run& run() const { return run_; }

  private:
    void read_facts();
    void read_line(const std::string& line);
    void read_samples();
    void read_completions();
    void read_completion(const std::string& line);

    Run run_;
    std::filesystem::path metrics_;
    std::uintmax_t read_ = 0, inode_ = 0, samples_bytes_ = 0;
    std::string begun_;
    std::uintmax_t completions_read_ = 0;
    std::string begun_completion_;
    std::string of_step_;  ///< how the lines of the last step begin
    int completions_of_step_ = 0;
};

/// The run as it is now.
Run read_run(const std::filesystem::path& folder);

/// What the metrics do not say, as run_facts.json in the run's folder does.
struct RunFacts {
    int64_t total_steps = 0, planned_bytes = 0;                   ///< 0: not known
    std::vector<std::pair<std::string, int64_t>> planned_groups;  ///< as in Run
    std::vector<int64_t> row_tokens;                              ///< as in Run
    std::string run_plan = {};                                    ///< JSON (planner/run_plan_text.h); empty: not known
    std::string format = {};  ///< of the training rows (of several sources the first one's); empty: not known
    double planned_rate = 0;  ///< as in Run; 0: not known
    std::string device = {};  ///< as in Run
};
inline constexpr const char* facts_file = "run_facts.json";
/// Those of the folder; what is missing there is not known.
RunFacts read_run_facts(const std::filesystem::path& folder);
/// The file's text.
std::string run_facts_json(const RunFacts& facts);
/// RunFacts::row_tokens of `rows` rows; `tokens`: the length of each.
std::vector<int64_t> row_lengths(int64_t rows, const std::function<int64_t(int64_t)>& tokens);

}  // namespace unsloth::report
