// An engine without LibTorch for executable_test, which compiles it beside a copy of the executable: it ends in the way
// that training.output_dir names, so that errors and signals cross the library's border as the real engine's do.
#include "unsloth/engine_api/engine.h"

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"

namespace {

using namespace unsloth;

void end_as_asked(const std::string& how) {
    if (how == "usage") throw Error("option.conflict", "usage from the engine");
    if (how == "input") throw Error("data.empty", "input from the engine", "Advice.");
    if (how == "runtime") throw Error("numerics.not-finite", "runtime from the engine");
    if (how == "check") UNSLOTH_CHECK(1 + 1 == 3, "sums");
    if (how == "foreign") throw std::out_of_range("first line\nframe #0: a stack trace");
    if (how == "memory") throw std::bad_alloc();
    if (how == "allocator") {
        const char* const settings = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
        std::printf("%s, %s\n", settings, std::getenv("PYTORCH_ALLOC_CONF") == nullptr ? "alone" : "and more");
    }
    if (how == "sigint") std::raise(SIGINT);
    if (how == "sigterm") std::raise(SIGTERM);
    if (const int signal = interrupt_requested()) throw Interrupted(signal, "saved the adapter");
}

class FakeEngine : public engine_api::Engine {
  public:
    void train(const config::LoadedConfig& loaded) override { end_as_asked(loaded.config.training.output_dir); }
    void score(const config::LoadedConfig&, const engine_api::ScoreRequest& request) override {
        std::printf("score %s\n", request.out.c_str());
    }
    void serve(const config::LoadedConfig&, const engine_api::GenerateRequest& answers,
               const engine_api::ServeRequest& request) override {
        std::printf("serve %s:%d %zu adapters\n", request.host.c_str(), static_cast<int>(request.port),
                    answers.adapters.folders.size());
    }
    void generate(const config::LoadedConfig&, const engine_api::GenerateRequest& request) override {
        std::printf("generate %s\n", request.prompt.c_str());
    }
    void evaluate(const config::LoadedConfig& loaded, const engine_api::EvaluateRequest&) override {
        std::printf("evaluate %s\n", loaded.config.data.eval_file->c_str());
    }
    void replay(const engine_api::ReplayRequest& request) override { std::printf("replay %s\n", request.file.c_str()); }
    engine_api::LogitComparison compare_logits(const engine_api::CompareRequest&) override { return {}; }
    engine_api::Calibration calibrate(const config::LoadedConfig&, const engine_api::CalibrationRequest&) override {
        return {};
    }
    /// A share of batch %; of operators two figures, the second of which has no number.
    engine_api::BenchResult bench(const config::LoadedConfig& loaded,
                                  const engine_api::BenchRequest& request) override {
        if (request.prints) std::printf("bench %ld\n", static_cast<long>(request.batch));
        if (request.seq == 13) throw Error("memory.device-full", "no memory for it", "Advice.");
        const double share = static_cast<double>(request.batch) / 100;
        engine_api::BenchResult result{.card = "Fake Card", .untuned = {"qkv"}};
        result.figures = {{"", 1000 * share, "tokens/s", share}};
        if (request.what == engine_api::BenchSubject::ops)
            result.figures = {{"rope", 7, "GB/s", share}, {"odd", 7, "TF/s", std::nan("")}};
        if (loaded.config.model.path != "m") result.card = loaded.config.model.path;
        return result;
    }
    void tune(const config::LoadedConfig&, const engine_api::TuneRequest& request) override {
        std::printf("tune %s\n", request.out.c_str());
    }
    bool plan(const config::LoadedConfig&, const engine_api::PlanRequest& request) override {
        std::printf("plan %s\n", request.gpu.c_str());
        return request.gpu != "too small";
    }
    engine_api::PlanEstimate estimate(const config::LoadedConfig&, const engine_api::PlanRequest&) override {
        return {};
    }
    std::vector<engine_api::DeviceReport> examine_devices(double) override { return {}; }
};

}  // namespace

extern "C" unsloth::engine_api::Engine* unsloth_create_engine() {
    return new FakeEngine;
}
