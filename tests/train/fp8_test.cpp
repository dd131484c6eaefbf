// compute_dtype fp8: what it does to gradients and losses, and what it refuses.
#include "unsloth/ops/fp8.h"
#include "train/support.h"

namespace unsloth {
namespace {

using namespace test;

class Fp8Training : public ::testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        UNSLOTH_NEEDS_XZ();
        UNSLOTH_NEEDS_DEVICE(GetParam());
        std::vector<Row> rows(16);
        for (std::size_t row = 0; row < rows.size(); ++row) {
            for (std::size_t t = 0; t < 20 + 7 * row; ++t)
                rows[row].ids.push_back(static_cast<int32_t>((37 * row + t * t + 11 * t) % 256));
            rows[row].labels = rows[row].ids;
        }
        write_rows(folder / "rows.jsonl", rows);
        flags = {"--model.path",
                 model_folder("tiny_llama/nf4_dq").string(),
                 "--data.train_file",
                 (folder / "rows.jsonl").string(),
                 "--training.output_dir",
                 (folder / "out").string(),
                 "--training.overwrite_output_dir",
                 "true",
                 "--hardware.device",
                 GetParam(),
                 "--training.deterministic",
                 "true",
                 "--model.dtype",
                 GetParam() == "cpu" ? "float32" : "bfloat16",
                 "--training.max_steps",
                 "8",
                 "--lora.r",
                 "8",
                 "--training.learning_rate",
                 "0.002",
                 "--training.warmup_steps",
                 "0"};
    }
    Course with(const Flags& more) const { return train_all(make_config(flags + more)); }

    ScratchFolder folder;
    Flags flags;
};

TEST_P(Fp8Training, StaysNearTheUnquantisedRun) {
    const Course plain = with({}), fp8 = with({"--model.compute_dtype", "fp8"});
    ASSERT_EQ(fp8.steps.size(), plain.steps.size());
    for (std::size_t i = 0; i < fp8.steps.size(); ++i) {
        EXPECT_NEAR(fp8.steps[i].outcome.loss, plain.steps[i].outcome.loss, 0.005 * plain.steps[i].outcome.loss)
            << "step " << i + 1;
        EXPECT_NEAR(fp8.steps[i].outcome.grad_norm, plain.steps[i].outcome.grad_norm,
                    0.1 * plain.steps[i].outcome.grad_norm);
        EXPECT_EQ(fp8.steps[i].outcome.skipped, 0U);
    }
    EXPECT_NE(fp8.steps[0].outcome.loss, plain.steps[0].outcome.loss) << "nothing was quantised";
    // e4m3 keeps 3 bits of mantissa, bf16 keeps 7: 16 times the rounding, of the base products' operands alone but in
    // all of them.
    const Course exact = with({"--model.dtype", "float32", "--training.max_steps", "1"});
    const Course bf16 = with({"--model.dtype", "bfloat16", "--training.max_steps", "1"});
    for (const auto& [name, gradient] : exact.first_gradients) {
        if (name.find("lora_A") != std::string::npos) continue;  // zero as long as B is
        const double of_fp8 = relative_frobenius(fp8.first_gradients.at(name), gradient);
        const double of_bf16 = relative_frobenius(bf16.first_gradients.at(name), gradient);
        EXPECT_LT(of_fp8, 24 * of_bf16) << name;
        EXPECT_LT(of_fp8, 0.6) << name;
    }
}

TEST_P(Fp8Training, RecomputedAndOffloadedLayersGiveTheSameBits) {
    const Flags fp8{"--model.compute_dtype", "fp8", "--training.max_steps", "3"};
    const Course kept = with(fp8 + Flags{"--training.gradient_checkpointing", "none"});
    for (const char* keep : {"mlp", "attention", "full", "full+offload"}) {
        SCOPED_TRACE(keep);
        expect_same_course(with(fp8 + Flags{"--training.gradient_checkpointing", keep}), kept);
    }
}

TEST_P(Fp8Training, RefusesWhatItCannotServe) {
    const auto refused = [&](const Flags& more, const char* expected) {
        try {
            with(Flags{"--model.compute_dtype", "fp8"} + more);
            ADD_FAILURE() << expected;
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::usage);
            EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
        }
    };
    // 216 columns are no multiple of 16.
    refused({"--model.path", model_folder("small_llama/nf4_dq").string()}, "multiples of 16");
    refused({"--model.path", model_folder("small_llama/bf16").string(), "--lora.finetuning_type", "full"},
            "frozen base");
}

/// One layer of an MLP that is wider than the rest.
fs::path wide_model(const ScratchFolder& folder, int64_t intermediate) {
    return random_nf4_model(
        folder / cat("wide-", intermediate),
        cat(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "intermediate_size": )",
            intermediate, R"(, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 32, "hidden_act": "silu", "vocab_size": 256, "max_position_embeddings": 512, "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0, "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 1})"));
}

