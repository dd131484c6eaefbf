// The engine's one entry and its commands; each command's work is in its own file.
#include "unsloth/config/engine.h"

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/train/commands.h"
#include "unsloth/train/trainer.h"

namespace unsloth::train {
namespace {

/// LibTorch's own exceptions end here: their text is long and not for users, except where they asked for details.
template <class Body>
void guarded(const Body& body) {
    try {
        body();
    } catch (const c10::Error& error) {
        log::debug(error.what());
        throw runtime_failure(cat("LibTorch: ", error.what_without_backtrace()),
                              "Run with --log_level debug for details, and please report this.");
    }
}

class EngineImpl final : public Engine {
  public:
    void train(const LoadedConfig& loaded) override {
        guarded([&] { Trainer(loaded).run(); });
    }
    void score(const LoadedConfig& loaded, const ScoreRequest& request) override {
        guarded([&] { run_score(loaded, request); });
    }
    void generate(const LoadedConfig& loaded, const GenerateRequest& request) override {
        guarded([&] { run_generate(loaded, request); });
    }
    void init(const InitRequest& request) override {
        guarded([&] { run_init(request); });
    }
    LogitComparison compare_logits(const CompareRequest& request) override {
        LogitComparison found;
        guarded([&] { found = train::compare_logits(request); });
        return found;
    }
    void bench(const LoadedConfig& loaded, const BenchRequest& request) override {
        guarded([&] { run_bench(loaded, request); });
    }
};

}  // namespace
}  // namespace unsloth::train

unsloth::Engine* unsloth_create_engine() {
    return new unsloth::train::EngineImpl();
}
