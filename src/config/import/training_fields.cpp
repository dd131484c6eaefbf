// Fields of transformers' TrainingArguments whose meaning depends on each other.
#include "config/import/importer.h"
#include "unsloth/core/error.h"

namespace unsloth::config {
namespace {

bool is_share(const Json& steps) {
    return steps.is_number() && steps.get<double>() > 0 && steps.get<double>() < 1;
}

}  // namespace

void import_precision(Importer& importer, const char* fallback) {
    const auto is_on = [&](const char* key) {
        const auto value = importer.take(key);
        if (!value || *value == false) return false;
        if (*value != true && *value != "auto")
            importer.lose(key, cat("true or false is expected, found ", shown(*value)));
        return *value == true || *value == "auto";
    };
    const bool bf16 = is_on("bf16"), bfloat16 = is_on("bfloat16"), fp16 = is_on("fp16"), float16 = is_on("float16"),
               float32 = is_on("float32");
    if (bf16 || bfloat16) {
        importer.set("bf16", "model.dtype", "bfloat16");
        if (fp16 || float16) importer.note("fp16", "bf16 is on too, and wins");
    } else if (fp16 || float16) {
        importer.set("fp16", "model.dtype", "float16");
    } else if (float32) {
        importer.set("float32", "model.dtype", "float32");
    } else if (*fallback != '\0') {
        importer.set_default("model.dtype", fallback);
    } else {
        importer.note("bf16, fp16",
                      "neither is on: they compute in the checkpoint's own type; model.dtype stays bfloat16");
    }
}

void import_warmup(Importer& importer) {
    const auto steps = importer.take("warmup_steps"), ratio = importer.take("warmup_ratio");
    if (steps && is_share(*steps)) {
        importer.set("warmup_steps", "training.warmup_ratio", *steps);
    } else if (steps && *steps != 0) {
        importer.set("warmup_steps", "training.warmup_steps", *steps);
        if (ratio && *ratio != 0) importer.note("warmup_ratio", "warmup_steps are given too, and win");
    } else if (ratio && *ratio != 0) {
        importer.set("warmup_ratio", "training.warmup_ratio", *ratio);
    }
}

void import_saving(Importer& importer, const std::string& strategy_default) {
    const auto steps = importer.take("save_steps");
    // axolotl: save_steps alone are a strategy.
    const Json strategy = importer.take("save_strategy").value_or(steps ? Json("steps") : Json(strategy_default));
    if (strategy == "no" || strategy == false) return importer.set("save_strategy", "training.save_steps", 0);
    if (strategy == "steps") {
        if (!steps) return;
        if (!is_share(*steps)) return importer.set("save_steps", "training.save_steps", *steps);
        return importer.lose("save_steps", cat(shown(*steps),
                                               ": a share of the run is not known before the rows are "
                                               "read; training.save_steps takes a number of steps"));
    }
    importer.lose("save_strategy", cat(shown(strategy), ": checkpoints come every training.save_steps steps (or ",
                                       "training.save_minutes), and at the end; save_steps stays ",
                                       importer.config().training.save_steps));
}

void import_evaluation(Importer& importer, const std::string& strategy_default, bool has_rows) {
    const auto steps = importer.take("eval_steps"), given = importer.take("eval_strategy");
    const auto former = importer.take("evaluation_strategy");
    const Json strategy = given ? *given : former ? *former : Json(strategy_default);
    if (strategy == "no" || strategy == false) {
        if (has_rows)
            importer.note("eval_strategy", "there is one evaluation, at the end, where there are rows for it");
        return;
    }
    if (strategy != "steps")
        return importer.lose("eval_strategy", cat(shown(strategy),
                                                  ": evaluations come every training.eval_steps steps, "
                                                  "and at the end"));
    if (!steps && !has_rows) return;
    if (!has_rows)
        return importer.lose("eval_steps", "there are no rows to evaluate on: give data.eval_file or data.val_size");
    const Json every = steps.value_or(Json(importer.config().training.logging_steps));
    if (is_share(every))
        return importer.lose("eval_steps", cat(shown(every),
                                               ": a share of the run is not known before the rows are "
                                               "read; training.eval_steps takes a number of steps"));
    importer.set("eval_steps", "training.eval_steps", every);
}

void import_best(Importer& importer, const char* patience) {
    for (const auto& [key, option] : {std::pair{patience, "training.early_stopping_patience"},
                                      std::pair{"load_best_model_at_end", "training.load_best_model_at_end"}}) {
        const auto value = importer.take(key);
        if (!value || *value == false || *value == 0) continue;
        if (importer.config().training.eval_steps > 0)
            importer.set(key, option, *value);
        else
            importer.lose(key, cat(shown(*value), ": it follows evaluations during the run, and there are none"));
    }
}

}  // namespace unsloth::config
