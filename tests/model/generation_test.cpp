// Generation with a KV cache against a full forward pass over the same tokens, and quantisation while loading against
// the checkpoint that was quantised before.
#include <set>

#include "model/support.h"

namespace unsloth {
namespace {

using namespace test;
using Row = std::vector<int32_t>;

class GenerationTest : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
  protected:
    /// 24 real tokens: more than mistral_window's 16.
    static Row prompt(const std::string& name) {
        const Row whole = read_json(golden("forward/" + name + ".json"))["input_ids"][1].get<Row>();
        return {whole.begin(), whole.begin() + 24};
    }
};

constexpr int new_tokens = 12;

Row generate(model::Model& model, const Row& prompt, std::size_t first_part) {
    Continued sequence(model);
    const auto middle = prompt.begin() + static_cast<std::ptrdiff_t>(first_part);
    if (first_part > 0) sequence.next({prompt.begin(), middle});
    Row next(middle, prompt.end()), made;
    for (int i = 0; i < new_tokens; ++i) {
        made.push_back(sequence.next(next));
        next = {made.back()};
    }
    return made;
}

TEST_P(GenerationTest, CachedStepsEqualFullForwardPasses) {
    const auto& [name, device] = GetParam();
    UNSLOTH_NEEDS_XZ();
    const LoadedModel model = load_model(model_folder(name), device, at::kFloat, false, 40, 1);
    Row sequence = prompt(name);
    const Row made = generate(*model.model, sequence, 0);
    for (int i = 0; i < new_tokens; ++i) {
        const at::Tensor last =
            score_every_position(*model.model, {sequence}).logits_TV[static_cast<int64_t>(sequence.size()) - 1];
        ASSERT_EQ(made[static_cast<std::size_t>(i)], last.argmax().item<int64_t>()) << "token " << i;
        sequence.push_back(made[static_cast<std::size_t>(i)]);
    }
    EXPECT_GT(std::set<int32_t>(made.begin(), made.end()).size(), 2U) << "a constant continuation proves little";
}

TEST_P(GenerationTest, APromptMayComeInPieces) {
    const auto& [name, device] = GetParam();
    UNSLOTH_NEEDS_XZ();
    const LoadedModel model = load_model(model_folder(name), device, at::kFloat, false, 40, 1);
    const Row whole = generate(*model.model, prompt(name), 0);
    EXPECT_EQ(generate(*model.model, prompt(name), 5), whole);
    EXPECT_EQ(generate(*model.model, prompt(name), 19), whole);
}

INSTANTIATE_TEST_SUITE_P(All, GenerationTest,
                         ::testing::Combine(::testing::Values("llama_tied", "llama_bias", "mistral_window", "qwen2",
                                                              "qwen3"),
                                            ::testing::ValuesIn(test_devices())),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

class QuantiseOnLoadTest : public ::testing::TestWithParam<std::string> {};

/// The stored checkpoint's double quantisation is off by one code now and then (bitsandbytes' CPU table): nothing else
/// may differ.
TEST_P(QuantiseOnLoadTest, GivesTheLogitsOfTheQuantisedCheckpoint) {
    UNSLOTH_NEEDS_XZ();
    const std::vector<Row> rows = {read_json(golden("forward/rope_types.json"))["input_ids"].get<Row>()};
    const auto logits = [&](const std::string& model, bool in_4bit) {
        return score_every_position(*load_model(model_folder(model), GetParam(), at::kFloat, in_4bit, 64, 1).model,
                                    rows)
            .logits_TV;
    };
    const at::Tensor stored = logits("small_llama/nf4_dq", true), quantised = logits("small_llama/bf16", true);
    const at::Tensor kept = logits("small_llama/bf16", false);
    EXPECT_LT(rms(quantised, stored), 1e-3);
    EXPECT_GT(rms(kept, stored), 1e-2) << "quantisation must be seen in the logits";
}

INSTANTIATE_TEST_SUITE_P(All, QuantiseOnLoadTest, ::testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace unsloth
