#include "unsloth/report/run.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <sstream>

#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/report/series.h"

namespace unsloth::report {
namespace {

using Json = nlohmann::ordered_json;

double number(const Json& row, const char* key) {
    const auto found = row.find(key);
    return found != row.end() && found->is_number() ? found->get<double>() : absent;
}

/// Whole numbers that a double holds exactly; 0 for any other value.
int64_t whole(const Json& value) {
    const double number = value.is_number() ? value.get<double>() : 0;
    return std::abs(number) < 9e15 ? static_cast<int64_t>(number) : 0;
}

int64_t integer(const Json& row, const char* key) {
    const auto found = row.find(key);
    return found != row.end() ? whole(*found) : 0;
}

/// Metrics that curves show and StepRow has no field for; their keys begin with `prefix`.
std::map<std::string, double> figures(const Json& row, const std::string& prefix) {
    std::map<std::string, double> found;
    for (const Curve& curve : curves())
        if (const double value = number(row, (prefix + curve.key).c_str());
            curve.field == nullptr && std::isfinite(value))
            found.emplace(curve.key, value);
    return found;
}

/// By `parts`, which grow with what is new.
std::vector<float> norms(const Json& row, std::vector<std::string>& parts) {
    constexpr std::string_view prefix = "grad_norm/";
    constexpr std::size_t most_parts = 1024;  // each is looked for among all
    std::vector<float> found;
    for (const auto& [key, value] : row.items()) {
        if (!key.starts_with(prefix) || !value.is_number()) continue;
        const std::string part = key.substr(prefix.size());
        const auto index = static_cast<std::size_t>(std::find(parts.begin(), parts.end(), part) - parts.begin());
        if (index == most_parts) continue;
        if (index == parts.size()) parts.push_back(part);
        if (index >= found.size()) found.resize(index + 1, static_cast<float>(absent));
        found[index] = value.get<float>();
    }
    return found;
}

std::string text(const Json& row, const char* key) {
    const auto found = row.find(key);
    return found != row.end() && found->is_string() ? found->get<std::string>() : "";
}

/// The file's object; an empty one when there is none, or none that can be read.
Json object_of(const std::filesystem::path& path) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) return Json::object();
    const Json value = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
    return value.is_object() ? value : Json::object();
}

std::string advice_on_folder(const std::filesystem::path& folder) {
    const std::filesystem::path whole = std::filesystem::absolute(folder).lexically_normal();
    const std::filesystem::path here = whole.has_filename() ? whole : whole.parent_path();
    if (here.filename().string().starts_with("checkpoint-"))
        return cat("This is a checkpoint of the run in ", here.parent_path().string(), "; name that folder.");
    return "A run's folder has the metrics that logging.metrics_file names.";
}

/// The file's contents after `offset`.
std::string read_from(const std::filesystem::path& path, std::uintmax_t offset, struct stat& about) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || ::fstat(fd, &about) != 0) {
        const int error = errno;
        if (fd >= 0) ::close(fd);
        throw Error("run.no-metrics", cat("cannot read ", path.string(), ": ", std::strerror(error)),
                    advice_on_folder(path.parent_path()));
    }
    std::string content;
    char block[65536];
    ssize_t count = 0;
    while ((count = ::pread(fd, block, sizeof block, static_cast<off_t>(offset + content.size()))) > 0)
        content.append(block, static_cast<std::size_t>(count));
    ::close(fd);
    return content;
}

}  // namespace

std::string Run::name() const {
    const auto clean = folder.lexically_normal();
    const auto last = clean.has_filename() ? clean.filename() : clean.parent_path().filename();
    return last.empty() || last == "." ? std::filesystem::absolute(folder).lexically_normal().filename().string()
                                       : last.string();
}

