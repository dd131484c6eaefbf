#include "app/sweep/sweep_folder.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/folder.h"
#include "unsloth/core/log.h"
#include "unsloth/core/path_advice.h"
#include "unsloth/formats/result_folder.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* lock_file = "run.lock";

/// Weights, tokenizer and checkpoints of a run.
void remove_run_result(const fs::path& path) {
    const Folder folder = Folder::named(path);
    const formats::ResultEntries entries = formats::result_entries(path);
    for (const auto* names : {&entries.weights, &entries.state})
        for (const std::string& name : *names) folder.remove_or_warn(name);
    for (const fs::path& file : tokenizer::Tokenizer::files_in(path))
        if (file.parent_path() == path) folder.remove_or_warn(file.filename());
}

bool same_settings(const report::Sweep& one, const report::Sweep& other) {
    const auto same_options = [](const report::SweepTrial& a, const report::SweepTrial& b) {
        return a.options == b.options;
    };
    return one.finds_rate == other.finds_rate && one.shares == other.shares &&
           std::equal(one.trials.begin(), one.trials.end(), other.trials.begin(), other.trials.end(), same_options);
}

/// "training.max_steps: 100 until now, 200 from here on"; empty: none differs.
std::string difference(const std::string& before, const std::string& now) {
    const Json old = Json::parse(before), present = Json::parse(now);
    std::string text;
    for (const auto& [name, value] : present.items())
        if (const auto found = old.find(name); found == old.end() || *found != value)
            text += cat("\n  ", name, ": ", found == old.end() ? "nothing" : found->dump(), " until now, ",
                        value.dump(), " here");
    return text;
}

bool is_begun(const report::Sweep& sweep) {
    return std::any_of(sweep.trials.begin(), sweep.trials.end(), [](auto& trial) { return !trial.scores.empty(); });
}

/// The folder's record of the planned sweep; nullopt: nothing that is worth keeping. usage Error for content that is
/// not part of it.
std::optional<report::Sweep> record_of(const fs::path& root, const report::Sweep& planned) {
    constexpr const char* advice =
        "Choose another training.output_dir, or say training.overwrite_output_dir true, which removes it.";
    std::optional<report::Sweep> before = report::read_sweep(root);
    if (!before) {
        if (const auto held = formats::find_result(root))
            throw Error("output.exists", cat(root.string(), " holds ", held->what, " already"), advice);
        return before;
    }
    const std::string changed = difference(before->options, planned.options);
    if (same_settings(*before, planned) && changed.empty()) return before;
    if (is_begun(*before))
        throw Error("sweep.other-sweep",
                    cat(root.string(), " holds a sweep ", changed.empty() ? "of other settings" : "with other options",
                        changed),
                    advice);
    return std::nullopt;
}

void remove_all_of(const fs::path& root) {
    const Folder folder = Folder::named(root), trials = Folder::named(root / report::trials_folder);
    remove_run_result(root);
    for (const char* name : {report::sweep_file, "metrics.jsonl"}) folder.remove_or_warn(name);
    for (const std::string& name : trials.names())
        if (name != lock_file) trials.remove_or_warn(name);
}

}  // namespace

report::Sweep SweepFolder::open(report::Sweep planned, bool overwrite) {
    if (!overwrite) (void)record_of(root_, planned);
    const fs::path trials = root_ / report::trials_folder;
    if (const Folder made = Folder::made(trials); !made.open())
        throw Error(write_failure(made.failure()),
                    cat("training.output_dir: cannot create ", trials.string(), ": ", std::strerror(made.failure())),
                    advice_on_creating(trials, made.failure()));
    lock_.emplace(trials);
    std::optional<report::Sweep> before;
    if (!overwrite) before = record_of(root_, planned);  // as it is now that no other process has it
    if (!before && (overwrite || report::read_sweep(root_))) remove_all_of(root_);
    return before ? *std::move(before) : std::move(planned);
}

void SweepFolder::save(const report::Sweep& sweep) const {
    write_file_atomically(root_ / report::sweep_file, report::sweep_json(sweep));
}

fs::path SweepFolder::trial(int number) const {
    return root_ / report::trials_folder / cat(number < 10 ? "0" : "", number);
}

fs::path SweepFolder::log(int number) const {
    return trial(number).string() + ".log";
}

void SweepFolder::drop(int number) const {
    std::error_code ignored;
    if (fs::is_directory(trial(number), ignored)) remove_run_result(trial(number));
}

void SweepFolder::promote(int number) const {
    const fs::path from = trial(number);
    std::error_code failed;
    if (!fs::is_directory(from, failed)) return;
    for (const auto& entry : fs::directory_iterator(from)) {
        if (entry.path().filename() == lock_file) continue;
        fs::rename(entry.path(), root_ / entry.path().filename(), failed);
        if (failed)
            throw Error(write_failure(failed.value()),
                        cat("cannot move ", entry.path().string(), " to ", root_.string(), ": ", failed.message()),
                        "Remove what is in the way, and run the same command again.");
    }
    Folder::named(root_ / report::trials_folder).remove_or_warn(from.filename());
}

double last_evaluation(const fs::path& metrics, const std::string& metric) {
    double value = std::numeric_limits<double>::quiet_NaN();
    std::istringstream lines(read_file(metrics));
    for (std::string line; std::getline(lines, line);) {
        const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
        if (!row.is_object() || !row.contains("eval_tokens")) continue;
        const auto found = row.find(metric);
        if (found == row.end())
            throw Error("option.invalid-value", cat("training.metric_for_best_model: the evaluation has no ", metric),
                        cat("See what ", metrics.string(), " has."));
        value = found->is_number() ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
    }
    return value;
}

}  // namespace unsloth::app
