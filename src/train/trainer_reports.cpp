// What the trainer says before the first step, of its steps, and of how the run ended.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <thread>
#include <utility>

#include "train/plan_json.h"
#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/host.h"
#include "unsloth/core/log.h"
#include "unsloth/data/describe.h"
#include "unsloth/formats/finite.h"
#include "unsloth/memory/plan.h"
#include "unsloth/planner/run_plan_text.h"
#include "unsloth/spec/finite_sites.h"
#include "unsloth/train/kernels.h"
#include "unsloth/train/learning_rate.h"
#include "unsloth/train/memory_use.h"
#include "unsloth/train/stages.h"
#include "unsloth/train/trainer.h"

namespace unsloth::train {
namespace {

std::string count_text(int64_t count) {
    char text[32];
    const auto value = static_cast<double>(count);
    if (value >= 1e9)
        std::snprintf(text, sizeof text, "%.2f B", value / 1e9);
    else if (value >= 1e6)
        std::snprintf(text, sizeof text, "%.2f M", value / 1e6);
    else if (value >= 1e4)
        std::snprintf(text, sizeof text, "%.1f k", value / 1e3);
    else
        std::snprintf(text, sizeof text, "%lld", static_cast<long long>(count));
    return text;
}

/// What the log says of a choice.
std::string describe_layers(const spec::RunPlan& run) {
    const spec::LayerPlan& layer = run.layers.front();
    const auto kept_alike = [&](const spec::LayerPlan& other) {
        return other.keep == layer.keep && other.activations_at == layer.activations_at;
    };
    if (!std::all_of(run.layers.begin(), run.layers.end(), kept_alike))
        return cat("of the layers ", planner::describe_keep(run),
                   ", in the words of gradient_checkpointing; what they do not keep is recomputed");
    const char* const what[] = {"every layer's activations",
                                "every layer's activations but its MLP's; those are recomputed",
                                "each layer's input and its attention's output; the rest is recomputed",
                                "each layer's input; the rest is recomputed"};
    return cat(what[static_cast<int>(layer.keep)], layer.activations_at == spec::Place::host ? ", in host memory" : "",
               " (gradient_checkpointing ", name_of(layer), ")");
}

}  // namespace

void Trainer::banner() const {
    const spec::ModelSpec& spec = opened_.file->spec;
    const weights::ParameterTable& table = *plan_->table();
    const int64_t trainable = table.trainable_elements(), total = opened_.file->tensors.parameters();
    char share[32];
    std::snprintf(share, sizeof share, "%.3f %%", 100.0 * static_cast<double>(trainable) / static_cast<double>(total));
    log::info("model      ", config().model.path, ": ", spec.model_type, ", ", spec.num_layers, " layers, hidden ",
              spec.hidden_size, ", ", count_text(total), " parameters; base: ", plan_->base_description());
    log::info("trainable  ", count_text(trainable), " parameters (", share, " of the model)",
              full() ? ", all of it" : "");
    if (group_ && device_.is_cuda())
        for (const std::string& setting : nccl_) log::info("nccl       ", setting);
    if (group_)
        log::info("ranks      ", environment_.world_size, ", ", environment_.local_world_size,
                  " on this machine, started by ", environment_.launcher,
                  data_ranks() < environment_.world_size ? cat("; ", data_ranks(), " copies of the model, each over ",
                                                               environment_.world_size / data_ranks())
                                                         : "");
    if (!plan_->request().pp.alone()) log::info("pipeline   ", describe_pipeline(plan_->request().pp));
    log::info("device     ", memory::describe_device(device_), "; compute ", name_of(config().model.dtype),
              ", residual stream in the same type");
    if (const std::string tuned = kernels_line(*plan_->request().kernels, *plan_); !tuned.empty())
        log::info("kernels    ", tuned);
    if (instruction_) log::info("teacher    ", instruction_->describe());
    log::info("data       ", data::describe(*loader_));
    if (config().training.max_steps == 0)
        log::info("steps      ", loader_->total_steps(config().training.num_train_epochs, -1), " without max_steps 0");
    else
        log::info("steps      ", total_steps_);
    log::info("keeps      ", describe_layers(plan_->request().run));
    if (const std::string places = describe_places(*plan_); !places.empty())
        log::info("weights    ", places, "; copied to the device ahead of use, for ", plan_->request().run.in_flight,
                  " micro-batches at a time");
    if (device_.is_cuda()) {
        const Machine machine = machine_of(device_);
        char predicted[64];
        std::snprintf(predicted, sizeof predicted, "%.0f ms a step of full rows",
                      predicted_step_ms(*plan_, machine.card, loader_->passes_of_step()));
        log::info("predicted  ", predicted, machine.known ? "" : ", by the rates of a card like this one");
    }
    log::info("memory plan\n", plan_->table_text());
    if (device_.is_cpu())
        log::info("memory     ", memory::human_bytes(process_memory().now),
                  " are taken already, by libraries, rows and the program: what is planned comes on top");
    if (leads()) {
        if (const auto doubt = doubt_learning_rate(config(), spec)) log::warning(*doubt);
        if (const auto doubt = doubt_adapter(config())) log::warning(*doubt);
        const RunLength length{config().training.max_steps == 0
                                   ? loader_->total_steps(config().training.num_train_epochs, -1)
                                   : total_steps_,
                               loader_->rows_per_epoch(), loader_->rows_of_step() * data_ranks()};
        if (const auto doubt = doubt_warmup(config().training, length.steps)) log::warning(*doubt);
        for (const std::string& doubt : doubt_lengths(config(), length)) log::warning(doubt);
        if (const auto doubt = doubt_host_threads(config().distributed, at::get_num_threads(),
                                                  static_cast<int>(std::thread::hardware_concurrency()));
            doubt && device_.is_cuda())
            log::warning(*doubt);
        for (const std::string& idle :
             options_without_effect(config(), device_.is_cuda(), plan_->request().holding.share.size))
            log::warning(idle);
    }
    if (spec.tie_word_embeddings && plan_->lora() && !plan_->lora()->modules_to_save.empty())
        log::warning(
            "embed_tokens and lm_head are tied in this model; modules_to_save trains its own copies, as PEFT does: "
            "after a merge the "
            "two are no longer tied");
}

/// For programs, as the observers' lines.
void Trainer::print_plan() const {
    nlohmann::ordered_json row{{"event", "plan"}};
    row.update(plan_json(*plan_, teachers_plan()));
    std::cout << row.dump() << std::endl;
}

void Trainer::report(const StepResult& result) {
    agreed_signal_ = result.signal;
    agreed_save_ = agreed_save_ || result.save_due;
    const bool spike = result.outcome.skipped == skipped_spike, bad = result.outcome.skipped != 0 && !spike;
    // The loss is of the forward pass, which loss scaling does not touch: no other scale would mend it.
    const bool overflowed = config().model.dtype == spec::DType::f16 && std::isfinite(result.outcome.loss);
    if (bad && !overflowed) stop_at_bad_step(result);
    summary_.skipped_steps += spike || bad ? 1 : 0;
    if (spike) pass_over_spike(result);
    if (bad) {
        log::warning("step ", result.step, ": gradients overflowed at loss scale ", result.loss_scale,
                     "; the update was skipped, the scale is now ", stepper_->loss_scale());
    }
    step_seconds_ = result.seconds;
    if (!started_) comm::tell_launcher(environment_, "step");
    started_ = true;
    progress_.step = result.step;
    progress_.seen_tokens += result.tokens;
    progress_.epoch = result.epoch;
    ++summary_.steps;
    summary_.tokens += result.tokens;
    summary_.trained_tokens += result.labels;
    summary_.train_seconds += result.seconds;
    time_left_.stepped(result.seconds, result.tokens);
    losses_.add(result.outcome.loss);
    progress_.unlogged.add(result.outcome.loss);
    if (const auto risen = loss_watch_.observe(result.step, result.outcome.loss); risen && leads())
        log::warning(*risen);
    if (!is_logged(result.step)) return;
    StepReport report;
    report.step = result.step;
    report.total_steps = total_steps_;
    report.epoch = result.epoch;
    report.loss = progress_.unlogged.mean().value_or(result.outcome.loss);
    report.grad_norm = result.outcome.grad_norm;
    report.learning_rate = result.learning_rate;
    report.tokens = result.tokens;
    report.trained_tokens = result.labels;
    report.step_ms = 1000 * result.seconds;
    report.tokens_per_second = static_cast<double>(result.tokens) / result.seconds;
    report.memory_gib = peak_gib();
    report.seconds_left = time_left_.after(result.step);
    report.figures = result.figures;
    if (hardware_rate_ > 0) report.mfu = result.flops / result.seconds / hardware_rate_;
    if (config().training.skip_on_spike > 0) report.skipped_steps = summary_.skipped_steps;
    report.layer_norms = result.layer_norms;
    const auto& times = result.rank_seconds;
    if (std::all_of(times.begin(), times.end(), [](double seconds) { return seconds > 0; }))
        report.rank_seconds = times;
    progress_.unlogged = {};
    summary_.final_loss = report.loss;
    for (const auto& observer : observers_) observer->on_step(report);
    history_.on_step(report);
}

bool Trainer::is_logged(int64_t step) const {
    const int64_t every = config().training.logging_steps;
    return every > 0 && (step % every == 0 || step == total_steps_);
}

double Trainer::peak_gib() const {
    const int64_t peak = device_.is_cuda() ? memory::peak_allocated_bytes(device_) + plan_->peer().total_bytes()
                                           : plan_->total_bytes() + taken().device;
    return static_cast<double>(peak) / (1 << 30);
}

/// What the allocator took, against the plan, a teacher's beside it. Recorded passes, and what peers read, are the
/// driver's, not the allocator's. On the CPU what the whole process took.
void Trainer::tell_memory() const {
    if (device_.is_cpu())
        return log::info("memory     the process took ", memory::human_bytes(process_memory().peak), " at most, ",
                         memory::human_bytes(plan_->total_bytes()), " of it planned");
    if (!device_.is_cuda()) return;
    const memory::AllocatorUse use = memory::allocator_use(device_);
    const int64_t planned =
        taken().device + plan_->total_bytes() - plan_->recorded_bytes() - plan_->peer().total_bytes();
    char share[96];
    std::snprintf(share, sizeof share, "%.1f %% of the plan's; fragmentation %.1f %%",
                  100.0 * static_cast<double>(use.peak_allocated) / static_cast<double>(planned),
                  100.0 * use.fragmentation());
    log::info("memory     allocated ", memory::human_bytes(use.peak_allocated), ", reserved ",
              memory::human_bytes(use.reserved), ", planned ", memory::human_bytes(planned), ": ", share);
}

/// Tells the observers how the run ended, and lets them go.
void Trainer::summarise(const std::string& exit_reason, const std::string& error, const std::string& error_id) {
    const auto observers = std::exchange(observers_, {});
    try {
        summary_.exit_reason = exit_reason;
        summary_.error = error;
        summary_.error_id = error_id;
        summary_.global_step = progress_.step;
        summary_.epoch = progress_.epoch;
        summary_.seconds = seconds_since(begin_);
        summary_.train_loss = losses_.mean();
        summary_.best_metric = config::best_metric(config().training);
        summary_.best_value = progress_.best.value;
        summary_.best_step = progress_.best.step;
        summary_.memory_gib = peak_gib();
        for (const auto& observer : observers) observer->on_summary(summary_);
    } catch (const std::exception& failure) {
        if (error.empty()) throw;
        log::warning("the summary was not written: ", failure.what());  // the run's own error says more
    }
}

/// What each rank saw of a step that was skipped; called by all.
std::vector<RankView> Trainer::gather_views(const StepResult& result) const {
    const uint32_t site = result.outcome.first_bad_site;
    RankView own{environment_.rank, "", model_->layer_of_site(site), result.rows};
    const bool elsewhere = group_ && (site == spec::bad_elsewhere || site == spec::bad_gradient_norm);
    if (site != spec::all_finite && !elsewhere) own.place = model_->describe_site(site);
    if (!group_) return {own};
    std::vector<RankView> views;
    for (const std::string& text : group_->gather(view_text(own), "what the ranks saw of a skipped step"))
        views.push_back(parse_view(text));
    return views;
}

/// Writes it down for `replay`, on the rank that leads, and says so.
std::string Trainer::keep_anomaly(const StepResult& result, std::vector<RankView> views) const {
    const config::TrainingOptions& t = config().training;
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
    anomaly.world_size = data_ranks();
    anomaly.gradient_accumulation_steps = t.gradient_accumulation_steps;
    anomaly.config = config_hash(config::config_to_json(effective_config()));
    anomaly.ranks = std::move(views);
    try {
        return cat("; unsloth-train replay ", write_anomaly(t.output_dir, anomaly).string(), " looks at it again");
    } catch (const std::exception& failure) {  // a full disk is not what the step is to be remembered by
        return cat("; it could not be written down for replay: ", failure.what());
    }
}

void Trainer::pass_over_spike(const StepResult& result) {
    std::vector<RankView> views = gather_views(result);
    if (!leads()) return;
    char text[160];
    std::snprintf(text, sizeof text, "loss %.4g (limit %.4g), gradient norm %.4g (limit %.4g)", result.outcome.loss,
                  result.limits.loss, result.outcome.grad_norm, result.limits.grad_norm);
    log::warning("step ", result.step, " is a spike: ", text, "; its update was skipped",
                 keep_anomaly(result, std::move(views)));
}

namespace {

std::string describe_view(const RankView& view, const std::string& place) {
    std::string rows;
    for (std::size_t i = 0; i < view.rows.size() && i <= 32; ++i)
        rows += cat(i ? ", " : "", i < 32 ? std::to_string(view.rows[i]) : "…");
    return cat("First seen at: ", place, ". Rows of the step: ", rows);
}

/// What stopped the run, in words that go with its figures: where both are finite, values were finite too, but so large
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

/// The first tensor of base and adapter that holds what is not finite in the run's type, in words; empty: none.
std::string Trainer::bad_weight() const {
    try {
        formats::require_finite(*opened_.file, config().model.dtype);
        if (const auto& adapter = plan_->request().adapter)
            formats::require_finite(formats::read_adapter(*adapter, opened_.file->spec));
    } catch (const Error& error) {
        return cat("\n  ", error.what());
    }
    return "";
}

void Trainer::stop_at_bad_step(const StepResult& result) {
    save_result();
    finish_saving();
    const std::vector<RankView> views = gather_views(result);
    std::string where;
    if (group_)
        for (const RankView& view : views)
            if (!view.place.empty()) where += cat("\n  Rank ", view.rank, ": ", describe_view(view, view.place));
    if (where.empty())
        where = describe_view(views[group_ ? static_cast<std::size_t>(environment_.rank) : 0],
                              model_->describe_site(result.outcome.first_bad_site));
    const std::string kept = leads() ? keep_anomaly(result, views) : "", cause = leads() ? bad_weight() : "";
    throw Error(
        "numerics.not-finite",
        cat("step ", result.step, ": ", describe_stop(result.outcome), ". ", where,
            "\n  The update was skipped; the last good ", full() ? "model" : "adapter", " is in ",
            config().training.output_dir, kept, cause),
        std::isfinite(result.outcome.loss) && std::isfinite(result.outcome.grad_norm)
            ? "The run has diverged: lower training.learning_rate, or raise training.warmup_steps."
            : "Look at those rows; lower learning_rate or max_grad_norm; float16 overflows where bfloat16 does not.");
}

}  // namespace unsloth::train
