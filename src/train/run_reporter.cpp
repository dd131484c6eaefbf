#include "unsloth/train/run_reporter.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "train/pictured_rows.h"
#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/host.h"
#include "unsloth/core/log.h"
#include "unsloth/core/text.h"
#include "unsloth/data/describe.h"
#include "unsloth/data/format.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/device.h"
#include "unsloth/placement/kernels.h"
#include "unsloth/placement/memory_use.h"
#include "unsloth/placement/plan_json.h"
#include "unsloth/placement/stages.h"
#include "unsloth/planner/run_plan_text.h"
#include "unsloth/report/hardware_rate.h"
#include "unsloth/report/run.h"
#include "unsloth/train/learning_rate.h"

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

/// Tokens per second of all ranks with full rows; 0: not predicted, as on a CPU, in a pipeline and
/// for runs that sample completions.
double planned_rate(const RunSetup& setup) {
    if (!setup.device().is_cuda() || config::samples_completions(setup.config().training.objective)) return 0;
    if (!setup.plan().request().pp.alone()) return 0;  // a stage does not know what the slowest one takes
    const int64_t passes = setup.loader().passes_of_step();
    const double ms = placement::predicted_step_ms(setup.plan(), placement::machine_of(setup.device()).card, passes);
    const int64_t tokens = setup.plan().request().sizes.tokens * setup.config().distributed.cp_size * passes;
    return ms > 0 ? 1000 * static_cast<double>(tokens * setup.data_ranks()) / ms : 0;
}

/// Steps of the run, or what they would be without max_steps 0.
int64_t full_length(const RunSetup& setup) {
    const config::TrainingOptions& t = setup.config().training;
    return t.max_steps == 0 ? setup.loader().total_steps(t.num_train_epochs, -1) : setup.total_steps();
}

/// What shares of the run, and parts of an epoch, are in steps; empty where the options count steps.
std::string describe_intervals(const config::TrainingOptions& t, int64_t steps, int64_t epoch_steps) {
    const config::StepIntervals every = config::step_intervals(t, steps, epoch_steps);
    std::string text;
    const auto add = [&](double given, double per_epoch, const char* what, const config::StepInterval& interval) {
        if (per_epoch <= 0 && (given == 0 || given >= 1)) return;
        const int64_t least = interval.shortest();
        text += cat(text.empty() ? "" : ", ", what, " every ", least < interval.every ? cat(least, " or ") : "",
                    interval.every, interval.every == 1 ? " step" : " steps");
    };
    add(t.eval_steps, t.evals_per_epoch, "an evaluation", every.eval);
    add(t.save_steps, t.saves_per_epoch, "a checkpoint", every.save);
    add(t.logging_steps, 0, "metrics", every.log);
    return text;
}

report::RunFacts facts_of(const RunSetup& setup) {
    const model::ModelPlan& plan = setup.plan();
    const data::Dataset& rows = setup.loader().dataset();
    std::map<std::string, int64_t> groups = plan.groups();
    const int64_t teachers = setup.teachers_plan() != nullptr ? setup.teachers_plan()->total_bytes() : 0;
    if (teachers > 0) groups["teacher"] = teachers;
    return {setup.total_steps(),
            plan.total_bytes() + teachers,
            {groups.begin(), groups.end()},
            report::row_lengths(rows.size(), [&](int64_t i) { return rows.tokens(i); }),
            planner::run_plan_json(plan.request().run),
            data::format_name(rows.stats().format),
            planned_rate(setup),
            setup.device().is_cuda() ? ops::device_name(setup.device()) : report::cpu_device};
}

}  // namespace