// The MLPs of Qwen3-14B, Qwen2.5-7B and Llama-70B: a row of gate and up has more than 32,768 values.
TEST_P(Fp8Training, TakesTheWidestMlpsInUse) {
    for (const int64_t intermediate : {17408, 18944, 28672}) {
        SCOPED_TRACE(intermediate);
        const Flags wide{"--model.path", wide_model(folder, intermediate).string(), "--training.max_steps", "2"};
        const Course plain = with(wide), fp8 = with(wide + Flags{"--model.compute_dtype", "fp8"});
        ASSERT_EQ(fp8.steps.size(), 2U);
        for (std::size_t i = 0; i < fp8.steps.size(); ++i) {
            EXPECT_NEAR(fp8.steps[i].outcome.loss, plain.steps[i].outcome.loss, 0.01 * plain.steps[i].outcome.loss);
            EXPECT_EQ(fp8.steps[i].outcome.skipped, 0U);
        }
    }
}

TEST_P(Fp8Training, RefusesWiderMlpsWhenPlanning) {
    if (GetParam() == "cpu") GTEST_SKIP() << "the CPU has no longest row";
    const config::LoadedConfig config =
        make_config(flags + Flags{"--model.compute_dtype", "fp8", "--model.path", wide_model(folder, 32784).string()});
    try {
        const train::Trainer trainer(config);
        ADD_FAILURE() << "planned";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        EXPECT_NE(std::string(error.what()).find("gate_up has 65568"), std::string::npos) << error.what();
    }
}

// The plan alone: it needs no such card.
TEST(Fp8Plan, RefusesCardsWithoutSuchProducts) {
    UNSLOTH_NEEDS_XZ();
#ifndef UNSLOTH_CUDA
    GTEST_SKIP() << "built without CUDA";
#endif
    const at::Device device(at::kCUDA, 0);
    if (ops::fp8_available(device)) GTEST_SKIP() << "this GPU serves";
    model::LoadRequest request;
    request.device = device;
    request.dtype = at::kBFloat16;
    request.fp8 = spec::Fp8Products::both;
    const auto file = std::make_shared<const formats::WeightFile>(
        formats::WeightFile::open(model_folder("tiny_llama/nf4_dq").string()));
    try {
        const model::ModelPlan plan(file, request);
        ADD_FAILURE() << "planned";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        EXPECT_NE(std::string(error.what()).find("compute capability 9.0"), std::string::npos) << error.what();
    }
}

// Two layers of Llama-3.1-8B's shape with random weights: per-tensor errors, the worst of each kind printed.
TEST(Fp8Gradients, OfLlama8BLayersStayNearFp32) {
    UNSLOTH_NEEDS_DEVICE("cuda");
    const ScratchFolder folder;
    const fs::path model = random_nf4_model(
        folder / "model", R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "hidden_act": "silu", "vocab_size": 4096, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
        "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 1})");
    std::vector<Row> rows(4);
    for (std::size_t row = 0; row < rows.size(); ++row) {
        for (std::size_t t = 0; t < 512; ++t)
            rows[row].ids.push_back(static_cast<int32_t>((977 * row + 31 * t * t + 7 * t) % 4096));
        rows[row].labels = rows[row].ids;
    }
    write_rows(folder / "rows.jsonl", rows);
    const auto gradients = [&](const char* dtype, const char* compute_dtype) {
        return first_gradients(make_config({"--model.path",
                                            model.string(),
                                            "--data.train_file",
                                            (folder / "rows.jsonl").string(),
                                            "--training.output_dir",
                                            (folder / "out").string(),
                                            "--training.overwrite_output_dir",
                                            "true",
                                            "--hardware.device",
                                            "cuda",
                                            "--model.dtype",
                                            dtype,
                                            "--model.compute_dtype",
                                            compute_dtype,
                                            "--training.max_steps",
                                            "1",
                                            "--training.per_device_train_batch_size",
                                            "4",
                                            "--training.gradient_accumulation_steps",
                                            "1",
                                            "--lora.r",
                                            "16"}));
    };
    const Tensors oracle = gradients("float32", "auto"), bf16 = gradients("bfloat16", "auto"),
                  fp8 = gradients("bfloat16", "fp8");
    std::map<std::string, std::pair<double, double>> worst;  // module and matrix: of fp8, of bf16
    for (const auto& [name, exact] : oracle) {
        const double of_fp8 = relative_frobenius(fp8.at(name), exact),
                     of_bf16 = relative_frobenius(bf16.at(name), exact);
        EXPECT_LT(of_fp8, 16 * of_bf16)
            << name;  // 4 bits of mantissa fewer: 16 times the rounding, in the base's products alone
        EXPECT_LT(of_fp8, 0.5) << name;  // random weights: what tokens contribute cancels, the rounding does not
        auto& kind = worst[name.substr(name.find("layers.") + 9)];
        kind = {std::max(kind.first, of_fp8), std::max(kind.second, of_bf16)};
    }
    for (const auto& [kind, errors] : worst)
        std::cout << kind << ": fp8 " << errors.first << ", bf16 " << errors.second << "\n";
}

INSTANTIATE_TEST_SUITE_P(All, Fp8Training, ::testing::ValuesIn(built_devices()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace unsloth
