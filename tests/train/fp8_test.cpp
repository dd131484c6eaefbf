// compute_dtype fp8: what it does to gradients and losses, and what it refuses.
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
            for (std::size_t t = 0; t < 20 + 7 * row; ++t) rows[row].ids.push_back(static_cast<int32_t>((37 * row + t * t + 11 * t) % 256));
            rows[row].labels = rows[row].ids;
        }
        write_rows(folder / "rows.jsonl", rows);
        flags = {"--model.path", model_folder("tiny_llama/nf4_dq").string(), "--data.train_file", (folder / "rows.jsonl").string(),
                 "--training.output_dir", (folder / "out").string(), "--hardware.device", GetParam(), "--training.deterministic", "true",
                 "--model.dtype", GetParam() == "cpu" ? "float32" : "bfloat16", "--training.max_steps", "8", "--lora.r", "8",
                 "--training.learning_rate", "0.002", "--training.warmup_steps", "0"};
    }
    Course with(const Flags& more) const { return train_all(make_config(flags + more)); }

    ScratchFolder folder;
    Flags flags;
};

TEST_P(Fp8Training, StaysNearTheUnquantisedRun) {
    const Course plain = with({}), fp8 = with({"--model.compute_dtype", "fp8"});
    ASSERT_EQ(fp8.steps.size(), plain.steps.size());
    for (std::size_t i = 0; i < fp8.steps.size(); ++i) {
        EXPECT_NEAR(fp8.steps[i].outcome.loss, plain.steps[i].outcome.loss, 0.005 * plain.steps[i].outcome.loss) << "step " << i + 1;
        EXPECT_NEAR(fp8.steps[i].outcome.grad_norm, plain.steps[i].outcome.grad_norm, 0.1 * plain.steps[i].outcome.grad_norm);
        EXPECT_EQ(fp8.steps[i].outcome.skipped, 0U);
    }
    EXPECT_NE(fp8.steps[0].outcome.loss, plain.steps[0].outcome.loss) << "nothing was quantised";
    // e4m3 keeps 3 bits of mantissa, bf16 keeps 7: 16 times the rounding, of the base products' operands alone but in all of them.
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
    refused({"--model.path", model_folder("small_llama/bf16").string(), "--lora.finetuning_type", "full"}, "frozen base");
}

INSTANTIATE_TEST_SUITE_P(All, Fp8Training, ::testing::ValuesIn(built_devices()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace unsloth
