// The engine's one entry and its commands; each command's work is in its own file.
#include "unsloth/config/engine.h"

#include "unsloth/bench/bench.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/train/commands.h"
#include "unsloth/train/examine.h"
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

class EngineImpl final : public config::Engine {
  public:
    void train(const config::LoadedConfig& loaded) override {
        guarded([&] { train::Trainer(loaded).run(); });
    }
    void score(const config::LoadedConfig& loaded, const config::ScoreRequest& request) override {
        guarded([&] { train::run_score(loaded, request); });
    }
    void generate(const config::LoadedConfig& loaded, const config::GenerateRequest& request) override {
        guarded([&] { train::run_generate(loaded, request); });
    }
    void evaluate(const config::LoadedConfig& loaded, const config::EvaluateRequest& request) override {
        guarded([&] { train::run_evaluate(loaded, request); });
    }
    void replay(const config::ReplayRequest& request) override {
        guarded([&] { train::run_replay(request); });
    }
    config::LogitComparison compare_logits(const config::CompareRequest& request) override {
        config::LogitComparison found;
        guarded([&] { found = train::compare_logits(request); });
        return found;
    }
    config::BenchResult bench(const config::LoadedConfig& loaded, const config::BenchRequest& request) override {
        config::BenchResult result;
        guarded([&] { result = bench::run_bench(loaded, request); });
        return result;
    }
    void tune(const config::LoadedConfig& loaded, const config::TuneRequest& request) override {
        guarded([&] { bench::run_tune(loaded, request); });
    }
    bool plan(const config::LoadedConfig& loaded, const config::PlanRequest& request) override {
        bool fits = false;
        guarded([&] { fits = train::run_plan(loaded, request); });
        return fits;
    }
    std::vector<config::DeviceReport> examine_devices(double seconds) override {
        return train::examine_devices(seconds);
    }
};

}  // namespace
}  // namespace unsloth::engine

unsloth::config::Engine* unsloth_create_engine() {
    return new unsloth::engine::EngineImpl();
}
