// Fields of transformers' TrainingArguments whose meaning depends on each other.
#include <algorithm>

#include "import/importer.h"
#include "unsloth/config/step_intervals.h"
#include "unsloth/core/error.h"

namespace unsloth::import {
namespace {

bool is_share(const Json& steps) {
    return steps.is_number() && steps.get<double>() > 0 && steps.get<double>() < 1;
}

/// A module's own name: "lm_head" of "model.lm_head".
std::string last_part(const Json& module) {
    const std::string path = module.is_string() ? module.get<std::string>() : "";
    return path.substr(path.rfind('.') + 1);
}

bool is_trained_whole(const std::string& module) {
    return module == "embed_tokens" || module == "lm_head";
}

}  // namespace

void import_modules(Importer& importer, const std::string& key, const std::optional<Json>& modules,
                    const std::string& saved_key) {
    Json targets = modules.value_or(nullptr), saved = Json::array(), moved = Json::array();
    if (targets.is_array()) {
        for (const Json& module : targets)
            if (is_trained_whole(last_part(module))) moved.push_back(last_part(module));
        std::erase_if(targets.get_ref<Json::array_t&>(),
                      [](const Json& module) { return is_trained_whole(last_part(module)); });
    }
    for (const std::string& module : importer.take_names(saved_key)) {
        const std::string name = last_part(module);
        saved.push_back(is_trained_whole(name) ? name : module);
    }
    const bool says_saved = !saved.empty();
    for (const Json& module : moved)
        if (std::find(saved.begin(), saved.end(), module) == saved.end()) saved.push_back(module);
    if (modules) importer.set(key, "lora.target_modules", targets);
    if (!moved.empty())
        importer.note(key, cat(shown(moved), ": adapters are of projections alone: lora.modules_to_save trains these ",
                               "as a whole"));
    if (!saved.empty()) importer.set(says_saved ? saved_key : key, "lora.modules_to_save", saved);
}

void import_dropout_of_preferences(Importer& importer, const std::string& key) {
    const Json disables = importer.take("disable_dropout").value_or(true);
    if (disables == false) return;
    const auto dropout = importer.take(key);
    if (dropout && *dropout != 0)
        importer.note(key, "has no effect: disable_dropout is on, as it is with preferences unless it is said");
    importer.set_default("lora.lora_dropout", 0);
}

void import_precision(Importer& importer, const char* absent, const char* neither) {
    bool says = false;
    const auto is_on = [&](const char* key) {
        const auto value = importer.take(key);
        says = says || value.has_value();
        if (!value || *value == false) return false;
        const bool on = *value == true || *value == "auto" || *value == "full";
        if (!on) importer.lose(key, cat("true or false is expected, found ", shown(*value)));
        return on;
    };
    const bool bf16 = is_on("bf16"), bfloat16 = is_on("bfloat16"), fp16 = is_on("fp16"), float16 = is_on("float16"),
               float32 = is_on("float32");
    const char* const fallback = says ? neither : absent;
    if (bf16 || bfloat16) {
        importer.set("bf16", "model.dtype", "bfloat16");
        if (fp16 || float16) importer.note("fp16", "bf16 is on too, and wins");
    } else if (fp16 || float16) {
        importer.set("fp16", "model.dtype", "float16");
    } else if (float32) {
        importer.set("float32", "model.dtype", "float32");
    } else if (*fallback != '\0') {
        if (says) importer.note("bf16, fp16", cat("neither is on: model.dtype is ", fallback));
        importer.set_default("model.dtype", fallback);
    } else {
        importer.note("bf16, fp16",
                      "neither is on: they compute in the checkpoint's own type; model.dtype stays bfloat16");
    }
}

void import_warmup(Importer& importer) {
    const auto steps = importer.take("warmup_steps"), ratio = importer.take("warmup_ratio");
    const bool has_steps = steps && *steps != 0, has_ratio = ratio && *ratio != 0;
    if (has_steps)
        importer.set("warmup_steps", is_share(*steps) ? "training.warmup_ratio" : "training.warmup_steps", *steps);
    if (has_ratio && has_steps) importer.note("warmup_ratio", "has no effect: warmup_steps are given too, and win");
    if (has_ratio && !has_steps) importer.set("warmup_ratio", "training.warmup_ratio", *ratio);
}

void save_per_epoch(Importer& importer, const std::string& key, const Json& times) {
    importer.set(key, "training.saves_per_epoch", times);
    if (importer.is_set("training.save_steps"))
        importer.set_default("training.save_steps", 0);  // it was that program's
}

void import_saving(Importer& importer, const std::string& strategy_default) {
    const auto steps = importer.take("save_steps");
    // axolotl: save_steps alone are a strategy.
    const Json strategy = importer.take("save_strategy").value_or(steps ? Json("steps") : Json(strategy_default));
    if (steps && strategy != "steps")
        importer.note("save_steps", cat("has no effect: save_strategy is ", shown(strategy)));
    if (strategy == "no" || strategy == false) return importer.set("save_strategy", "training.save_steps", 0);
    if (strategy == "epoch") return save_per_epoch(importer, "save_strategy", 1);
    if (strategy == "steps") {
        if (steps) importer.set("save_steps", "training.save_steps", *steps);
        return;
    }
    importer.leave("save_strategy", cat(shown(strategy), ": checkpoints come every training.save_steps steps (or ",
                                        "training.save_minutes), and at the end; save_steps stays ",
                                        importer.config().training.save_steps));
}

void import_evaluation(Importer& importer, const std::string& strategy_default, bool has_rows,
                       const Json& steps_default) {
    const auto steps = importer.take("eval_steps"), given = importer.take("eval_strategy");
    const auto former = importer.take("evaluation_strategy");
    const Json strategy = given ? *given : former ? *former : Json(strategy_default);
    if (steps && strategy != "steps")
        importer.note("eval_steps",
                      cat("has no effect: eval_strategy is ", strategy == false ? "no" : shown(strategy)));
    if (strategy == "no" || strategy == false) {
        if (has_rows)
            importer.note("eval_strategy", "there is one evaluation, at the end, where there are rows for it");
        return;
    }
    if (strategy != "steps" && strategy != "epoch")
        return importer.leave("eval_strategy", cat(shown(strategy),
                                                   ": evaluations come every training.eval_steps steps, "
                                                   "and at the end"));
    if (!has_rows)
        return importer.leave(steps ? "eval_steps" : "eval_strategy",
                              "there are no rows to evaluate on: give data.eval_file or data.val_size");
    if (strategy == "epoch") return importer.set("eval_strategy", "training.evals_per_epoch", 1);
    const Json by_default = steps_default.is_null() ? Json(importer.config().training.logging_steps) : steps_default;
    importer.set("eval_steps", "training.eval_steps", steps.value_or(by_default));
}

void import_best(Importer& importer, const char* patience) {
    for (const auto& [key, option] : {std::pair{patience, "training.early_stopping_patience"},
                                      std::pair{"load_best_model_at_end", "training.load_best_model_at_end"}}) {
        const auto value = importer.take(key);
        if (!value || *value == false || *value == 0) continue;
        if (config::evaluates_between_steps(importer.config().training))
            importer.set(key, option, *value);
        else
            importer.lose(key, cat(shown(*value), ": it follows evaluations during the run, and there are none"));
    }
}

}  // namespace unsloth::import
