// Properties of the optimizer step that no reference file states: recomputed dropout, the split into micro-batches,
// fp16, 8-bit optimizer states, and what happens when a value is not finite.
#include <algorithm>
#include <limits>
#include <random>

#include "train/support.h"
#include "unsloth/formats/peft.h"

namespace unsloth {
namespace {

using namespace test;

/// Rows of random tokens with the first few masked, lengths that vary.
std::vector<Row> random_rows(int count, uint32_t seed, int vocab = 250) {
    std::mt19937 random(seed);
    std::vector<Row> rows;
    for (int r = 0; r < count; ++r) {
        Row row;
        const int length = 6 + static_cast<int>(random() % 20);
        for (int t = 0; t < length; ++t)
            row.ids.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
        row.labels = row.ids;
        std::fill(row.labels.begin(), row.labels.begin() + 2, data::ignore_label);
        rows.push_back(std::move(row));
    }
    return rows;
}

/// Training of a fresh adapter on the small model at a constant rate.
Flags fresh_flags(const ScratchFolder& folder, const std::vector<Row>& rows, const std::string& device) {
    write_rows(folder / "rows.jsonl", rows);
    return {"--model.path",
            model_folder("small_llama/nf4_dq").string(),
            "--data.train_file",
            (folder / "rows.jsonl").string(),
            "--training.output_dir",
            (folder / "out").string(),
            "--training.overwrite_output_dir",
            "true",
            "--hardware.device",
            device,
            "--training.lr_scheduler_type",
            "constant",
            "--training.learning_rate",
            "0.002",
            "--training.warmup_steps",
            "0",
            "--lora.r",
            "8",
            "--training.per_device_train_batch_size",
            "2",
            "--training.gradient_accumulation_steps",
            "2",
            "--training.deterministic",
            "true"};
}

void train_and_save(const config::LoadedConfig& config) {
    train::Trainer(config).run();
}

std::vector<double> losses(const Course& course) {
    std::vector<double> values;
    for (const auto& step : course.steps) values.push_back(step.outcome.loss);
    return values;
}

class StepTest : public ::testing::TestWithParam<std::string> {
  protected:
    void SetUp() override { UNSLOTH_NEEDS_XZ(); }
    ScratchFolder folder;
};

TEST_P(StepTest, RecomputedLayersDrawTheSameDropout) {
    // Four layers: of the offloaded ones two leave the device.
    const Flags flags = fresh_flags(folder, random_rows(24, 1), GetParam()) +
                        Flags{"--model.path", model_folder("tiny_llama/nf4_dq").string()};
    const Flags dropout = flags + Flags{"--lora.lora_dropout", "0.3"};
    const Course kept = train_all(make_config(dropout + Flags{"--training.gradient_checkpointing", "none"}));
    for (const char* keep :
         {"mlp", "attention", "full", "none+offload", "mlp+offload", "attention+offload", "full+offload"}) {
        SCOPED_TRACE(keep);
        expect_same_course(train_all(make_config(dropout + Flags{"--training.gradient_checkpointing", keep})), kept);
    }
    const Course without = train_all(make_config(flags));
    EXPECT_EQ(without.steps[0].outcome.loss, kept.steps[0].outcome.loss);  // B is zero: nothing to drop yet
    EXPECT_NE(without.steps[0].outcome.grad_norm, kept.steps[0].outcome.grad_norm);
    EXPECT_NE(without.steps[3].outcome.loss, kept.steps[3].outcome.loss);
    const Course other_seed = train_all(make_config(dropout + Flags{"--training.seed", "4"}));
    EXPECT_NE(other_seed.steps[0].outcome.grad_norm, kept.steps[0].outcome.grad_norm);
}

TEST_P(StepTest, DropoutKeepsTheExpectationOfTheAdaptersTerm) {
    // While B is zero its gradient is linear in the dropped input: averaged over seeds it is that without dropout. The
    // masks' noise in the mean of 40 is about a sixth; a missing factor 1 / (1 - p) would be off by a half.
    const Flags flags = fresh_flags(folder, random_rows(4, 2), GetParam()) + Flags{"--training.max_steps", "1"};
    train_and_save(make_config(flags + Flags{"--training.learning_rate", "0"}));  // every seed starts from these values
    std::filesystem::rename(folder / "out", folder / "start");  // no run may write over what it begins from
    const Flags adapted = flags + Flags{"--model.adapter_name_or_path", (folder / "start").string()};
    const Tensors exact = train_all(make_config(adapted)).first_gradients;
    const std::string name = formats::lora_b_name({1, spec::Projection::q});
    at::Tensor sum = at::zeros_like(exact.at(name));
    constexpr int seeds = 40;
    double spread = 0;
    for (int seed = 0; seed < seeds; ++seed) {
        const Course with = train_all(
            make_config(adapted + Flags{"--lora.lora_dropout", "0.5", "--training.seed", std::to_string(seed)}));
        sum.add_(with.first_gradients.at(name));
        spread += relative_frobenius(with.first_gradients.at(name), exact.at(name)) / seeds;
    }
    EXPECT_LT(relative_frobenius(sum / seeds, exact.at(name)), 0.3);
    EXPECT_GT(spread, 0.3);
}

// B is zero, so that the first loss is the base's: noise of alpha / sqrt(tokens x hidden size) moves it, by more the
// more there is, and not in an evaluation.
TEST_P(StepTest, NeftuneNoiseIsOnTheEmbeddingsOfTrainingAlone) {
    const Flags flags = fresh_flags(folder, random_rows(8, 12), GetParam());
    const auto first = [&](const Flags& more) { return train_all(make_config(flags + more)).steps[0].outcome.loss; };
    const double clean = first({}), little = first({"--training.neftune_noise_alpha", "0.01"}),
                 usual = first({"--training.neftune_noise_alpha", "5"});
    EXPECT_NE(little, clean);
    EXPECT_GT(std::abs(usual - clean), 20 * std::abs(little - clean));
    EXPECT_NE(first({"--training.neftune_noise_alpha", "5", "--training.seed", "4"}), usual);
    const Flags noisy = flags + Flags{"--training.neftune_noise_alpha", "5", "--lora.lora_dropout", "0.1"};
    expect_same_course(train_all(make_config(noisy + Flags{"--training.gradient_checkpointing", "full"})),
                       train_all(make_config(noisy)));
    const auto evaluated = [&](const Flags& more) {
        train::Trainer trainer(make_config(flags + more));
        trainer.load();
        const data::StepBatch batch = trainer.loader().step(0);
        return trainer.model().score(batch.micro.front());
    };
    EXPECT_TRUE(same_bits(evaluated({"--training.neftune_noise_alpha", "5"}), evaluated({})));
}

TEST_P(StepTest, TheSplitIntoMicroBatchesDoesNotMatter) {
    for (const Flags& random :
         {Flags{}, Flags{"--lora.lora_dropout", "0.2"}, Flags{"--training.neftune_noise_alpha", "5"}}) {
        const Flags flags = fresh_flags(folder, random_rows(20, 3), GetParam()) + random;
        const auto split = [&](const char* rows, const char* rounds) {
            return losses(train_all(make_config(flags + Flags{"--training.per_device_train_batch_size", rows,
                                                              "--training.gradient_accumulation_steps", rounds})));
        };
        const std::vector<double> once = split("4", "1"), twice = split("2", "2"), four = split("1", "4");
        ASSERT_EQ(once.size(), 5U);
        for (std::size_t i = 0; i < once.size(); ++i) {
            EXPECT_NEAR(twice[i], once[i], 2e-6) << "step " << i + 1;
            EXPECT_NEAR(four[i], once[i], 2e-6) << "step " << i + 1;
        }
    }
}

TEST_P(StepTest, ARerunGivesTheSameBits) {
    const Flags flags = fresh_flags(folder, random_rows(16, 4), GetParam()) +
                        Flags{"--lora.lora_dropout", "0.1", "--model.dtype", "bfloat16"};
    const Course first = train_all(make_config(flags));
    expect_same_course(train_all(make_config(flags)), first);
}

TEST(Threads, TheirNumberMovesRoundingAlone) {
    UNSLOTH_NEEDS_XZ();
    const ScratchFolder folder;
    const config::LoadedConfig config =
        make_config(fresh_flags(folder, random_rows(8, 11), "cpu") + Flags{"--lora.lora_dropout", "0.1"});
    const Course one = train_all(config);
    at::set_num_threads(3);
    const Course three = train_all(config), again = train_all(config);
    at::set_num_threads(1);
    expect_same_course(again, three);  // no race, no order that chance decides
    // The BLAS library splits products by the number of threads.
    for (std::size_t i = 0; i < one.steps.size(); ++i)
        EXPECT_NEAR(three.steps[i].outcome.loss, one.steps[i].outcome.loss, 2e-6);
}

TEST_P(StepTest, EightBitStatesFollowThe32BitOnes) {
    // r 32: A and B have at least the 4096 elements from which on moments are kept in 8 bits.
    const std::vector<Row> some = random_rows(8, 5);
    std::vector<Row> rows;
    for (int epoch = 0; epoch < 15; ++epoch) rows.insert(rows.end(), some.begin(), some.end());
    const Flags flags = fresh_flags(folder, rows, GetParam()) + Flags{"--lora.r", "32"};
    const std::vector<double> exact = losses(train_all(make_config(flags)));
    const std::vector<double> eight = losses(train_all(make_config(flags + Flags{"--training.optim", "adamw_8bit"})));
    ASSERT_EQ(exact.size(), 30U);
    EXPECT_LT(exact.back(), 0.9 * exact.front()) << "the run must learn, or its losses compare nothing";
    EXPECT_NE(eight.back(), exact.back());
    for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(eight[i], exact[i], 0.03 * exact[i]) << "step " << i + 1;
}

// --- fp16 and its loss scale ---------------------------------------------------------------------------------------

TEST_P(StepTest, Fp16FollowsFp32UnderALossScale) {
    const Flags flags = fresh_flags(folder, random_rows(24, 6), GetParam());
    const Course exact = train_all(make_config(flags)),
                 half = train_all(make_config(flags + Flags{"--model.dtype", "float16"}));
    ASSERT_EQ(half.steps.size(), exact.steps.size());
    for (std::size_t i = 0; i < exact.steps.size(); ++i) {
        EXPECT_GT(half.steps[i].loss_scale, 1.0);
        EXPECT_EQ(half.steps[i].outcome.skipped, 0U);
        EXPECT_NEAR(half.steps[i].outcome.loss, exact.steps[i].outcome.loss, 5e-3) << "step " << i + 1;
        EXPECT_NEAR(half.steps[i].outcome.grad_norm, exact.steps[i].outcome.grad_norm,
                    5e-3 * exact.steps[i].outcome.grad_norm);
    }
    for (const auto& [name, gradient] : exact.first_gradients) {
        if (l2(gradient) == 0) continue;  // A's, while B is zero
        EXPECT_LT(relative_frobenius(half.first_gradients.at(name), gradient), 0.02) << name;
    }
}

// --- what is not finite --------------------------------------------------------------------------------------------

Tensors saved_adapter(const fs::path& folder) {
    return read_tensors(folder / "adapter_model.safetensors");
}

/// Runs and returns the message of the runtime Error that must end it.
std::string failure_of(const config::LoadedConfig& config) {
    try {
        train::Trainer(config).run();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::runtime);
        return error.what();
    }
    ADD_FAILURE() << "the run went through";
    return {};
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

TEST_P(StepTest, ANanWeightStopsTheRunAndNamesStepRowsAndLayer) {
    const Flags flags = fresh_flags(folder, random_rows(12, 7), GetParam()) + Flags{"--model.load_in_4bit", "false"};
    const auto message = [&](const std::string& tensor) {
        return failure_of(
            make_config(flags + Flags{"--model.path", spoiled_model(folder, tensor, 5, nan_value).string()}));
    };
    const std::string mlp = message("model.layers.0.mlp.down_proj.weight");
    EXPECT_TRUE(contains(mlp, "step 1:") && contains(mlp, "loss is not finite")) << mlp;
    EXPECT_TRUE(contains(mlp, "Rows of the step: 0, 1, 2, 3\n")) << mlp;
    EXPECT_TRUE(contains(mlp, "layer 0, output of its MLP (forward)")) << mlp;
    const std::string attention = message("model.layers.1.self_attn.o_proj.weight");
    EXPECT_TRUE(contains(attention, "layer 1, output of its attention (forward)")) << attention;
    const std::string last = message("model.layers.1.mlp.down_proj.weight");
    EXPECT_TRUE(contains(last, "layer 1, output of its MLP (forward)")) << last;
    const std::string head = message("lm_head.weight");
    EXPECT_TRUE(contains(head, "the loss")) << head;
}

TEST_P(StepTest, TheLastGoodAdapterIsKept) {
    // Token 255 occurs in row 9 alone, in step 3: steps 1 and 2 are good.
    std::vector<Row> rows = random_rows(16, 8);
    rows[9].ids[1] = 255;
    const Flags flags = fresh_flags(folder, rows, GetParam()) +
                        Flags{"--model.load_in_4bit", "false", "--model.path",
                              spoiled_model(folder, "model.embed_tokens.weight", 255, nan_value).string()};
    const std::string message = failure_of(make_config(flags));
    EXPECT_TRUE(contains(message, "step 3:")) << message;
    EXPECT_TRUE(contains(message, "Rows of the step: 8, 9, 10, 11\n")) << message;
    EXPECT_TRUE(contains(message, "the embeddings (forward)")) << message;
    const Course two_steps = train_all(make_config(flags + Flags{"--training.max_steps", "2"}));
    const Tensors kept = saved_adapter(folder / "out");
    EXPECT_GT(l2(kept.at(formats::lora_b_name({0, spec::Projection::q}))), 0.0);
    expect_same_bits(kept, two_steps.final_values);
}

TEST_P(StepTest, ASkippedUpdateChangesNoBit) {
    std::vector<Row> rows = random_rows(12, 9);
    rows[5].ids[1] = 255;
    const config::LoadedConfig config =
        make_config(fresh_flags(folder, rows, GetParam()) +
                    Flags{"--model.load_in_4bit", "false", "--lora.r", "32", "--training.optim", "adamw_8bit",
                          "--model.path", spoiled_model(folder, "model.embed_tokens.weight", 255, nan_value).string()});
    train::Trainer trainer(config);
    trainer.load();
    const ops::AdamwState& state = trainer.model().parameters()->state();
    const auto snapshot = [&] {
        std::vector<at::Tensor> copies;
        for (const at::Tensor& t :
             {state.params_P, state.m32, state.v32, state.m8, state.v8, state.absmax_m8, state.absmax_v8})
            copies.push_back(t.cpu().clone());
        return copies;
    };
    const auto step = [&](int64_t number) {
        trainer.stepper().issue(trainer.loader().step(number - 1), number, 0.01);
        return *trainer.stepper().take(true);
    };
    EXPECT_EQ(step(1).outcome.skipped, 0U);
    const std::vector<at::Tensor> before = snapshot();
    const train::StepResult bad = step(2);
    EXPECT_EQ(bad.outcome.skipped, 1U);
    EXPECT_EQ(bad.outcome.clip, 0.0F);
    EXPECT_EQ(bad.rows, (std::vector<int64_t>{4, 5, 6, 7}));
    const std::vector<at::Tensor> after = snapshot();
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(same_bits(after[i], before[i])) << i;
    const train::StepResult next = step(3);
    EXPECT_EQ(next.outcome.skipped, 0U);  // nothing of the bad step is left in the buffers
    EXPECT_TRUE(std::isfinite(next.outcome.loss));
    EXPECT_FALSE(same_bits(snapshot()[0], before[0]));
}

TEST_P(StepTest, AnFp16OverflowHalvesTheScaleAndGoesOn) {
    // Row 255 of the embedding is finite in bf16 and fp32, infinite in fp16: steps with that token overflow.
    std::vector<Row> rows = random_rows(12, 10);
    rows[5].ids[1] = 255;
    const config::LoadedConfig config =
        make_config(fresh_flags(folder, rows, GetParam()) +
                    Flags{"--model.load_in_4bit", "false", "--model.dtype", "float16", "--model.path",
                          spoiled_model(folder, "model.embed_tokens.weight", 255, 1e6F).string()});
    const Course course = train_all(config);
    ASSERT_EQ(course.steps.size(), 3U);
    EXPECT_EQ(course.steps[0].outcome.skipped, 0U);
    EXPECT_EQ(course.steps[1].outcome.skipped, 1U);
    EXPECT_EQ(course.steps[2].outcome.skipped, 0U);
    EXPECT_EQ(course.steps[2].loss_scale, course.steps[0].loss_scale / 2);
}

INSTANTIATE_TEST_SUITE_P(All, StepTest, ::testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace unsloth
