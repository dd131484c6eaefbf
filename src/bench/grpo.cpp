#include "bench/grpo.h"

#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/ops.h"
#include "unsloth/core/error.h"
#include "unsloth/core/json.h"
#include "unsloth/core/temporary.h"
#include "unsloth/generate/decoder.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/device.h"
#include "unsloth/train/trainer.h"

namespace unsloth::bench {
namespace {

/// The measured steps that began with a generation batch; values are medians.
class RolloutSteps {
  public:
    RolloutSteps(const std::filesystem::path& metrics, int64_t warmup) {
        std::ifstream lines(metrics);
        for (std::string line; std::getline(lines, line);) {
            auto row = parse_json<nlohmann::json>(line, metrics.string());
            if (row.contains("time/rollout_s") && row.at("step").get<int64_t>() > warmup)
                rows_.push_back(std::move(row));
        }
        if (rows_.empty())
            throw Error("option.conflict", "none of the measured steps began with a generation batch",
                        "Raise --steps, or lower grpo.num_iterations.");
    }
    double of(const char* name) const {
        return of([name](const nlohmann::json& row) { return row.at(name).get<double>(); });
    }
    /// What sampling, rewards and log-probabilities leave of a step.
    double train_seconds() const {
        return of([](const nlohmann::json& row) {
            double seconds = row.at("step_ms").get<double>() / 1000;
            for (const char* part : {"time/rollout_s", "time/reward_s", "time/logps_s"})
                seconds -= row.at(part).get<double>();
            return seconds;
        });
    }

  private:
    double of(const std::function<double(const nlohmann::json&)>& value) const {
        std::vector<double> values;
        for (const nlohmann::json& row : rows_) values.push_back(value(row));
        return median(std::move(values));
    }

    std::vector<nlohmann::json> rows_;
};

config::LoadedConfig measured_run(config::LoadedConfig loaded, int64_t steps, const std::filesystem::path& folder) {
    config::Config& config = loaded.config;
    if (!config::samples_completions(config.training.objective) || config.grpo.replay_rollouts)
        throw Error("option.conflict", "bench grpo measures a configuration that samples completions",
                    "Set training.objective grpo and grpo.rewards, without grpo.replay_rollouts.");
    config.training.output_dir = folder.string();
    config.training.max_steps = steps;
    config.training.logging_steps = 1;
    config.training.save_steps = 0;
    config.logging.metrics_file = "metrics.jsonl";
    return loaded;
}

/// Of one rank.
double completions_of_step(const config::Config& config) {
    return static_cast<double>(config.training.per_device_train_batch_size *
                               config.training.gradient_accumulation_steps);
}

/// Tokens a second of passes that take no longer than reading the weights and the keys of half-done completions.
double sampling_ceiling(const model::ModelPlan& plan, const config::Config& config, const RolloutSteps& steps) {
    double weights = 0;
    for (const auto& [group, bytes] : plan.groups())
        if (group == "layer weights" || group == "base weights" || group == "adapters" || group == "dequantized layer")
            weights += static_cast<double>(bytes);
    const spec::ModelSpec& spec = plan.spec();
    const at::ScalarType type = plan.request().dtype;
    weights += static_cast<double>(spec.vocab_size * spec.hidden_size) * static_cast<double>(c10::elementSize(type));
    const double rows = steps.of("rows_in_flight_mean"), completions = steps.of("completions/mean_length"),
                 prompt = steps.of("tokens") / completions_of_step(config) - completions;
    const double keys = rows * (prompt + completions / 2) *
                        static_cast<double>(generate::cache_bytes_per_token(spec, type, /*in_8_bit=*/false));
    ops::Context ctx(plan.request().device);
    return rows * copy_rate(ctx) / (weights + keys);
}

}  // namespace

std::vector<engine_api::BenchFigure> bench_grpo(const config::LoadedConfig& given,
                                                const engine_api::BenchRequest& request) {
    constexpr int64_t usual_warmup = 2;
    const int64_t warmup = request.warmup >= 0 ? request.warmup : usual_warmup;
    const Temporary folder(std::filesystem::temp_directory_path() / "bench-grpo", Temporary::Kind::folder);
    const config::LoadedConfig loaded = measured_run(given, warmup + request.steps, folder.path() / "run");
    train::Trainer trainer(loaded);
    trainer.run();
    const RolloutSteps steps(std::filesystem::path(loaded.config.training.output_dir) / "metrics.jsonl", warmup);
    const double seconds = steps.of("step_ms") / 1000, train_seconds = steps.train_seconds(),
                 rate = steps.of("rollout_tokens_per_second"), tokens = steps.of("tokens"),
                 samples = completions_of_step(loaded.config),
                 ceiling = sampling_ceiling(trainer.plan(), loaded.config, steps);
    const nlohmann::ordered_json result{{"bench", "grpo"},
                                        {"device", memory::describe_device(trainer.plan().request().device)},
                                        {"model", loaded.config.model.path},
                                        {"num_generations", loaded.config.grpo.num_generations},
                                        {"completion_tokens", steps.of("completions/mean_length")},
                                        {"rows_in_flight_mean", steps.of("rows_in_flight_mean")},
                                        {"step_s", seconds},
                                        {"rollout_s", steps.of("time/rollout_s")},
                                        {"reward_s", steps.of("time/reward_s")},
                                        {"logps_s", steps.of("time/logps_s")},
                                        {"train_s", train_seconds},
                                        {"samples_per_second", samples / seconds},
                                        {"rollout_tokens_per_second", rate},
                                        {"train_tokens_per_second", tokens / train_seconds},
                                        {"rollout_ceiling_tokens_per_second", ceiling},
                                        {"share_of_ceiling", rate / ceiling},
                                        {"kl_sampler_trainer", steps.of("kl_sampler_trainer")}};
    if (request.prints) std::cout << (request.json ? result.dump() : result.dump(2)) << std::endl;
    return {{"sampling", rate, "tokens/s", rate / ceiling}};
}

}  // namespace unsloth::bench
