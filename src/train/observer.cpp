#include "unsloth/train/observer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include <nlohmann/json.hpp>

#include "train/row_file.h"
#include "unsloth/core/error.h"
#include "unsloth/core/gpu_monitor.h"
#include "unsloth/core/log.h"
#include "unsloth/core/progress.h"
#include "unsloth/report/sinks.h"
#include "unsloth/train/json_number.h"

namespace unsloth::train {
namespace {

class MetricsFile final : public report::RowSink {
  public:
    MetricsFile(const config::Config& config, int64_t after_step)
        : file_(config.training.output_dir, config.logging.metrics_file, after_step) {}
    void row(const nlohmann::ordered_json& row) override { file_.add(row); }

  private:
    RowFile file_;
};

/// What only some runs have to say of a step: the objective's figures, norms of layers, …
void add_to(nlohmann::ordered_json& row, const StepReport& r) {
    for (const auto& [name, value] : r.figures) row[name] = number(value);
    if (r.mfu) row["mfu"] = number(r.mfu);
    if (r.skipped_steps) row["skipped_steps"] = *r.skipped_steps;
    if (!r.rank_seconds.empty()) {
        nlohmann::ordered_json& times = row["rank_work_ms"] = nlohmann::ordered_json::array();
        for (const double seconds : r.rank_seconds) times.push_back(number(1000 * seconds));
    }
    for (const auto& [name, norm] : r.layer_norms) row["grad_norm/" + name] = number(norm);
    if (r.router_loads.empty()) return;
    row["router_load_max"] = number(greatest_load(r.router_loads));
    row["dead_experts"] = dead_experts(r.router_loads);
    nlohmann::ordered_json most = nlohmann::ordered_json::array(), dead = most;
    for (const auto& load : r.router_loads) {  // null: the layer has no experts
        most.push_back(load ? number(load->most) : nullptr);
        dead.push_back(load ? nlohmann::ordered_json(load->dead) : nullptr);
    }
    row["router_loads"] = most;
    row["dead_experts_of_layers"] = dead;
}

/// Makes the rows of metrics, for all that take them.
class Rows final : public Observer {
  public:
    explicit Rows(std::vector<std::unique_ptr<report::RowSink>> sinks) : sinks_(std::move(sinks)) {}

    void on_step(const StepReport& r) override {
        nlohmann::ordered_json row{{"step", r.step},
                                   {"epoch", number(r.epoch)},
                                   {"loss", number(r.loss)},
                                   {"grad_norm", number(r.grad_norm)},
                                   {"learning_rate", number(r.learning_rate)},
                                   {"tokens", r.tokens},
                                   {"trained_tokens", r.trained_tokens},
                                   {"tokens_per_second", number(r.tokens_per_second)},
                                   {"step_ms", number(r.step_ms)},
                                   {"memory_gib", number(r.memory_gib)}};
        add_to(row, r);
        write(row);
    }
    void on_eval(const EvalReport& r) override {
        nlohmann::ordered_json row{{"step", r.step}, {"epoch", number(r.epoch)}};
        if (r.loss) row["eval_loss"] = number(*r.loss);
        row["eval_tokens"] = r.tokens;
        for (const auto& [name, value] : evaluated_values(r)) row[name] = number(value);
        write(row);
    }
    // Without the keys by which readers know the other rows: step, loss, eval_loss.
    void on_summary(const RunSummary& s) override {
        nlohmann::ordered_json row{{"event", "summary"},
                                   {"exit_reason", s.exit_reason},
                                   {"global_step", s.global_step},
                                   {"epoch", number(s.epoch)},
                                   {"steps", s.steps},
                                   {"tokens", s.tokens},
                                   {"trained_tokens", s.trained_tokens},
                                   {"tokens_per_second", number(s.tokens_per_second())},
                                   {"seconds", number(s.seconds)},
                                   {"train_seconds", number(s.train_seconds)},
                                   {"eval_seconds", number(s.eval_seconds)},
                                   {"save_seconds", number(s.save_seconds)},
                                   {"load_seconds", number(s.load_seconds)},
                                   {"train_loss", number(s.train_loss)},
                                   {"final_loss", number(s.final_loss)},
                                   {"final_eval_loss", number(s.final_eval_loss)},
                                   {"best_" + s.best_metric, number(s.best_value)},
                                   {"best_step", nullptr},
                                   {"skipped_steps", s.skipped_steps},
                                   {"memory_gib", number(s.memory_gib)}};
        if (s.best_value) row["best_step"] = s.best_step;
        if (!s.error.empty()) row["error"] = s.error, row["error_id"] = s.error_id;
        write(row);
    }

