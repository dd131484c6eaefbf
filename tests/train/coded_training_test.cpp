// compute_dtype fp8_backward, int8 and fp8_both: what they do to gradients and losses, and what they refuse.
#include "common/allocator.h"
#include "train/support.h"
#include "unsloth/ops/coded_rows.h"

namespace unsloth {
namespace {

using namespace test;

struct CodedCase {
    std::string device, compute_dtype;
    bool forward() const { return compute_dtype != "fp8_backward"; }
    /// How many times bf16's distance from fp32 the gradient of a tensor may have: e4m3 keeps 3 bits of mantissa, bf16
    /// 7, of the base products' operands alone but in all of them; int8 a step of 1 / 254 of a block's range.
    double times() const { return compute_dtype == "fp8_both" ? 24 : 5; }
};
void PrintTo(const CodedCase& c, std::ostream* out) {
    *out << c.compute_dtype << " on " << c.device;
}

class CodedTraining : public ::testing::TestWithParam<CodedCase> {
  protected:
    void SetUp() override {
        UNSLOTH_NEEDS_XZ();
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
                 GetParam().device,
                 "--training.deterministic",
                 "true",
                 "--model.dtype",
                 GetParam().device == "cpu" ? "float32" : "bfloat16",
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
    static Flags fp8() { return {"--model.compute_dtype", GetParam().compute_dtype}; }

    ScratchFolder folder;
    Flags flags;
};

TEST_P(CodedTraining, StaysNearTheUnquantisedRun) {
    const Course plain = with({}), coded = with(fp8());
    ASSERT_EQ(coded.steps.size(), plain.steps.size());
    for (std::size_t i = 0; i < coded.steps.size(); ++i) {
        EXPECT_NEAR(coded.steps[i].outcome.loss, plain.steps[i].outcome.loss, 0.005 * plain.steps[i].outcome.loss)
            << "step " << i + 1;
        EXPECT_NEAR(coded.steps[i].outcome.grad_norm, plain.steps[i].outcome.grad_norm,
                    0.1 * plain.steps[i].outcome.grad_norm);
        EXPECT_EQ(coded.steps[i].outcome.skipped, 0U);
    }
    EXPECT_EQ(coded.steps[0].outcome.loss == plain.steps[0].outcome.loss, !GetParam().forward());
    EXPECT_NE(coded.steps[0].outcome.grad_norm, plain.steps[0].outcome.grad_norm) << "nothing was quantised";
    const Course exact = with({"--model.dtype", "float32", "--training.max_steps", "1"});
    const Course bf16 = with({"--model.dtype", "bfloat16", "--training.max_steps", "1"});
    double worst = 0;
    for (const auto& [name, gradient] : exact.first_gradients) {
        if (name.find("lora_A") != std::string::npos) continue;  // zero as long as B is
        const double of_fp8 = relative_frobenius(coded.first_gradients.at(name), gradient);
        const double of_bf16 = relative_frobenius(bf16.first_gradients.at(name), gradient);
        EXPECT_LT(of_fp8, GetParam().times() * of_bf16) << name;
        worst = std::max(worst, of_fp8 / of_bf16);
        EXPECT_LT(of_fp8, 0.6) << name;
    }
    std::cout << GetParam().compute_dtype << ": gradients are at most " << worst << " times as far as bf16's\n";
}

TEST_P(CodedTraining, RecomputedAndOffloadedLayersGiveTheSameBits) {
    const Flags coded = fp8() + Flags{"--training.max_steps", "3"};
    const Course kept = with(coded + Flags{"--training.gradient_checkpointing", "none"});
    for (const char* keep : {"mlp", "attention", "full", "full+offload"}) {
        SCOPED_TRACE(keep);
        expect_same_course(with(coded + Flags{"--training.gradient_checkpointing", keep}), kept);
    }
}

TEST_P(CodedTraining, ThePlanIsWhatTheRunTakes) {
    if (GetParam().device == "cpu") GTEST_SKIP() << "the CPU's allocator says no peak";
    const at::Device device(at::kCUDA, 0);
    for (const char* const cache : {"off", "on"}) {
        SCOPED_TRACE(cache);
        memory::reset_peak(device);
        const int64_t before = memory::peak_allocated_bytes(device);
        train::Trainer trainer(make_config(flags + fp8() + Flags{"--hardware.dequantized_weights", cache}));
        trainer.load();
        const int64_t loading = memory::peak_allocated_bytes(device) - before;
        int64_t after_two = 0;
        for (int64_t step = 1; step <= 6; ++step) {
            trainer.stepper().issue(trainer.loader().step(step - 1), step, 1e-3);
            while (trainer.stepper().take(/*must=*/true)) {
            }
            if (step == 2) after_two = memory::allocation_count(device);
        }
        EXPECT_EQ(memory::allocation_count(device), after_two) << "a step allocated device memory";
        const int64_t taken = memory::peak_allocated_bytes(device) - before, planned = trainer.plan().total_bytes();
        EXPECT_LE(taken, planned);
        EXPECT_LE(std::abs(taken - arena_bytes(trainer.plan())), 64 << 10)
            << "planned " << planned << ", taken " << taken << ", of which by the end of loading " << loading << "\n"
            << trainer.plan().table_text();
    }
}

TEST_P(CodedTraining, RefusesWhatItCannotServe) {
    const auto refused = [&](const char* id, const Flags& more, const char* expected) {
        try {
            with(fp8() + more);
            ADD_FAILURE() << expected;
        } catch (const Error& error) {
            EXPECT_EQ(error.id().name(), std::string_view(id));
            EXPECT_NE(std::string(error.what()).find("compute_dtype " + GetParam().compute_dtype), std::string::npos)
                << error.what();
            EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
        }
    };
    // 216 columns are no multiple of 16.
    refused("device.unsupported", {"--model.path", model_folder("small_llama/nf4_dq").string()}, "multiples of 16");
    refused("option.unsupported",
            {"--model.path", model_folder("small_llama/bf16").string(), "--lora.finetuning_type", "full"},
            "frozen base");
    refused("option.unsupported", {"--lora.use_dora", "true"}, "magnitudes");
    if (GetParam().device == "cpu") return;  // where all layers are in the one memory
    refused("model.device-map", {"--model.device_map", R"({"model.layers": "cpu", "": 0})"},
            "holds all of them there in 8 bit");
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
TEST_P(CodedTraining, TakesTheWidestMlpsInUse) {
    std::vector<int64_t> widths{17408};
    if (GetParam().device != "cpu") widths.insert(widths.end(), {18944, 28672});  // the CPU has no longest row
    for (const int64_t intermediate : widths) {
        SCOPED_TRACE(intermediate);
        const Flags wide{"--model.path", wide_model(folder, intermediate).string(), "--training.max_steps", "2"};
        const Course plain = with(wide), coded = with(wide + fp8());
        ASSERT_EQ(coded.steps.size(), 2U);
        for (std::size_t i = 0; i < coded.steps.size(); ++i) {
            EXPECT_NEAR(coded.steps[i].outcome.loss, plain.steps[i].outcome.loss, 0.01 * plain.steps[i].outcome.loss);
            EXPECT_EQ(coded.steps[i].outcome.skipped, 0U);
        }
    }
}

TEST_P(CodedTraining, RefusesWiderMlpsWhenPlanning) {
    if (GetParam().device == "cpu") GTEST_SKIP() << "the CPU has no longest row";
    const config::LoadedConfig config =
        make_config(flags + fp8() + Flags{"--model.path", wide_model(folder, 32784).string()});
    try {
        const train::Trainer trainer(config);
        ADD_FAILURE() << "planned";
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "device.unsupported");
        EXPECT_NE(std::string(error.what()).find("gate_up has 65568"), std::string::npos) << error.what();
    }
}

// What is planned for a card that is not here: one byte of each weight for each direction in codes, beside 4 bit or two
// bytes.
TEST(CodedPlan, HoldsWhatItsProductsRead) {
    UNSLOTH_NEEDS_XZ();
    const auto file = std::make_shared<const formats::WeightFile>(
        formats::WeightFile::open(model_folder("tiny_llama/nf4_dq").string()));
    const auto plan_of = [&](spec::CodedProducts fp8, bool cached) {
        model::LoadRequest request;
        request.device = at::Device(at::kCUDA);
        request.dtype = at::kBFloat16;
        request.coded = fp8;
        request.trains = true;
        request.lora.emplace();
        request.lora->r = 8;
        request.lora->target_modules = {"q_proj", "v_proj", "o_proj", "down_proj"};
        request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 64;
        request.sizes.segments = 1;
        request.run.layers = {{.cached = cached}};
        return model::ModelPlan(file, request);
    };
    const auto bytes = [](const memory::Plan& plan, const std::string& group, const std::string& name = "") {
        int64_t sum = 0;
        for (const memory::Entry& entry : plan.entries())
            if (entry.group == group && entry.name.find(name) != std::string::npos) sum += entry.bytes;
        return sum;
    };
    using spec::CodedProducts;
    const int64_t head = file->spec.vocab_size * file->spec.hidden_size;
    const model::ModelPlan any_plan = plan_of(CodedProducts::none, false);
    int64_t weights = 0, transposes = 0;
    for (const weights::MatrixGroup& group : any_plan.layout().groups) {
        weights += group.n * group.k * file->spec.num_layers;
        transposes += (group.n * group.k + 4 * group.k + 2 * group.k * group.r) * file->spec.num_layers;
    }
    for (const bool cached : {false, true}) {
        const model::ModelPlan without = plan_of(CodedProducts::none, cached), dx = plan_of(CodedProducts::dx, cached),
                               both = plan_of(CodedProducts::both, cached);
        EXPECT_EQ(bytes(dx.resident(), "base weights"), bytes(without.resident(), "base weights"));
        EXPECT_EQ(bytes(dx.resident(), "layer weights"), bytes(without.resident(), "layer weights") + transposes);
        EXPECT_EQ(bytes(both.resident(), "base weights"), 0);
        EXPECT_EQ(bytes(both.resident(), "layer weights", "codes"), 2 * weights);
        EXPECT_EQ(bytes(dx.resident(), "dequantized layer") > 0, !cached);
        EXPECT_EQ(bytes(both.resident(), "dequantized layer"), 0);
        EXPECT_EQ(bytes(without.step(), "scratch", "codes"), 0);
        EXPECT_GT(bytes(dx.step(), "scratch", "codes"), 0);
        EXPECT_LE(bytes(dx.step(), "scratch", "codes"), bytes(both.step(), "scratch", "codes"));
        EXPECT_EQ(bytes(without.resident(), "embeddings", " codes"), 0);
        EXPECT_EQ(bytes(dx.resident(), "embeddings", " codes"), head);
        EXPECT_EQ(bytes(both.resident(), "embeddings", " codes"), 2 * head);
        EXPECT_EQ(bytes(without.step(), "lm_head", "head codes"), 0);
        EXPECT_EQ(bytes(dx.step(), "lm_head", "logits"), 2 * bytes(dx.step(), "lm_head", "head codes"));
    }
}

// The plan alone: it needs no such card.
TEST(CodedPlan, RefusesCardsWithoutSuchProducts) {
    UNSLOTH_NEEDS_XZ();
#ifndef UNSLOTH_CUDA
    GTEST_SKIP() << "built without CUDA";
#endif
    const at::Device device(at::kCUDA, 0);
    if (ops::coded_available(device, spec::Codes::e4m3)) GTEST_SKIP() << "this GPU serves";
    model::LoadRequest request;
    request.device = device;
    request.dtype = at::kBFloat16;
    request.coded = spec::CodedProducts::both;
    const auto file = std::make_shared<const formats::WeightFile>(
        formats::WeightFile::open(model_folder("tiny_llama/nf4_dq").string()));
    try {
        const model::ModelPlan plan(file, request);
        ADD_FAILURE() << "planned";
    } catch (const Error& error) {
        EXPECT_EQ(error.id().name(), "device.unsupported");
        EXPECT_NE(std::string(error.what()).find("compute capability 9.0"), std::string::npos) << error.what();
    }
}

/// How far gradients are from others, all of them as one vector.
double distance(const Tensors& got, const Tensors& exact) {
    double squares = 0, of_exact = 0;
    for (const auto& [name, gradient] : exact) {
        squares += (got.at(name).to(at::kDouble) - gradient.to(at::kDouble)).square().sum().item<double>();
        of_exact += gradient.to(at::kDouble).square().sum().item<double>();
    }
    return std::sqrt(squares / of_exact);
}

// On the CPU, in bfloat16 as on a GPU: codes of both passes' operands, of dx's alone, and none.
TEST(CodedGradients, OfDxAloneAndOfInt8AreNearerToFp32) {
    UNSLOTH_NEEDS_XZ();
    const ScratchFolder folder;
    std::vector<Row> rows(8);
    for (std::size_t row = 0; row < rows.size(); ++row) {
        for (std::size_t t = 0; t < 48; ++t)
            rows[row].ids.push_back(static_cast<int32_t>((37 * row + t * t + 11 * t) % 256));
        rows[row].labels = rows[row].ids;
    }
    write_rows(folder / "rows.jsonl", rows);
    const auto gradients = [&](const char* dtype, const char* compute_dtype) {
        return first_gradients(make_config(
            {"--model.path", model_folder("tiny_llama/nf4_dq").string(), "--data.train_file",
             (folder / "rows.jsonl").string(), "--training.output_dir", (folder / "out").string(),
             "--training.overwrite_output_dir", "true", "--model.dtype", dtype, "--model.compute_dtype", compute_dtype,
             "--training.max_steps", "1", "--training.per_device_train_batch_size", "8", "--lora.r", "8"}));
    };
    const Tensors exact = gradients("float32", "auto");
    const double none = distance(gradients("bfloat16", "auto"), exact),
                 dx = distance(gradients("bfloat16", "fp8_backward"), exact),
                 both = distance(gradients("bfloat16", "fp8_both"), exact),
                 int8 = distance(gradients("bfloat16", "int8"), exact);
    std::cout << "bf16 " << none << ", fp8_backward " << dx / none << " times that, int8 " << int8 / none
              << " times, fp8_both " << both / none << " times\n";
    EXPECT_GT(int8, 1.2 * none);
    EXPECT_LT(int8, 0.45 * both);
    EXPECT_GT(dx, 1.5 * none);
    EXPECT_LT(dx, 4 * none);
    EXPECT_LT(dx, 0.4 * both);
}

// Two layers of Llama-3.1-8B's shape with random weights: per-tensor errors, the worst of each kind printed.
TEST(CodedGradients, OfLlama8BLayersStayNearFp32) {
    UNSLOTH_NEEDS_DEVICE("cuda");
    const ScratchFolder folder;
    const fs::path model = random_nf4_model(
        folder / "model", R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "hidden_act": "silu", "vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
        "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 1})");
    std::vector<Row> rows(4);
    for (std::size_t row = 0; row < rows.size(); ++row) {
        for (std::size_t t = 0; t < 512; ++t)
            rows[row].ids.push_back(static_cast<int32_t>((9973 * row + 31 * t * t + 7 * t) % 128256));
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
                  backward = gradients("bfloat16", "fp8_backward"), both = gradients("bfloat16", "fp8_both"),
                  int8 = gradients("bfloat16", "int8");
    std::map<std::string, std::array<double, 4>> worst;  // module and matrix: of bf16, fp8_backward, int8, fp8_both
    for (const auto& [name, exact] : oracle) {
        const double of_bf16 = relative_frobenius(bf16.at(name), exact),
                     of_backward = relative_frobenius(backward.at(name), exact),
                     of_both = relative_frobenius(both.at(name), exact),
                     of_int8 = relative_frobenius(int8.at(name), exact);
        // 4 bits of mantissa fewer: 16 times the rounding, in the base's products alone.
        EXPECT_LT(of_both, 16 * of_bf16) << name;
        EXPECT_LT(of_both, 0.5) << name;  // random weights: what tokens contribute cancels, the rounding does not
        EXPECT_LT(of_backward, 0.75 * of_both) << name;
        EXPECT_LT(of_int8, 0.75 * of_both) << name;
        std::array<double, 4>& kind = worst[name.substr(name.find("layers.") + 9)];
        kind = {std::max(kind[0], of_bf16), std::max(kind[1], of_backward), std::max(kind[2], of_int8),
                std::max(kind[3], of_both)};
    }
    for (const auto& [kind, of] : worst)
        std::cout << kind << ": bf16 " << of[0] << ", fp8_backward " << of[1] << ", int8 " << of[2] << ", fp8_both "
                  << of[3] << "\n";
    const double of_bf16 = distance(bf16, oracle);
    EXPECT_LT(distance(backward, oracle), 4 * of_bf16);
    EXPECT_LT(distance(int8, oracle), 4 * of_bf16);
    std::cout << "all as one vector: bf16 " << of_bf16 << ", fp8_backward " << distance(backward, oracle) / of_bf16
              << " times that, int8 " << distance(int8, oracle) / of_bf16 << " times, fp8_both "
              << distance(both, oracle) / of_bf16 << " times\n";
}

std::vector<CodedCase> coded_cases() {
    std::vector<CodedCase> cases;
    for (const std::string& device : test_devices())
        for (const char* const compute_dtype : {"fp8_both", "fp8_backward", "int8"})
            cases.push_back({device, compute_dtype});
    return cases;
}
INSTANTIATE_TEST_SUITE_P(All, CodedTraining, ::testing::ValuesIn(coded_cases()),
                         [](const auto& info) { return info.param.compute_dtype + "_" + info.param.device; });

}  // namespace
}  // namespace unsloth