double Run::share() const {
    if (steps.empty()) return absent;
    const auto of = [](double done, double all) { return std::clamp(done / all, 0.0, 1.0); };
    const auto step = static_cast<double>(steps.back().step);
    if (total_steps > 0) return of(step, static_cast<double>(total_steps));
    const Json options = Json::parse(config, nullptr, false);
    if (!options.is_object()) return absent;
    const Json training = options.value("training", Json::object());
    const double limit = number(training, "max_steps"), epochs = number(training, "num_train_epochs");
    if (limit > 0) return of(step, limit);
    if (epochs > 0 && std::isfinite(steps.back().epoch)) return of(steps.back().epoch, epochs);
    return absent;
}

bool Run::killed() const {
    return !ending && (use.state == FolderUse::State::free || use.state == FolderUse::State::left);
}

std::string Run::killed_text() const {
    char time[32];
    const std::time_t at = last_sign;
    std::tm local{};
    std::strftime(time, sizeof time, "%Y-%m-%d %H:%M:%S", ::localtime_r(&at, &local));
    const bool elsewhere = use.state == FolderUse::State::left && !use.here;
    return cat("stopped without finishing ",
               steps.empty() ? std::string("before a step was logged") : cat("at step ", steps.back().step),
               elsewhere ? cat(", unless ", use.holder, " still runs it") : "", " (last heartbeat ", time, ")");
}

double Run::seconds_left() const {
    const double done = share();
    if (ending || killed() || !(done > 0)) return absent;
    constexpr std::size_t last = 20;
    double milliseconds = 0;
    std::size_t count = 0;
    for (auto row = steps.rbegin(); row != steps.rend() && count < last; ++row)
        if (std::isfinite(row->step_ms)) milliseconds += row->step_ms, ++count;
    if (count == 0) return absent;
    const double a_step = milliseconds / static_cast<double>(count) / 1000;
    return a_step * static_cast<double>(steps.back().step) * (1 - done) / done;
}

double Run::peak_gib() const {
    if (device.empty() || device == cpu_device) return absent;  // a CPU's rows have the plan's memory
    double peak = ending ? ending->memory_gib : absent;
    for (const StepRow& row : steps)
        if (std::isfinite(row.memory_gib)) peak = std::isfinite(peak) ? std::max(peak, row.memory_gib) : row.memory_gib;
    return peak;
}

namespace {

/// A value of each line that is an object.
template <class Use>
void each_row(const std::filesystem::path& file, const Use& use) {
    std::istringstream lines(read_file(file));
    for (std::string line; std::getline(lines, line);) {
        const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
        if (row.is_object()) use(row);
    }
}

std::vector<PicturedRow> read_pictured(const std::filesystem::path& file) {
    std::vector<PicturedRow> rows;
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(file, ignored)) return rows;
    each_row(file, [&](const Json& row) {
        PicturedRow& read = rows.emplace_back();
        read.row = integer(row, "row"), read.tokens = integer(row, "tokens"), read.text = text(row, "text");
        const auto images = row.find("images");
        if (images == row.end() || !images->is_array()) return;
        for (const Json& image : *images) {
            if (!image.is_object()) continue;
            PicturedRow::Image& one = read.images.emplace_back();
            one.url = text(image, "url");
            const auto tokens = image.find("tokens");
            if (tokens == image.end() || !tokens->is_array() || tokens->size() != 2) continue;
            one.begin = whole((*tokens)[0]), one.end = whole((*tokens)[1]);
        }
    });
    return rows;
}

}  // namespace

RunReader::RunReader(const std::filesystem::path& folder) {
    run_.folder = folder;
    if (!std::filesystem::is_directory(folder))
        throw Error("run.not-a-run", cat(folder.string(), " is no folder"),
                    "A run is named by its training.output_dir.");
    read_facts();
    const Json options = Json::parse(run_.config, nullptr, false);
    const std::string name = options.is_object() ? text(options.value("logging", Json::object()), "metrics_file") : "";
    metrics_ = folder / (name.empty() ? "metrics.jsonl" : name);
    update();
}