void RunReporter::banner() const {
    const spec::ModelSpec& spec = setup_.opened().file->spec;
    const weights::ParameterTable& table = *setup_.plan().table();
    const int64_t trainable = table.trainable_elements(), total = setup_.opened().file->tensors.parameters();
    char share[32];
    std::snprintf(share, sizeof share, "%.3f %%", 100.0 * static_cast<double>(trainable) / static_cast<double>(total));
    log::info("model      ", config().model.path, ": ", spec.model_type, ", ", spec.num_layers, " layers, hidden ",
              spec.hidden_size, ", ", count_text(total), " parameters; base: ", setup_.plan().base_description());
    log::info("trainable  ", count_text(trainable), " parameters (", share, " of the model)",
              full() ? ", all of it" : "");
    if (setup_.group() && setup_.device().is_cuda())
        for (const std::string& setting : setup_.nccl()) log::info("nccl       ", setting);
    if (setup_.group())
        log::info("ranks      ", setup_.environment().world_size, ", ", setup_.environment().local_world_size,
                  " on this machine, started by ", setup_.environment().launcher,
                  setup_.data_ranks() < setup_.environment().world_size
                      ? cat("; ", setup_.data_ranks(), " copies of the model, each over ",
                            setup_.environment().world_size / setup_.data_ranks())
                      : "");
    if (!setup_.plan().request().pp.alone())
        log::info("pipeline   ", placement::describe_pipeline(setup_.plan().request().pp));
    log::info("device     ", memory::describe_device(setup_.device()), "; compute ", name_of(config().model.dtype),
              ", residual stream in the same type");
    if (const std::string tuned = placement::kernels_line(*setup_.plan().request().kernels, setup_.plan());
        !tuned.empty())
        log::info("kernels    ", tuned);
    if (setup_.teacher()) log::info("teacher    ", setup_.teacher()->describe());
    log::info("data       ", setup_.groups() ? setup_.groups()->describe() : data::describe(setup_.loader()));
    const config::TrainingOptions& t = config().training;
    const bool dry = t.max_steps == 0;
    const int64_t steps = full_length(setup_);
    log::info("steps      ", steps, dry ? " without max_steps 0" : "");
    if (const std::string often = describe_intervals(t, steps, setup_.epoch_steps()); !often.empty())
        log::info("intervals  ", often);
    if (const auto text = describe_router_loss(config(), setup_.plan().spec())) log::info("router     ", *text);
    log::info("keeps      ", describe_layers(setup_.plan().request().run));
    if (const std::string places = placement::describe_places(setup_.plan()); !places.empty())
        log::info("weights    ", places, "; copied to the device ahead of use, for ",
                  setup_.plan().request().run.in_flight, " micro-batches at a time");
    if (setup_.device().is_cuda()) {
        const placement::Machine machine = placement::machine_of(setup_.device());
        char predicted[64];
        std::snprintf(predicted, sizeof predicted, "%.0f ms a step of full rows",
                      placement::predicted_step_ms(setup_.plan(), machine.card, setup_.loader().passes_of_step()));
        log::info("predicted  ", predicted, machine.known ? "" : ", by the rates of a card like this one");
    }
    log::info("memory plan\n", setup_.plan().table_text());
    if (setup_.device().is_cpu())
        log::info("memory     ", human_bytes(process_memory().now),
                  " are taken already, by libraries, rows and the program: what is planned comes on top");
    if (leads()) warn();
    if (spec.tie_word_embeddings && setup_.plan().lora() && !setup_.plan().lora()->modules_to_save.empty())
        log::warning(
            "embed_tokens and lm_head are tied in this model; modules_to_save trains its own copies, as PEFT does: "
            "after a merge the "
            "two are no longer tied");
}

void RunReporter::warn() const {
    const spec::ModelSpec& spec = setup_.opened().file->spec;
    if (const auto doubt = doubt_learning_rate(config(), spec)) log::warning(*doubt);
    if (const auto doubt = doubt_adapter(config())) log::warning(*doubt);
    if (const auto& lora = setup_.plan().lora())
        if (const auto doubt = doubt_targets(*lora, spec)) log::warning(*doubt);
    if (const auto doubt = doubt_quantization(config(), spec, setup_.opened().file->quantization.has_value()))
        log::warning(*doubt);
    const RunLength length{full_length(setup_), setup_.loader().rows_per_epoch(),
                           setup_.loader().rows_of_step() * setup_.data_ranks(), setup_.epoch_steps()};
    if (const auto doubt = doubt_warmup(config().training, length.steps)) log::warning(*doubt);
    for (const std::string& doubt : doubt_lengths(config(), length)) log::warning(doubt);
    if (const auto doubt = doubt_host_threads(config().distributed, at::get_num_threads(),
                                              static_cast<int>(std::thread::hardware_concurrency()));
        doubt && setup_.device().is_cuda())
        log::warning(*doubt);
    for (const std::string& idle :
         options_without_effect(config(), setup_.device().is_cuda(), setup_.plan().request().sharding.share.size))
        log::warning(idle);
}

