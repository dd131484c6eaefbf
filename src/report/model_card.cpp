#include "unsloth/report/model_card.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/json.h"
#include "unsloth/core/text.h"
#include "unsloth/core/version.h"
#include "unsloth/hub/push.h"
#include "unsloth/report/run.h"

namespace unsloth::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view card_mark =
    "<!-- Written by unsloth-train. Without this line, an upload keeps the file. -->";

Json read_object(const fs::path& file) {
    std::error_code ignored;
    if (!fs::is_regular_file(file, ignored)) return Json::object();
    Json json = try_parse_json<Json>(read_file(file));
    return json.is_object() ? json : Json::object();
}

/// What is known of a folder's result.
struct Subject {
    std::string repository;
    bool adapter = false, dora = false;
    std::string base;                    ///< as configurations name it; empty: not known
    std::optional<std::string> base_id;  ///< where that is on the hub
    std::set<std::string> datasets;      ///< ids on the hub
    int64_t other_sources = 0;           ///< that are not there
    Json options = Json::object();       ///< run_config.json
    std::optional<Run> run;

    Json option(const char* section, const char* key) const {
        const auto found = options.find(section);
        if (found == options.end() || !found->is_object()) return nullptr;
        return found->value(key, Json());
    }
    std::string word(const char* section, const char* key) const {
        const Json value = option(section, key);
        return value.is_string() ? value.get<std::string>() : "";
    }
};

void add_source(const std::string& path, Subject& subject) {
    if (path.empty()) return;
    if (const auto repository = hub::used_repository(hub::Kind::dataset, path))
        subject.datasets.insert(repository->id);
    else
        ++subject.other_sources;
}

std::optional<Run> run_of(const fs::path& folder) {
    try {
        return read_run(folder);
    } catch (const Error&) {
        return std::nullopt;  // an adapter without a run, a checkpoint
    }
}

Subject subject_of(const fs::path& folder, const std::string& repository) {
    Subject subject{.repository = repository};
    const Json adapter = read_object(folder / "adapter_config.json");
    subject.options = read_object(folder / "run_config.json");
    subject.adapter = !adapter.empty();
    const Json base = adapter.value("base_model_name_or_path", Json());
    subject.base = base.is_string() ? base.get<std::string>() : subject.word("model", "path");
    subject.dora = adapter.value("use_dora", Json(false)) == true;
    if (const auto id = hub::used_repository(hub::Kind::model, subject.base)) subject.base_id = id->id;
    add_source(subject.word("data", "train_file"), subject);
    const Json sources = subject.option("data", "datasets");
    for (const Json& source : sources)
        if (source.is_object()) add_source(source.value("path", std::string()), subject);
    subject.run = run_of(folder);
    return subject;
}

std::string header_of(const Subject& subject) {
    std::string text = "---\n";
    if (subject.base_id)
        text += cat("base_model: ", *subject.base_id,
                    "\nbase_model_relation: ", subject.adapter ? "adapter" : "finetune", "\n");
    text += cat("library_name: ", subject.adapter ? "peft" : "transformers", "\npipeline_tag: text-generation\n");
    if (!subject.datasets.empty()) text += "datasets:\n";
    for (const std::string& id : subject.datasets) text += cat("- ", id, "\n");
    text += "tags:\n- unsloth-train\n";
    if (subject.adapter) text += subject.dora ? "- dora\n" : "- lora\n";
    if (const std::string objective = subject.word("training", "objective"); !objective.empty())
        text += cat("- ", objective, "\n");
    return text + "---\n";
}

/// A table's cell.
std::string cell(const Json& value) {
    std::string text;
    if (value.is_array()) {
        for (const Json& one : value) text += cat(text.empty() ? "" : ", ", cell(one));
        return text;
    }
    text = value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
    std::string escaped;
    for (const char c : text) escaped += c == '|' ? "\\|" : c == '\n' ? " " : std::string(1, c);
    return escaped;
}

using Rows = std::vector<std::pair<std::string, std::string>>;

std::string table(const char* title, const Rows& rows) {
    if (rows.empty()) return "";
    std::string text = cat("\n## ", title, "\n\n|  |  |\n| -- | -- |\n");
    for (const auto& [name, value] : rows) text += cat("| `", name, "` | ", value, " |\n");
    return text;
}