  private:
    void write(const nlohmann::ordered_json& row) {
        for (const auto& sink : sinks_) sink->row(row);
    }

    std::vector<std::unique_ptr<report::RowSink>> sinks_;
};

/// "  margin 0.213  accuracy 0.75", of those that there are.
std::string figures_text(const objective::Figures& figures) {
    std::string text;
    for (const auto& [name, value] : figures) {
        const char* const shown = name == "rewards/margins"                                  ? "margin"
                                  : name == "rewards/accuracies" || name == "token_accuracy" ? "accuracy"
                                                                                             : "";
        char part[48];
        std::snprintf(part, sizeof part, "  %s %.3f", shown, value);
        if (*shown != '\0') text += part;
    }
    return text;
}

/// With `digits` after the point; very large values in powers of ten, and of no number its name without a sign.
std::string readable(double value, int digits) {
    if (std::isnan(value)) return "nan";
    char text[64];
    std::snprintf(text, sizeof text, std::abs(value) < 1e6 ? "%.*f" : "%.*e", digits, value);
    return text;
}

std::string step_text(const StepReport& r) {
    char text[160];
    std::snprintf(text, sizeof text, "loss %s  lr %.2e  grad norm %s  %.0f tok/s", readable(r.loss, 4).c_str(),
                  r.learning_rate, readable(r.grad_norm, 3).c_str(), r.tokens_per_second);
    if (r.mfu) std::snprintf(text + std::strlen(text), sizeof text - std::strlen(text), "  MFU %.1f %%", 100 * *r.mfu);
    return text + figures_text(r.figures) + bad_loads_text(r.router_loads);
}

std::string eval_text(const EvalReport& r) {
    char text[160];
    std::string line = cat("step ", r.step, "  eval");
    if (r.loss) {
        line += cat(" loss ", readable(*r.loss, 4));
    }
    std::snprintf(text, sizeof text, "  (%lld %s in %.1f s)", static_cast<long long>(r.tokens),
                  r.loss ? "labels" : "tokens of completions", r.seconds);
    line += text;
    for (const auto& [name, loss] : r.losses) {
        std::snprintf(text, sizeof text, "  %.4f", loss);
        line += cat("  ", name, text + 1);
    }
    return line + figures_text(r.figures);
}

/// "GPU 98 % 61.2 GiB"; empty where nothing is known.
std::string gpu_text(const std::optional<GpuSample>& gpu) {
    if (!gpu) return "";
    char text[48];
    std::snprintf(text, sizeof text, "GPU %.0f %% %.1f GiB", 100 * gpu->utilization,
                  static_cast<double>(gpu->memory_used) / (1 << 30));
    return text;
}

class PlainLines final : public Observer {
  public:
    explicit PlainLines(const std::string& gpu) : gpu_(gpu) {}
    void on_step(const StepReport& r) override {
        const std::string gpu = gpu_text(gpu_.sample());
        log::info("step ", r.step, "/", r.total_steps, "  ", step_text(r), "  ", static_cast<int64_t>(r.step_ms + 0.5),
                  " ms  ", gpu, gpu.empty() ? "" : "  ", "left ", duration_text(r.seconds_left));
    }
    void on_eval(const EvalReport& r) override { log::info(eval_text(r)); }

  private:
    GpuMonitor gpu_;
};

/// What a field of the bar says, in the order of the line.
std::vector<ProgressField> bar_fields(const StepReport& r, const std::string& gpu) {
    char loss[32], rate[32], norm[32], speed[32];
    std::snprintf(loss, sizeof loss, "loss %.4f", r.loss);
    std::snprintf(rate, sizeof rate, "lr %.2e", r.learning_rate);
    std::snprintf(norm, sizeof norm, "grad norm %.3f", r.grad_norm);
    std::snprintf(speed, sizeof speed, "%.0f tok/s", r.tokens_per_second);
    std::vector<ProgressField> fields = {
        {cat(r.step, "/", r.total_steps), 6}, {loss, 5}, {rate, 1}, {norm, 0}, {speed, 3}};
    char share[32];
    if (r.mfu) {
        std::snprintf(share, sizeof share, "MFU %.0f %%", 100 * *r.mfu);
        fields.push_back({share, 0});
    }
    if (!gpu.empty()) fields.push_back({gpu, 2});
    fields.push_back({cat("left ", duration_text(r.seconds_left)), 4});
    return fields;
}

class ProgressBar final : public Observer {
  public:
    explicit ProgressBar(const std::string& gpu) : gpu_(gpu) {}
    void on_step(const StepReport& r) override {
        const double share = static_cast<double>(r.step) / static_cast<double>(std::max<int64_t>(r.total_steps, 1));
        line_.show([share, r, gpu = gpu_text(gpu_.sample())](int columns) {
            return progress_line(share, bar_fields(r, gpu), columns);
        });
    }
    void on_eval(const EvalReport& r) override { log::info(eval_text(r)); }