void RunReporter::print_plan() const {
    nlohmann::ordered_json row{{"event", "plan"}};
    row.update(placement::plan_json(setup_.plan(), setup_.teachers_plan()));
    std::cout << row.dump() << std::endl;
}

void RunReporter::begin(const TrainingState& state, double load_seconds) {
    state_ = &state;
    summary_.load_seconds = load_seconds;
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", load_seconds);
    log::info("loaded in ", text, " s");
    const config::TrainingOptions& t = config().training;
    time_left_ = TimeLeft({setup_.total_steps(), setup_.intervals().eval, setup_.intervals().save, t.save_minutes,
                           setup_.evaluated_tokens()});
    hardware_rate_ = report::dense_bf16_rate(ops::device_name(setup_.device()));
    if (setup_.resume()) history_.rows = formats::read_trainer_state(setup_.resume()->folder).log_history;
    if (!leads()) return;
    write_file_atomically(std::filesystem::path(t.output_dir) / report::facts_file,
                          report::run_facts_json(facts_of(setup_)));
    if (setup_.plan().request().sizes.patches > 0)
        write_file_atomically(std::filesystem::path(t.output_dir) / report::pictured_file,
                              pictured_rows(setup_.loader().dataset(), setup_.opened()));
    const std::string gpu = ops::pci_address(setup_.device());
    observers_.push_back(make_console(config(), gpu));
    observers_.push_back(make_metrics(config(), state.progress.step, gpu));
}

void RunReporter::step(const StepResult& result, formats::LossMean& unlogged) {
    summary_.skipped_steps += result.outcome.skipped != 0 ? 1 : 0;
    ++summary_.steps;
    summary_.tokens += result.tokens;
    summary_.trained_tokens += result.labels;
    summary_.train_seconds += result.seconds;
    time_left_.stepped(result.seconds, result.tokens);
    losses_.add(result.outcome.loss);
    unlogged.add(result.outcome.loss);
    if (const auto risen = loss_watch_.observe(result.step, result.outcome.loss); risen && leads())
        log::warning(*risen);
    if (!is_logged(result.step)) return;
    StepReport report;
    report.step = result.step;
    report.total_steps = setup_.total_steps();
    report.epoch = result.epoch;
    report.loss = unlogged.mean().value_or(result.outcome.loss);
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
    report.router_loads = result.router_loads;
    const auto& times = result.rank_seconds;
    if (std::all_of(times.begin(), times.end(), [](double seconds) { return seconds > 0; }))
        report.rank_seconds = times;
    unlogged = {};
    summary_.final_loss = report.loss;
    for (const auto& observer : observers_) observer->on_step(report);
    history_.on_step(report);
}

void RunReporter::evaluation(const EvalReport& report) {
    for (const auto& observer : observers_) observer->on_eval(report);
    history_.on_eval(report);
    summary_.eval_seconds += report.seconds;
    summary_.final_eval_loss = report.loss;
    time_left_.evaluated(report.seconds);
}

bool RunReporter::was_evaluated(int64_t step) {
    const auto found = std::find_if(history_.rows.rbegin(), history_.rows.rend(), [&](const auto& row) {
        return row.step == step && std::any_of(row.values.begin(), row.values.end(),
                                               [](const auto& value) { return value.first.starts_with("eval_"); });
    });
    if (found == history_.rows.rend()) return false;
    if (const auto loss = found->values.find("eval_loss"); loss != found->values.end())
        summary_.final_eval_loss = loss->second;
    return true;
}

