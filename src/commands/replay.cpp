// `replay`: a step that was skipped, run again from the last checkpoint before it and looked at layer by layer.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "unsloth/commands/commands.h"
#include "unsloth/config/device_map.h"
#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/checkpoint_folder.h"
#include "unsloth/spec/step_scalars.h"
#include "unsloth/train/anomaly.h"
#include "unsloth/train/trainer.h"

namespace unsloth::commands {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

/// What the modules of a step made.
class Watch {
  public:
    struct Bad {
        std::string module;
        int64_t count = 0, of = 0;
    };
    void see(const std::string& module, const at::Tensor& output) {
        const int64_t finite = at::isfinite(output).sum().item<int64_t>();
        if (finite < output.numel() && !first_bad_) first_bad_ = {module, output.numel() - finite, output.numel()};
        const std::string prefix = "model.layers.";
        if (output.numel() == 0 || !module.starts_with(prefix) || module.find('.', prefix.size()) != std::string::npos)
            return;
        double& largest = largest_[std::stoll(module.substr(prefix.size()))];
        const double here = output.abs().max().item<double>();
        if (!std::isnan(largest) && !(largest >= here)) largest = here;  // a NaN stays one
    }
    const std::optional<Bad>& first_bad() const { return first_bad_; }
    const std::map<int64_t, double>& largest() const { return largest_; }