void RunReader::read_facts() {
    const auto config = run_.folder / "run_config.json";
    std::error_code ignored;
    if (std::filesystem::is_regular_file(config, ignored)) run_.config = config::with_present_names(read_file(config));
    const RunFacts facts = read_run_facts(run_.folder);
    run_.total_steps = facts.total_steps;
    run_.planned_gib = facts.planned_bytes > 0 ? static_cast<double>(facts.planned_bytes) / (1 << 30) : absent;
    run_.planned_groups = facts.planned_groups;
    run_.row_tokens = facts.row_tokens;
    run_.planned_rate = facts.planned_rate > 0 ? facts.planned_rate : absent;
    run_.device = facts.device;
    run_.pictured = read_pictured(run_.folder / pictured_file);
}

bool RunReader::update() {
    run_.use = folder_use(run_.folder);  // first: a run that ends writes its last row, then leaves the folder
    struct stat about{};
    std::string content = read_from(metrics_, read_, about);
    if ((inode_ != 0 && about.st_ino != inode_) || static_cast<std::uintmax_t>(about.st_size) < read_) {
        run_.steps.clear(), run_.evals.clear(), run_.parts.clear(), run_.ending.reset(), begun_.clear();
        read_ = 0;
        read_facts();
        content = read_from(metrics_, 0, about);
    }
    inode_ = about.st_ino;
    run_.last_sign = about.st_mtim.tv_sec;
    read_ += content.size();
    begun_ += content;
    std::size_t start = 0;
    for (std::size_t end; (end = begun_.find('\n', start)) != std::string::npos; start = end + 1)
        read_line(begun_.substr(start, end - start));
    begun_.erase(0, start);
    read_samples();
    read_completions();
    return !content.empty();
}

/// Reads all again if the file has another size: it is small.
void RunReader::read_samples() {
    std::error_code failed;
    const std::filesystem::path file = run_.folder / samples_file;
    const std::uintmax_t bytes = std::filesystem::file_size(file, failed);
    if (failed || bytes == samples_bytes_) return;
    samples_bytes_ = bytes;
    run_.samples.clear();
    each_row(file, [&](const Json& row) {
        run_.samples.push_back(
            {integer(row, "step"), text(row, "prompt"), text(row, "answer"), integer(row, "number"), {}});
        if (const auto images = row.find("images"); images != row.end() && images->is_array())
            for (const Json& image : *images)
                if (image.is_string()) run_.samples.back().images.push_back(image.get<std::string>());
    });
}

/// What was added since the last time: the file may be large.
void RunReader::read_completions() {
    const std::filesystem::path file = run_.folder / completions_file;
    std::error_code failed;
    const std::uintmax_t bytes = std::filesystem::file_size(file, failed);
    if (failed || bytes == completions_read_) return;
    if (bytes < completions_read_) {  // of a resumed run
        run_.completions.clear(), begun_completion_.clear(), of_step_.clear();
        completions_read_ = 0;
    }
    struct stat about{};
    const std::string content = read_from(file, completions_read_, about);
    completions_read_ += content.size();
    begun_completion_ += content;
    std::size_t start = 0;
    for (std::size_t end; (end = begun_completion_.find('\n', start)) != std::string::npos; start = end + 1)
        read_completion(begun_completion_.substr(start, end - start));
    begun_completion_.erase(0, start);
}

/// Lines begin with their step.
void RunReader::read_completion(const std::string& line) {
    constexpr int most_of_step = 8;
    const std::string begin = line.substr(0, line.find(','));
    completions_of_step_ = begin == of_step_ ? completions_of_step_ + 1 : 1;
    of_step_ = begin;
    if (completions_of_step_ > most_of_step) return;
    const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object()) return;
    CompletionRow read{
        .step = integer(row, "step"), .prompt = text(row, "prompt"), .completion = text(row, "completion")};
    for (const auto& [name, value] : row.items())
        if (value.is_number() && name != "step")
            read.scores += cat(read.scores.empty() ? "" : ", ", name, " ", short_number(value.get<double>()));
    run_.completions.push_back(std::move(read));
}