void RunReporter::saved(double seconds) {
    summary_.save_seconds += seconds;
    time_left_.saved(seconds);
}

bool RunReporter::is_logged(int64_t step) const {
    return setup_.intervals().log.falls_on(step) || step == setup_.total_steps();
}

double RunReporter::peak_gib() const {
    const int64_t peak = setup_.device().is_cuda()
                             ? memory::peak_allocated_bytes(setup_.device()) + setup_.plan().peer().total_bytes()
                             : setup_.plan().total_bytes() + setup_.taken().device;
    return static_cast<double>(peak) / (1 << 30);
}

/// The allocator's memory compared with the plan's, a teacher's included. CUDA graphs, and what peers read, are the
/// driver's, not the allocator's. On the CPU what the whole process took.
void RunReporter::tell_memory() const {
    if (const model::KeptFeatures* const kept = setup_.kept_features(); kept && setup_.plan().request().kept) {
        const model::KeptFeatures::Counts counts = kept->counts();
        log::info("images     the tower saw ", counts.seen, ", features of ", counts.fetched,
                  " were copied from host memory, which has those of ", counts.images);
    }
    if (setup_.device().is_cpu())
        return log::info("memory     the process took ", human_bytes(process_memory().peak), " at most, ",
                         human_bytes(setup_.plan().total_bytes()), " of it planned");
    if (!setup_.device().is_cuda()) return;
    const memory::AllocatorUse use = memory::allocator_use(setup_.device());
    const int64_t planned = setup_.taken().device + setup_.plan().total_bytes() - setup_.plan().recorded_bytes() -
                            setup_.plan().peer().total_bytes();
    char share[96];
    std::snprintf(share, sizeof share, "%.1f %% of the plan's; fragmentation %.1f %%",
                  100.0 * static_cast<double>(use.peak_allocated) / static_cast<double>(planned),
                  100.0 * use.fragmentation());
    log::info("memory     allocated ", human_bytes(use.peak_allocated), ", reserved ", human_bytes(use.reserved),
              ", planned ", human_bytes(planned), ": ", share);
}

void RunReporter::end(const std::string& exit_reason, const std::string& error, const std::string& error_id) {
    if (state_ == nullptr) return;
    const auto observers = std::exchange(observers_, {});
    try {
        summary_.exit_reason = exit_reason;
        summary_.error = error;
        summary_.error_id = error_id;
        summary_.global_step = state_->progress.step;
        summary_.epoch = state_->progress.epoch;
        summary_.seconds = seconds_since(setup_.began());
        summary_.train_loss = losses_.mean();
        summary_.best_metric = config::best_metric(config().training);
        summary_.best_value = state_->progress.best.value;
        summary_.best_step = state_->progress.best.step;
        summary_.memory_gib = peak_gib();
        for (const auto& observer : observers) observer->on_summary(summary_);
    } catch (const std::exception& failure) {
        if (error.empty()) throw;
        log::warning("the summary was not written: ", failure.what());  // the run's own error says more
    }
}

void RunReporter::stopped() {
    end("stopped", "");
    log::info("Stopped after step ", state_->progress.step, " of ", setup_.total_steps(),
              " (training.stop_at_step). --resume_from_checkpoint auto --stop_at_step 0 continues to the end");
}

void RunReporter::finish() {
    end("finished", "");
    char text[96];
    std::snprintf(text, sizeof text, ": %lld tokens in %.1f s, %.0f tok/s; loss %.4f",
                  static_cast<long long>(summary_.tokens), summary_.train_seconds, summary_.tokens_per_second(),
                  summary_.train_loss.value_or(std::nan("")));
    const int64_t steps = state_->progress.step;
    log::info("done: ", steps, " steps", summary_.steps == steps ? "" : cat(", ", summary_.steps, " of them now"),
              summary_.steps > 0 ? text : "", "; ", full() ? "model" : "adapter", " in ", config().training.output_dir);
    tell_memory();
}

}  // namespace unsloth::train
