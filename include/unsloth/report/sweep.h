// What a sweep's folder says of its trials, in sweep.json: their options, held-out losses, and which was kept.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unsloth::report {

/// What a trial came to at a comparison.
struct SweepScore {
    int64_t step = 0;
    double value = 0;          ///< of Sweep::metric; NaN: the trial diverged
    double seconds = 0;        ///< that the trial took from the comparison before, its start included
    std::optional<bool> kept;  ///< nullopt: not compared yet
};

struct SweepTrial {
    int number = 0;                                            ///< from 1
    std::vector<std::pair<std::string, std::string>> options;  ///< {full name, value as a flag has it}, by axis
    std::vector<SweepScore> scores;                            ///< by step

    bool diverged() const;
    /// Whether no comparison has dropped it.
    bool alive() const;
    /// "learning_rate 1e-4, r 8".
    std::string words() const;
};

struct Sweep {
    bool finds_rate = false;           ///< it compares learning rates over short runs, and no trial becomes the run
    std::string metric = "eval_loss";  ///< as metrics.jsonl has it
    bool more_is_better = false;
    std::vector<double> shares;        ///< of the run's steps, at which trials are compared; ascending, the last is 1
    int64_t total_steps = 0;           ///< of each run; 0: not known yet
    std::vector<SweepTrial> trials;    ///< by number
    std::optional<int> best;           ///< a trial's number, once all others have lost
    bool finished = false;             ///< the best trial has taken all steps
    std::string command;               ///< of a run alone with the best options; empty without one
    std::string reason;                ///< why the best one is; empty without one
    std::string options;               ///< JSON object of what the trials share
    double seconds() const;            ///< of all trials
    const SweepTrial* winner() const;  ///< nullptr without one
    /// The comparison's step, once the run's length is known.
    int64_t step_of(std::size_t rung) const;
};

inline constexpr const char* sweep_file = "sweep.json";
inline constexpr const char* trials_folder = "trials";

/// nullopt where the folder has no sweep.json. Input Error for one that this program did not write.
std::optional<Sweep> read_sweep(const std::filesystem::path& folder);
/// The file's text.
std::string sweep_json(const Sweep& sweep);
/// Where a trial's run is: in a folder of its own, or, once it is the best one, in the sweep's.
std::filesystem::path trial_folder(const std::filesystem::path& folder, int number);

/// A line a trial: its options, the metric at each comparison, and what became of it.
std::string sweep_table(const Sweep& sweep);
/// The same in HTML, with the class of the page's tables; the best one is bold.
std::string sweep_table_html(const Sweep& sweep);

}  // namespace unsloth::report