Rows metrics_of(const Subject& subject) {
    Rows rows;
    const auto add = [&](const std::string& name, double value) {
        if (std::isfinite(value)) rows.emplace_back(name, cat(std::round(value * 1e4) / 1e4));
    };
    if (!subject.run) return rows;
    const Run& run = *subject.run;
    if (run.ending) add("train_loss", run.ending->train_loss);
    if (!run.evals.empty()) {
        add("eval_loss", run.evals.back().loss);
        for (const auto& [name, value] : run.evals.back().more) add("eval_" + name, value);
    }
    if (!run.steps.empty()) rows.emplace_back("steps", std::to_string(run.steps.back().step));
    if (run.ending && run.ending->tokens > 0) rows.emplace_back("tokens", std::to_string(run.ending->tokens));
    return rows;
}

Rows settings_of(const Subject& subject) {
    struct Setting {
        const char *section, *key;
        bool of_adapters = false, of_preferences = false;
    };
    static constexpr Setting shown[] = {{"training", "objective"},
                                        {"lora", "finetuning_type"},
                                        {"lora", "r", true},
                                        {"lora", "lora_alpha", true},
                                        {"lora", "lora_dropout", true},
                                        {"lora", "use_rslora", true},
                                        {"lora", "target_modules", true},
                                        {"lora", "modules_to_save", true},
                                        {"model", "load_in_4bit"},
                                        {"model", "load_in_8bit"},
                                        {"model", "dtype"},
                                        {"model", "max_seq_length"},
                                        {"preference", "loss_type", false, true},
                                        {"preference", "beta", false, true},
                                        {"data", "packing"},
                                        {"training", "per_device_train_batch_size"},
                                        {"training", "gradient_accumulation_steps"},
                                        {"training", "num_train_epochs"},
                                        {"training", "max_steps"},
                                        {"training", "learning_rate"},
                                        {"training", "lr_scheduler_type"},
                                        {"training", "warmup_steps"},
                                        {"training", "warmup_ratio"},
                                        {"training", "weight_decay"},
                                        {"training", "optim"},
                                        {"training", "seed"}};
    const std::string objective = subject.word("training", "objective");
    const bool preferences = objective == "dpo" || objective == "orpo" || objective == "kto";
    Rows rows;
    for (const Setting& setting : shown) {
        const Json value = subject.option(setting.section, setting.key);
        if (value.is_null() || (value.is_array() && value.empty())) continue;
        if ((setting.of_adapters && !subject.adapter) || (setting.of_preferences && !preferences)) continue;
        rows.emplace_back(cat(setting.section, ".", setting.key), cell(value));
    }
    return rows;
}

std::string about(const Subject& subject) {
    std::string text = subject.adapter ? (subject.dora ? "A DoRA adapter" : "A LoRA adapter") : "A model";
    const char* const relation = subject.adapter ? " of " : " trained from ";
    if (subject.base_id)
        text += cat(relation, "[", *subject.base_id, "](https://huggingface.co/", *subject.base_id, ")");
    else if (!subject.base.empty())
        text += cat(relation, "the local model `", cell(Json(fs::path(subject.base).filename().string())), "`");
    text += cat(", trained with unsloth-train ", version, ".\n");
    if (subject.other_sources > 0)
        text +=
            cat("\nTraining data: ", subject.datasets.empty() ? "" : "the data sets above, and ", subject.other_sources,
                subject.other_sources == 1 ? " source that is" : " sources that are", " not on the hub.\n");
    return text;
}

std::string usage(const Subject& subject) {
    const char* const loader = subject.adapter ? "AutoPeftModelForCausalLM" : "AutoModelForCausalLM";
    return cat("\n## Use\n\n```python\nfrom ", subject.adapter ? "peft" : "transformers", " import ", loader,
               "\nfrom transformers import AutoTokenizer\n\nmodel = ", loader, ".from_pretrained(\"",
               subject.repository, "\")\ntokenizer = AutoTokenizer.from_pretrained(\"", subject.repository,
               "\")\n```\n");
}

}  // namespace

std::string model_card(const fs::path& folder, const std::string& repository) {
    const Subject subject = subject_of(folder, repository);
    const std::string name = repository.substr(repository.find('/') + 1);
    return cat(header_of(subject), card_mark, "\n\n# ", name, "\n\n", about(subject), usage(subject),
               table("Metrics", metrics_of(subject)), table("Settings", settings_of(subject)));
}

bool write_model_card(const fs::path& folder, const std::string& repository) {
    const fs::path file = folder / model_card_file;
    std::error_code ignored;
    if (fs::exists(file, ignored) && read_file(file).find(card_mark) == std::string::npos) return false;
    write_file_atomically(file, model_card(folder, repository));
    return true;
}

}  // namespace unsloth::report
