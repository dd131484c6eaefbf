#include "reward/hosted.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "reward/host.inc"
#include "reward/server.h"
#include "unsloth/core/error.h"

extern char** environ;

namespace unsloth::reward {
namespace {

using nlohmann::json;

std::vector<std::string> helper_environment(const Settings& settings, bool gpu) {
    std::vector<std::string> all;
    const auto overridden = [&](std::string_view one) {
        return one.starts_with("PYTHONHASHSEED=") || one.starts_with("PYTHONIOENCODING=") ||
               (!gpu && one.starts_with("CUDA_VISIBLE_DEVICES="));
    };
    for (char** one = environ; one != nullptr && *one != nullptr; ++one)
        if (!overridden(*one)) all.emplace_back(*one);
    all.push_back(cat("PYTHONHASHSEED=", settings.seed % 4'294'967'296));
    all.emplace_back("PYTHONIOENCODING=utf-8:backslashreplace");
    if (!gpu) all.emplace_back("CUDA_VISIBLE_DEVICES=");  // the memory plan owns the GPU
    return all;
}

std::string interpreter(const Settings& settings) {
    if (settings.python != "auto" && !settings.python.empty()) return settings.python;
    const char* const environment = std::getenv("VIRTUAL_ENV");
    return environment != nullptr && *environment != '\0' ? cat(environment, "/bin/python") : "python3";
}

std::size_t workers_of(const Settings& settings) {
    return static_cast<std::size_t>(std::max(settings.workers, 1));
}

}  // namespace

Limits::Time timeout_of(const Entry& entry, const Limits& limits, std::size_t rows) {
    return entry.timeout.value_or(limits.call + limits.call_row * static_cast<int64_t>(rows));
}

/// Functions of one folder share a helper, as they share sys.path; of which there is one for each worker.
Hosted::Hosted(const std::vector<Entry>& entries, const Settings& settings) : entries_(entries), settings_(settings) {
    std::map<std::string, std::vector<std::size_t>> together;
    for (std::size_t i = 0; i < entries.size(); ++i) {
        const Entry& entry = entries[i];
        if (entry.kind == Entry::Kind::python)
            together[cat("py ", entry.gpu, ' ', entry.file.parent_path().string())].push_back(i);
        if (entry.kind == Entry::Kind::command) together[cat("command ", i)].push_back(i);
    }
    for (const auto& [key, functions] : together) {
        for (std::size_t worker = 0; worker < workers_of(settings); ++worker) {
            for (const std::size_t function : functions) functions_[function].helpers.push_back(plans_.size());
            plans_.push_back(plan_of(functions));
        }
    }
}

HelperPlan Hosted::plan_of(const std::vector<std::size_t>& functions) const {
    const Entry& first = entries_[functions.front()];
    const bool python = first.kind == Entry::Kind::python;
    HelperPlan plan;
    plan.process.folder = first.file.empty() ? settings_.folder : first.file.parent_path();
    plan.process.command =
        python ? std::vector<std::string>{interpreter(settings_), "-u", "-c", host_script} : first.command;
    plan.process.environment = helper_environment(settings_, first.gpu);
    plan.process.socket = python;
    plan.process.memory_gib = settings_.memory_gib;
    json load{{"type", "load"},
              {"version", 1},
              {"seed", settings_.seed},
              {"tokenizer", settings_.tokenizer_folder},
              {"functions", json::array()}};
    for (const std::size_t function : functions) {
        const Entry& entry = entries_[function];
        plan.name += cat(plan.name.empty() ? "reward '" : ", '", entry.name, "'");
        load["functions"].push_back({{"id", function},
                                     {"name", python ? entry.function : entry.name},
                                     {"file", entry.file.string()},
                                     {"module", entry.module},
                                     {"style", entry.style},
                                     {"label", entry.label},
                                     {"kwargs", entry.arguments},
                                     {"factory", entry.factory}});
    }
    plan.load_line = load.dump(-1, ' ', false, json::error_handler_t::replace);
    return plan;
}

void Hosted::start() {
    if (started()) return;
    auto keeper = std::make_unique<Keeper>(plans_, settings_);
    try {
        read_ready(keeper->load());
    } catch (const json::exception& error) {  // a command's, for the helper of Python functions knows better
        throw Error("reward.not-loaded", cat("rewards: a command's message 'ready' is wrong: ", error.what()),
                    "docs/reference/rewards.md has the messages.");
    }
    keeper_ = std::move(keeper);
}

/// What the functions take. A command may say nothing of it.
void Hosted::read_ready(const std::vector<json>& ready) {
    for (auto& [function, one] : functions_) {
        const json& message = ready[one.helpers.front()];
        if (!message.contains("functions") || !message["functions"].is_array()) continue;
        for (const json& said : message["functions"]) {
            if (!said.is_object() || said.value("id", json()) != function) continue;
            const auto parameters = said.value("parameters", std::vector<std::string>());
            one.takes_ids =
                said.value("kwargs", true) || std::ranges::find(parameters, "completion_ids") != parameters.end();
            one.is_async = said.value("async", false);
            required_[function] = said.value("required", std::vector<std::string>());
        }
    }
}

/// Where each worker's rows begin, and the end: whole groups.
std::vector<std::size_t> Hosted::cuts(std::size_t rows, int num_generations) const {
    const auto group = static_cast<std::size_t>(std::max(num_generations, 1));
    const std::size_t groups = (rows + group - 1) / group;
    const std::size_t workers = std::min(workers_of(settings_), std::max<std::size_t>(groups, 1));
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i <= workers; ++i) all.push_back(std::min(rows, groups * i / workers * group));
    return all;
}

Call Hosted::call_of(const std::vector<std::size_t>& functions, std::size_t worker, std::size_t rows) const {
    Call call;
    call.helper = functions_.at(functions.front()).helpers[worker];
    for (const std::size_t function : functions)
        call.functions[function] = timeout_of(entries_[function], settings_.limits, rows);
    return call;
}

std::vector<HostedPart> Hosted::score(const Batch& batch) {
    if (!keeper_) return {};
    const std::vector<std::size_t> cut = cuts(batch.completions.size(), batch.num_generations);
    std::vector<Call> calls;
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    for (std::size_t worker = 0; worker + 1 < cut.size(); ++worker) {
        const std::size_t first = cut[worker], last = cut[worker + 1];
        const auto rows = std::make_shared<const std::string>(rows_json(batch, first, last));
        const auto ids = std::make_shared<const std::string>(ids_json(batch, first, last));
        // A call for each function, but one for all async functions of a helper, which wait at the same time.
        std::map<std::pair<std::size_t, std::size_t>, std::vector<std::size_t>> together;
        for (const auto& [function, one] : functions_)
            together[{one.helpers[worker], one.is_async ? 0 : function + 1}].push_back(function);
        for (const auto& [key, functions] : together) {
            Call call = call_of(functions, worker, last - first);
            const bool takes_ids =
                std::ranges::any_of(functions, [&](std::size_t one) { return functions_.at(one).takes_ids; });
            call.request = [rows, ids, takes_ids, step = batch.trainer_state.global_step](
                               int64_t id, const std::map<std::size_t, Limits::Time>& left) {
                json asked = json::array();
                for (const auto& [function, ignored] : left) asked.push_back(function);
                return cat(R"({"type":"score","id":)", id, R"(,"step":)", step, R"(,"functions":)", asked.dump(),
                           R"(,"completion_ids":)", takes_ids ? *ids : "[]", ',', *rows, '}');
            };
            calls.push_back(std::move(call));
            ranges.emplace_back(first, last);
        }
    }
    keeper_->run(calls, batch.trainer_state.global_step);
    std::vector<HostedPart> parts;
    for (std::size_t i = 0; i < calls.size(); ++i)
        for (auto& [function, outcome] : calls[i].outcomes)
            parts.push_back({function, ranges[i].first, ranges[i].second, std::move(outcome)});
    return parts;
}

std::optional<double> Hosted::resident_gib() {
    return keeper_ ? std::optional(keeper_->resident_gib()) : std::nullopt;
}

}  // namespace unsloth::reward
