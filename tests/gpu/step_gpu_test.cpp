// The whole step on a GPU: what it allocates, what it remembers of a value that is not finite, and that the plan is
// what it takes.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "common/allocator.h"
#include "common/files.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/device.h"
#include "unsloth/train/trainer.h"

namespace unsloth {
namespace {

class StepGpu : public ::testing::Test {
  protected:
    void SetUp() override {
        if (ops::choose_device("auto").is_cpu()) GTEST_SKIP() << "no GPU";
        folder_ = std::filesystem::path(::testing::TempDir()) / "step_gpu_test";
        std::filesystem::create_directories(folder_);
        std::ofstream rows(folder_ / "rows.jsonl");
        for (int row = 0; row < 64; ++row) {
            rows << "{\"input_ids\": [";
            for (int t = 0; t < 20 + row % 37; ++t) rows << (t != 0 ? ", " : "") << (row * 31 + t * 7) % 256;
            rows << "]}\n";
        }
        log::set_level(log::Level::warning);
    }

    config::LoadedConfig config() const {
        config::LoadedConfig loaded;
        config::Config& c = loaded.config;
        c.model.path = test::golden("formats/small_llama/nf4_dq").string();
        c.model.dtype = spec::DType::bf16;
        c.data.train_file = (folder_ / "rows.jsonl").string();
        c.training.output_dir = (folder_ / "out").string();
        c.training.per_device_train_batch_size = 4;
        c.training.gradient_accumulation_steps = 2;
        c.training.max_steps = 8;
        c.training.warmup_steps = 0;
        c.hardware.device = "cuda";
        return loaded;
    }

    /// The parameters after six steps.
    static at::Tensor trained(const config::LoadedConfig& loaded) {
        train::Trainer trainer(loaded);
        trainer.load();
        for (int64_t step = 1; step <= 6; ++step) {
            trainer.stepper().issue(trainer.loader().step(step - 1), step, 1e-3);
            while (trainer.stepper().take(true)) {
            }
        }
        return trainer.model().parameters()->state().params_P.cpu();
    }

    std::filesystem::path folder_;
};

TEST_F(StepGpu, AllocatesNothingAfterTheFirstSteps) {
    for (const auto keep : {config::GradientCheckpointing::none, config::GradientCheckpointing::full}) {
        config::LoadedConfig loaded = config();
        loaded.config.training.gradient_checkpointing = keep;
        train::Trainer trainer(loaded);
        trainer.load();
        const at::Device device(at::kCUDA, 0);
        int64_t after_two = 0;
        double loss = 0;
        for (int64_t step = 1; step <= 8; ++step) {
            trainer.stepper().issue(trainer.loader().step(step - 1), step, 1e-3);
            while (const auto result = trainer.stepper().take(true)) loss = result->outcome.loss;
            if (step == 2) after_two = memory::allocation_count(device);
        }
        EXPECT_EQ(memory::allocation_count(device), after_two) << "a step allocated device memory";
        EXPECT_TRUE(std::isfinite(loss));
    }
}

TEST_F(StepGpu, ThePlanIsWhatTheRunTakes) {
    const at::Device device(at::kCUDA, 0);
    config::LoadedConfig loaded = config();
    loaded.config.training.per_device_train_batch_size = 16;
    memory::reset_peak(device);
    const int64_t before = memory::peak_allocated_bytes(device);
    train::Trainer trainer(loaded);
    trainer.load();
    for (int64_t step = 1; step <= 2; ++step) {
        trainer.stepper().issue(trainer.loader().step(step - 1), step, 1e-3);
        while (trainer.stepper().take(true)) {
        }
    }
    const int64_t taken = memory::peak_allocated_bytes(device) - before, planned = trainer.plan().total_bytes();
    EXPECT_LE(taken, planned);
    EXPECT_LE(std::abs(taken - test::arena_bytes(trainer.plan())), 64 << 10)  // recorded passes are not the allocator's
        << "planned " << planned << ", taken " << taken << "\n"
        << trainer.plan().table_text();
}

TEST_F(StepGpu, SkipsAnUpdateThatIsNotFiniteAndNamesThePlace) {
    train::Trainer trainer(config());
    trainer.load();
    const weights::Parameters& parameters = *trainer.model().parameters();
    const at::Tensor before = parameters.state().params_P.clone();
    // An adapter of layer 1 overflows: the first non-finite value is what its layer hands on.
    const weights::Parameter* b = parameters.table().find(spec::TensorRole::linear, {1, spec::Projection::down},
                                                          weights::Parameter::Kind::lora_b);
    ASSERT_NE(b, nullptr);
    parameters.value(*b).fill_(std::numeric_limits<float>::infinity());
    const at::Tensor poisoned = parameters.state().params_P.clone();
    trainer.model().parameters_changed();
    trainer.stepper().issue(trainer.loader().step(0), 1, 1e-3);
    const auto result = trainer.stepper().take(true);
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->outcome.skipped, 1U);
    EXPECT_EQ(trainer.model().describe_site(result->outcome.first_bad_site), "layer 1, output of its MLP (forward)");
    EXPECT_TRUE(parameters.state().params_P.equal(poisoned)) << "the update was applied";
    EXPECT_TRUE(parameters.state().m8.eq(0).all().item<bool>()) << "the moments were updated";
    parameters.state().params_P.copy_(before);
    trainer.model().parameters_changed();
    trainer.stepper().issue(trainer.loader().step(1), 2, 1e-3);
    EXPECT_EQ(trainer.stepper().take(true)->outcome.skipped, 0U);
}

TEST_F(StepGpu, DeterministicRunsAreBitEqual) {
    config::LoadedConfig loaded = config();
    loaded.config.training.deterministic = true;
    EXPECT_TRUE(trained(loaded).equal(trained(loaded)));
}

TEST_F(StepGpu, RecordedPassesEqualIssuedOnes) {
    std::ofstream rows(folder_ / "equal_rows.jsonl");
    for (int row = 0; row < 64; ++row) {
        rows << "{\"input_ids\": [";
        for (int t = 0; t < 128; ++t) rows << (t != 0 ? ", " : "") << (row * 31 + t * 7) % 256;
        rows << "]}\n";
    }
    rows.close();
    for (const auto keep : {config::GradientCheckpointing::none, config::GradientCheckpointing::attention,
                            config::GradientCheckpointing::full_offload})
        for (const auto cache : {config::WeightCache::off, config::WeightCache::on}) {
            std::vector<at::Tensor> results;
            for (const bool records : {false, true}) {
                config::LoadedConfig loaded = config();
                loaded.config.data.train_file = (folder_ / "equal_rows.jsonl").string();
                loaded.config.training.deterministic = true;
                loaded.config.training.gradient_checkpointing = keep;
                loaded.config.hardware.weight_cache = cache;
                loaded.config.hardware.cuda_graphs = records;
                results.push_back(trained(loaded));
            }
            EXPECT_TRUE(results[0].equal(results[1]))
                << "keep " << static_cast<int>(keep) << ", cache " << static_cast<int>(cache);
        }
}

}  // namespace
}  // namespace unsloth