  private:
    std::optional<Bad> first_bad_;
    std::map<int64_t, double> largest_;  ///< of each layer's output
};

struct RowLoss {
    int64_t row = 0;
    double loss = 0;
};

/// The mean loss of each row's targets, before the step; the worst first.
std::vector<RowLoss> losses_of_rows(train::Trainer& trainer, int64_t step) {
    const data::Dataset& rows = trainer.loader().dataset();
    std::vector<RowLoss> losses;
    for (const int64_t place : trainer.loader().rows_of_steps(step - 1, step)) {
        stop_if_interrupted("stopped; a replay writes nothing");
        const data::EvalLoader one(rows.subset({place}), /*max_tokens=*/1);
        const data::Batch batch = one.batch(0);
        if (batch.labels > 0)
            losses.push_back({batch.rows.at(0), trainer.model().score(batch).to(at::kDouble).mean().item<double>()});
    }
    const auto worse = [](const RowLoss& a, const RowLoss& b) {
        if (std::isfinite(a.loss) != std::isfinite(b.loss)) return !std::isfinite(a.loss);
        return a.loss > b.loss;
    };
    std::stable_sort(losses.begin(), losses.end(), worse);
    return losses;
}

/// The configuration of the anomaly's run, to resume from its newest complete checkpoint before the step.
config::LoadedConfig config_of(const fs::path& run, const train::Anomaly& anomaly, const std::string& device) {
    const fs::path file = run / "run_config.json";
    if (!fs::exists(file))
        throw Error("run.not-a-run", cat(run.string(), " holds no run: there is no run_config.json"),
                    "An anomaly's file is in the folder of its run: RUN/anomalies/step-N.json.");
    if (train::config_hash(read_file(file)) != anomaly.config)
        log::warning(file.string(), " is not the configuration under which step ", anomaly.step,
                     " was taken: the run continued with another one");
    std::string from = "false";
    for (const formats::CheckpointFolder& checkpoint : formats::list_checkpoints(run)) {
        if (checkpoint.step >= anomaly.step) continue;
        const auto damage = formats::find_damage(checkpoint.path);
        if (!damage) {
            from = checkpoint.path.string();
            break;
        }
        log::warning(checkpoint.path.string(), " is skipped: ", *damage);
    }
    // One process takes the rows of all ranks.
    const int64_t accumulation = anomaly.gradient_accumulation_steps * anomaly.world_size;
    std::vector<std::string> flags = {"--training.output_dir",
                                      run.string(),
                                      "--training.resume_from_checkpoint",
                                      from,
                                      "--training.overwrite_output_dir",
                                      "false",
                                      "--training.gradient_accumulation_steps",
                                      std::to_string(accumulation),
                                      "--distributed.tp_size",
                                      "1",
                                      "--distributed.pp_size",
                                      "1",
                                      "--distributed.cp_size",
                                      "1",
                                      "--distributed.pipeline_schedule",
                                      "1f1b",
                                      "--distributed.pipeline_micro_batches",
                                      "0",
                                      "--training.report_to",
                                      "[]",
                                      "--logging.metrics_port",
                                      "0"};
    if (!device.empty()) flags.insert(flags.end(), {"--hardware.device", device});
    config::LoadedConfig loaded = config::load_config(file, flags);
    if (config::DeviceMap(loaded.config.model).gpus() < 2) return loaded;
    flags.insert(flags.end(), {"--model.device_map", "auto"});  // of a pipeline
    return config::load_config(file, flags);
}

Json number_or_name(double value) {
    return std::isfinite(value) ? Json(value) : Json(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

std::string shown(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", value);
    return text;
}

struct Replay {
    const train::Anomaly& anomaly;
    const train::StepResult& result;
    const Watch& watch;
    const std::vector<RowLoss>& rows;
    const model::Model& model;
    std::string from;
    int64_t steps_between = 0;

    std::optional<int64_t> layer() const {
        if (const auto& bad = watch.first_bad()) {
            const std::string prefix = "model.layers.";
            if (bad->module.starts_with(prefix)) return std::stoll(bad->module.substr(prefix.size()));
            return std::nullopt;
        }
        return model.layer_of_site(result.outcome.first_bad_site);
    }
    bool finite() const { return !watch.first_bad() && result.outcome.first_bad_site == spec::all_finite; }
    /// Every value that is shown is finite: what was not is a sum of squares.
    bool only_too_large() const {
        return !watch.first_bad() && std::isfinite(result.outcome.loss) && std::isfinite(result.outcome.grad_norm);
    }
    Json json() const {
        Json json{{"step", anomaly.step},
                  {"from", from},
                  {"steps_between", steps_between},
                  {"loss", number_or_name(result.outcome.loss)},
                  {"grad_norm", number_or_name(result.outcome.grad_norm)},
                  {"finite", finite()},
                  {"module", nullptr},
                  {"place", finite() ? Json(nullptr) : Json(model.describe_site(result.outcome.first_bad_site))},
                  {"layer", nullptr},
                  {"layers", Json::array()},
                  {"rows", Json::array()}};
        if (const auto& bad = watch.first_bad())
            json["module"] = {{"name", bad->module}, {"not_finite", bad->count}, {"of", bad->of}};
        if (const auto where = layer()) json["layer"] = *where;
        for (const auto& [name, norm] : result.layer_norms)
            json["layers"].push_back(
                {{"name", name}, {"grad_norm", number_or_name(norm)}, {"largest_output", largest_of(name)}});
        for (const RowLoss& row : rows) json["rows"].push_back({{"row", row.row}, {"loss", number_or_name(row.loss)}});
        return json;
    }
    std::string text() const {
        std::string text = cat("step ", anomaly.step, ", run again from ", from);
        if (steps_between > 0) text += cat(", ", steps_between, " steps later");
        text += cat("\n  loss ", shown(result.outcome.loss), " (in the run ", shown(anomaly.loss), "), gradient norm ",
                    shown(result.outcome.grad_norm), " (in the run ", shown(anomaly.grad_norm), ")\n  ", verdict(),
                    "\n\nlayer          gradient norm   largest output\n");
        for (const auto& [name, norm] : result.layer_norms) {
            char line[96];
            const Json largest = largest_of(name);
            std::snprintf(line, sizeof line, "%-14s %13s   %14s\n", name.c_str(), shown(norm).c_str(),
                          largest.is_null()     ? ""
                          : largest.is_number() ? shown(largest.get<double>()).c_str()
                                                : largest.get<std::string>().c_str());
            text += line;
        }
        constexpr std::size_t most = 16;
        text += "\nrow            loss\n";
        for (std::size_t i = 0; i < rows.size() && i < most; ++i) {
            char line[64];
            std::snprintf(line, sizeof line, "%-14lld %s\n", static_cast<long long>(rows[i].row),
                          shown(rows[i].loss).c_str());
            text += line;
        }
        return rows.size() > most ? text + cat("… ", rows.size() - most, " more, all less\n") : text;
    }

  private:
    std::string verdict() const {
        if (const auto& bad = watch.first_bad())
            return cat("the first value that is not finite is in the output of ", bad->module,
                       layer() ? cat(" (layer ", *layer(), ")") : "", ": ", bad->count, " of ", bad->of);
        if (!finite() && only_too_large())
            return cat("all values are finite, and too large to be squared in 32 bits at: ",
                       model.describe_site(result.outcome.first_bad_site),
                       "\n  The run has diverged: lower training.learning_rate, or raise training.warmup_steps");
        if (!finite())
            return cat("all outputs of the layers are finite; the first value that is not: ",
                       model.describe_site(result.outcome.first_bad_site));
        if (anomaly.kind == train::Anomaly::Kind::spike)
            return cat("all values are finite; the limits of the run were loss ", shown(anomaly.limits.loss),
                       ", gradient norm ", shown(anomaly.limits.grad_norm));
        return "all values are finite now, which in the run were not: another device or other ranks round otherwise; "
               "where these are the same, look at the machine (unsloth-train doctor)";
    }
    Json largest_of(const std::string& name) const {
        const std::string prefix = "layers.";
        if (!name.starts_with(prefix)) return nullptr;
        const auto found = watch.largest().find(std::stoll(name.substr(prefix.size())));
        return found == watch.largest().end() ? Json(nullptr) : number_or_name(found->second);
    }
};

}  // namespace

void run_replay(const engine_api::ReplayRequest& request) {
    const fs::path file = request.file;
    const train::Anomaly anomaly = train::read_anomaly(file);
    if (comm::read_launch_environment().world_size > 1)
        throw Error("command.one-process", "replay is one process, which takes the rows of all ranks",
                    "Start it without a launcher.");
    const fs::path run = fs::absolute(file).parent_path().parent_path();
    train::Trainer trainer(config_of(run, anomaly, request.device), train::Purpose::examines);
    if (anomaly.step > trainer.total_steps())
        throw Error("run.not-a-run",
                    cat(file.string(), " is of step ", anomaly.step, ", and the run has ", trainer.total_steps()),
                    "It belongs to another run.");
    trainer.load();
    const int64_t from = trainer.steps_done(), between = anomaly.step - 1 - from;
    while (trainer.steps_done() < anomaly.step - 1) {
        stop_if_interrupted("stopped; a replay writes nothing");
        const train::StepResult result = trainer.take_step();
        log::info("step ", result.step, " again: loss ", shown(result.outcome.loss), ", gradient norm ",
                  shown(result.outcome.grad_norm));
    }
    const std::vector<RowLoss> rows = losses_of_rows(trainer, anomaly.step);
    Watch watch;
    trainer.model().on_module = [&](const std::string& module, const at::Tensor& output) { watch.see(module, output); };
    const train::StepResult result = trainer.take_step({.layer_norms = true});
    const Replay replay{
        anomaly, result, watch, rows, trainer.model(), from == 0 ? "the beginning" : cat("checkpoint-", from), between};
    std::cout << (request.json ? replay.json().dump() + "\n" : replay.text());
}

}  // namespace unsloth::commands