  private:
    GpuMonitor gpu_;
    StatusLine line_;
};

/// For programs: an object a line on standard output.
class JsonLines final : public Observer {
  public:
    explicit JsonLines(const std::string& gpu) : gpu_(gpu) {}
    void on_step(const StepReport& r) override {
        nlohmann::ordered_json row{{"event", "step"},
                                   {"step", r.step},
                                   {"total_steps", r.total_steps},
                                   {"epoch", number(r.epoch)},
                                   {"loss", number(r.loss)},
                                   {"grad_norm", number(r.grad_norm)},
                                   {"learning_rate", number(r.learning_rate)},
                                   {"tokens_per_second", number(r.tokens_per_second)},
                                   {"memory_gib", number(r.memory_gib)},
                                   {"seconds_left", number(r.seconds_left)}};
        add_to(row, r);
        if (const auto gpu = gpu_.sample()) {
            row["gpu_utilization"] = gpu->utilization;
            row["gpu_memory_gib"] = static_cast<double>(gpu->memory_used) / (1 << 30);
        }
        write(row);
    }
    void on_eval(const EvalReport& r) override {
        nlohmann::ordered_json row{{"event", "evaluation"}, {"step", r.step}};
        if (r.loss) row["eval_loss"] = number(*r.loss);
        row["seconds"] = number(r.seconds);
        for (const auto& [name, value] : evaluated_values(r)) row[name] = number(value);
        write(row);
    }
    void on_summary(const RunSummary& s) override {
        nlohmann::ordered_json row{{"event", "summary"},
                                   {"exit_reason", s.exit_reason},
                                   {"global_step", s.global_step},
                                   {"seconds", number(s.seconds)}};
        if (!s.error.empty()) row["error"] = s.error, row["error_id"] = s.error_id;
        write(row);
    }

  private:
    /// A reader that goes away ends nothing: the run's files hold the same.
    static void write(const nlohmann::ordered_json& row) {
        const std::string text = row.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
    }

    GpuMonitor gpu_;
};

}  // namespace

objective::Figures evaluated_values(const EvalReport& r) {
    objective::Figures values;
    if (r.loss) values.emplace_back("eval_loss", *r.loss);
    for (const auto& [name, value] : r.figures) values.emplace_back("eval_" + name, value);
    for (const auto& [name, loss] : r.losses) values.emplace_back(cat("eval_", name, "_loss"), loss);
    return values;
}

std::unique_ptr<Observer> make_metrics(const config::Config& config, int64_t after_step, const std::string& gpu) {
    const std::filesystem::path folder = config.training.output_dir;
    std::vector<std::unique_ptr<report::RowSink>> sinks;
    if (!config.logging.metrics_file.empty())  // the first: others read it
        sinks.push_back(std::make_unique<MetricsFile>(config, after_step));
    for (auto& sink : report::make_sinks(config, folder, gpu)) sinks.push_back(std::move(sink));
    return std::make_unique<Rows>(std::move(sinks));
}

std::unique_ptr<Observer> make_console(const config::Config& config, const std::string& gpu) {
    if (config.logging.progress == config::ProgressStyle::json) return std::make_unique<JsonLines>(gpu);
    if (StatusLine::available()) return std::make_unique<ProgressBar>(gpu);
    return std::make_unique<PlainLines>(gpu);
}

void HistoryObserver::on_step(const StepReport& r) {
    rows.push_back(
        {r.step, r.epoch, {{"loss", r.loss}, {"grad_norm", r.grad_norm}, {"learning_rate", r.learning_rate}}});
    rows.back().values.insert(r.figures.begin(), r.figures.end());
}

void HistoryObserver::on_eval(const EvalReport& r) {
    const objective::Figures values = evaluated_values(r);
    rows.push_back({r.step, r.epoch, {values.begin(), values.end()}});
}

}  // namespace unsloth::train