void RunReader::read_line(const std::string& line) {
    const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object()) return;
    if (text(row, "event") == "summary") {
        Ending end;
        end.exit_reason = text(row, "exit_reason"), end.error = text(row, "error");
        end.error_id = text(row, "error_id");
        end.seconds = number(row, "seconds"), end.train_loss = number(row, "train_loss");
        end.final_eval_loss = number(row, "final_eval_loss"), end.best_eval_loss = number(row, "best_eval_loss");
        end.tokens_per_second = number(row, "tokens_per_second"), end.memory_gib = number(row, "memory_gib");
        end.best_step = integer(row, "best_step"), end.tokens = integer(row, "tokens");
        run_.ending = end;
    } else if (row.contains("eval_tokens")) {
        run_.evals.push_back({integer(row, "step"), number(row, "eval_loss"), figures(row, "eval_")});
    } else if (row.contains("loss")) {
        run_.ending.reset();  // rows after a summary are of a resumed run
        run_.steps.push_back({integer(row, "step"), number(row, "epoch"), number(row, "loss"), number(row, "grad_norm"),
                              number(row, "learning_rate"), number(row, "tokens_per_second"), number(row, "step_ms"),
                              number(row, "memory_gib"), number(row, "mfu"), integer(row, "tokens"),
                              integer(row, "trained_tokens"), figures(row, ""), norms(row, run_.parts)});
    }
}

Run read_run(const std::filesystem::path& folder) {
    return RunReader(folder).run();
}

RunFacts read_run_facts(const std::filesystem::path& folder) {
    const Json facts = object_of(folder / facts_file);
    RunFacts read{integer(facts, "total_steps"), integer(facts, "planned_bytes"), {}, {}, {}, text(facts, "format"), 0,
                  text(facts, "device")};
    if (const double rate = number(facts, "planned_tokens_per_second"); rate > 0) read.planned_rate = rate;
    if (const Json plan = facts.value("run_plan", Json()); plan.is_object()) read.run_plan = plan.dump();
    const Json groups = facts.value("planned_groups", Json::object());
    for (const auto& [name, bytes] : groups.items())
        if (const int64_t planned = whole(bytes); planned > 0) read.planned_groups.emplace_back(name, planned);
    const auto counts = facts.find("row_tokens");
    constexpr std::size_t most_counts = 63;  // powers of two in 64 bits
    if (counts != facts.end() && counts->is_array())
        for (const Json& count : *counts)
            if (read.row_tokens.size() < most_counts) read.row_tokens.push_back(std::max<int64_t>(whole(count), 0));
    return read;
}

std::string run_facts_json(const RunFacts& facts) {
    Json groups = Json::object();
    for (const auto& [name, bytes] : facts.planned_groups) groups[name] = bytes;
    const Json plan = Json::parse(facts.run_plan, nullptr, /*allow_exceptions=*/false);
    return Json{{"total_steps", facts.total_steps},
                {"planned_bytes", facts.planned_bytes},
                {"planned_groups", groups},
                {"row_tokens", facts.row_tokens},
                {"run_plan", plan.is_discarded() ? Json() : plan},
                {"format", facts.format},
                {"planned_tokens_per_second", facts.planned_rate > 0 ? Json(facts.planned_rate) : Json()},
                {"device", facts.device}}
               .dump(2) +
           "\n";
}

std::vector<int64_t> row_lengths(int64_t rows, const std::function<int64_t(int64_t)>& tokens) {
    std::vector<int64_t> counts;
    for (int64_t i = 0; i < rows; ++i) {
        const auto power =
            static_cast<std::size_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(tokens(i), 1)) - 1));
        if (counts.size() <= power) counts.resize(power + 1);
        ++counts[power];
    }
    return counts;
}

}  // namespace unsloth::report
