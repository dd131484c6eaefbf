// The engine's one entry and its commands; each command's work is in its own file.
#include "unsloth/engine_api/engine.h"

#include "unsloth/bench/bench.h"
#include "unsloth/commands/commands.h"
#include "unsloth/commands/examine.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/train/trainer.h"

namespace unsloth::engine {
namespace {

/// LibTorch's own exceptions end here: their text is long and not for users, except where they asked for details.
template <class Body>
void guarded(const Body& body) {
    try {
        body();
    } catch (const c10::Error& error) {
        log::debug(error.what());
        throw Error("library.failed", cat("LibTorch: ", error.what_without_backtrace()),
                    "Run with --log_level debug for details, and please report this.");
    }
}

class EngineImpl final : public engine_api::Engine {
  public:
    void train(const config::LoadedConfig& loaded) override {
        guarded([&] { train::Trainer(loaded).run(); });
    }
    void score(const config::LoadedConfig& loaded, const engine_api::ScoreRequest& request) override {
        guarded([&] { commands::run_score(loaded, request); });
    }
    void generate(const config::LoadedConfig& loaded, const engine_api::GenerateRequest& request) override {
        guarded([&] { commands::run_generate(loaded, request); });
    }
    void serve(const config::LoadedConfig& loaded, const engine_api::GenerateRequest& answers,
               const engine_api::ServeRequest& request) override {
        guarded([&] { commands::run_serve(loaded, answers, request); });
    }
    void evaluate(const config::LoadedConfig& loaded, const engine_api::EvaluateRequest& request) override {
        guarded([&] { commands::run_evaluate(loaded, request); });
    }
    void replay(const engine_api::ReplayRequest& request) override {
        guarded([&] { commands::run_replay(request); });
    }
    engine_api::LogitComparison compare_logits(const engine_api::CompareRequest& request) override {
        engine_api::LogitComparison found;
        guarded([&] { found = commands::compare_logits(request); });
        return found;
    }
    engine_api::Calibration calibrate(const config::LoadedConfig& loaded,
                                      const engine_api::CalibrationRequest& request) override {
        engine_api::Calibration found;
        guarded([&] { found = commands::calibrate(loaded, request); });
        return found;
    }
    engine_api::BenchResult bench(const config::LoadedConfig& loaded,
                                  const engine_api::BenchRequest& request) override {
        engine_api::BenchResult result;
        guarded([&] { result = bench::run_bench(loaded, request); });
        return result;
    }
    void tune(const config::LoadedConfig& loaded, const engine_api::TuneRequest& request) override {
        guarded([&] { bench::run_tune(loaded, request); });
    }
    bool plan(const config::LoadedConfig& loaded, const engine_api::PlanRequest& request) override {
        bool fits = false;
        guarded([&] { fits = commands::run_plan(loaded, request); });
        return fits;
    }
    engine_api::PlanEstimate estimate(const config::LoadedConfig& loaded,
                                      const engine_api::PlanRequest& request) override {
        engine_api::PlanEstimate found;
        guarded([&] { found = commands::estimate_plan(loaded, request); });
        return found;
    }
    std::vector<engine_api::DeviceReport> examine_devices(double seconds) override {
        return commands::examine_devices(seconds);
    }
};

}  // namespace
}  // namespace unsloth::engine

unsloth::engine_api::Engine* unsloth_create_engine() {
    return new unsloth::engine::EngineImpl();
}
