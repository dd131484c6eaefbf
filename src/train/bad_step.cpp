#include "train/bad_step.h"

#include <cmath>
#include <cstdio>
#include <utility>

#include "unsloth/config/load.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/finite.h"
#include "unsloth/spec/finite_sites.h"

namespace unsloth::train {
namespace {

/// What each rank saw of a step that was skipped; called by all.
std::vector<RankView> gather_views(const RunSetup& setup, const model::Model& model, const StepResult& result) {
    const uint32_t site = result.outcome.first_bad_site;
    RankView own{setup.environment().rank, "", model.layer_of_site(site), result.rows};
    const bool elsewhere = setup.group() && (site == spec::bad_elsewhere || site == spec::bad_gradient_norm);
    if (site != spec::all_finite && !elsewhere) own.place = model.describe_site(site);
    if (!setup.group()) return {own};
    std::vector<RankView> views;
    for (const std::string& text : setup.group()->gather(view_text(own), "what the ranks saw of a skipped step"))
        views.push_back(parse_view(text));
    return views;
}

/// Writes it down for `replay`, on the rank that leads, and says so.
std::string keep_anomaly(const RunSetup& setup, const StepResult& result, std::vector<RankView> views) {
    const config::TrainingOptions& t = setup.config().training;
    Anomaly anomaly;
    anomaly.kind = result.outcome.skipped == skipped_spike ? Anomaly::Kind::spike : Anomaly::Kind::not_finite;
    anomaly.step = result.step;
    anomaly.epoch = result.epoch;
    anomaly.learning_rate = result.learning_rate;
    anomaly.loss_scale = result.loss_scale;
    anomaly.loss = result.outcome.loss;
    anomaly.grad_norm = result.outcome.grad_norm;
    anomaly.limits = result.limits;
    anomaly.seed = t.seed;
    anomaly.world_size = setup.data_ranks();
    anomaly.gradient_accumulation_steps = t.gradient_accumulation_steps;
    anomaly.config = config_hash(config::config_to_json(setup.effective_config()));
    anomaly.ranks = std::move(views);
    try {
        return cat("; unsloth-train replay ", write_anomaly(t.output_dir, anomaly).string(), " looks at it again");
    } catch (const std::exception& failure) {  // a full disk is not what the step is to be remembered by
        return cat("; it could not be written down for replay: ", failure.what());
    }
}

std::string describe_view(const RankView& view, const std::string& place) {
    std::string rows;
    for (std::size_t i = 0; i < view.rows.size() && i <= 32; ++i)
        rows += cat(i ? ", " : "", i < 32 ? std::to_string(view.rows[i]) : "…");
    return cat("First seen at: ", place, ". Rows of the step: ", rows);
}

/// What stopped the run, in words for its metrics: where both are finite, values were finite too, but so large
/// that a norm's sum of squares was not.
std::string describe_stop(const spec::StepOutcome& outcome) {
    const char* const what = !std::isfinite(outcome.loss)        ? "the loss is not finite"
                             : !std::isfinite(outcome.grad_norm) ? "the gradient is not finite"
                                                                 : "a value is not finite, or too large to be squared "
                                                                   "in 32 bits";
    char figures[64];
    std::snprintf(figures, sizeof figures, " (loss %.4g, gradient norm %.4g)", outcome.loss, outcome.grad_norm);
    return cat(what, figures);
}

}  // namespace

std::string bad_weight(const RunSetup& setup) {
    try {
        formats::require_finite(*setup.opened().file, setup.config().model.dtype);
        if (const auto& adapter = setup.plan().request().adapter)
            formats::require_finite(formats::read_adapter(*adapter, setup.opened().file->spec));
    } catch (const Error& error) {
        return cat("\n  ", error.what());
    }
    return "";
}

void warn_of_spike(const RunSetup& setup, const model::Model& model, const StepResult& result) {
    std::vector<RankView> views = gather_views(setup, model, result);
    if (!setup.leads()) return;
    char text[160];
    std::snprintf(text, sizeof text, "loss %.4g (limit %.4g), gradient norm %.4g (limit %.4g)", result.outcome.loss,
                  result.limits.loss, result.outcome.grad_norm, result.limits.grad_norm);
    log::warning("step ", result.step, " is a spike: ", text, "; its update was skipped",
                 keep_anomaly(setup, result, std::move(views)));
}

Error stop_error(const RunSetup& setup, const model::Model& model, const StepResult& result) {
    const std::vector<RankView> views = gather_views(setup, model, result);
    std::string where;
    if (setup.group())
        for (const RankView& view : views)
            if (!view.place.empty()) where += cat("\n  Rank ", view.rank, ": ", describe_view(view, view.place));
    if (where.empty())
        where = describe_view(views[setup.group() ? static_cast<std::size_t>(setup.environment().rank) : 0],
                              model.describe_site(result.outcome.first_bad_site));
    const std::string kept = setup.leads() ? keep_anomaly(setup, result, views) : "",
                      cause = setup.leads() ? bad_weight(setup) : "";
    return Error(
        "numerics.not-finite",
        cat("step ", result.step, ": ", describe_stop(result.outcome), ". ", where,
            "\n  The update was skipped; the last good ", setup.full() ? "model" : "adapter", " is in ",
            setup.config().training.output_dir, kept, cause),
        std::isfinite(result.outcome.loss) && std::isfinite(result.outcome.grad_norm)
            ? "The run has diverged: lower training.learning_rate, or raise training.warmup_steps."
            : "Look at those rows; lower learning_rate or max_grad_norm; float16 overflows where bfloat16 does not.");
}

}  // namespace unsloth::train
