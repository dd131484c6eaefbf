// Answers drawn between the steps of a training run on a GPU: decode passes are recorded once and kept.
#include "model/support.h"
#include "unsloth/generate/decoder.h"
#include "unsloth/train/step.h"

namespace unsloth {
namespace {

using namespace test;

struct Rollouts {
    std::vector<std::vector<int32_t>> ids;
    std::vector<std::vector<float>> logprobs;
    std::vector<at::Tensor> trained;          ///< after each step
    std::vector<int64_t> recorded, replayed;  ///< after each round
};

constexpr int rounds = 5, answers = 8, new_tokens = 24;

data::StepBatch step_batch() {
    std::vector<std::vector<int32_t>> rows;
    for (int row = 0; row < 2; ++row) {
        rows.emplace_back();
        for (int t = 0; t < 48; ++t) rows.back().push_back((row * 31 + t * 7) % 256);
    }
    data::StepBatch batch;
    batch.micro = {every_position(rows)};
    batch.tokens = batch.labels = batch.micro[0].labels;
    return batch;
}

/// A round of answers, then a step; one decoder for all of them.
Rollouts rollouts_of(bool records, bool in_4bit, bool fp32_logits) {
    model::LoadRequest request;
    request.device = ops::choose_device("cuda");
    request.dtype = at::kBFloat16;
    request.load_in_4bit = in_4bit;
    request.trains = request.sizes.training = true;
    request.records = records;
    request.lora = spec::LoraSpec{.r = 8, .target_modules = {"q_proj", "v_proj", "o_proj", "down_proj"}};
    request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 96;
    request.sizes.segments = answers;
    request.sizes.cache_tokens = answers * 64;
    request.sizes.context = 64;
    request.sizes.deterministic = true;
    request.sizes.objective.fp32_logits = fp32_logits;
    request.run.head_tile = 32;
    const LoadedModel model = load_model(model_folder("small_llama/bf16"), request);
    model.ctx->deterministic = true;
    train::Stepper stepper(*model.ctx, *model.model, {});
    generate::Decoder decoder(*model.ctx, *model.model);
    const data::StepBatch batch = step_batch();
    Rollouts made;
    for (int round = 0; round < rounds; ++round) {
        std::vector<generate::Request> requests;
        for (uint32_t i = 0; i < answers; ++i)
            requests.push_back({.prompt = {3, 17, 99, 5, 64, 200, 31, 8, 150, 42, 7, 77, 12, 9, 10, 11, 4, 2},
                                .max_new_tokens = new_tokens,
                                .sampling = {.temperature = 1},
                                .seed = 9,
                                .prompt_number = static_cast<uint32_t>(round),
                                .answer_number = i,
                                .logprobs = ops::LogprobOf::policy});
        for (const generate::Completion& answer : decoder.answer(requests)) {
            made.ids.push_back(answer.ids);
            made.logprobs.push_back(answer.logprobs);
        }
        made.recorded.push_back(model->counts().recorded);
        made.replayed.push_back(model->counts().replayed);
        stepper.issue(batch, round + 1, /*learning_rate=*/2e-2);
        while (stepper.take(/*must=*/true)) {
        }
        made.trained.push_back(model->parameters()->state().params_P.cpu());
    }
    return made;
}

class RolloutGpu : public ::testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(RolloutGpu, RecordedDecodePassesEqualIssuedOnesOverSteps) {
    UNSLOTH_NEEDS_XZ();
    UNSLOTH_NEEDS_DEVICE("cuda");
    const auto [in_4bit, fp32_logits] = GetParam();
    const Rollouts issued = rollouts_of(false, in_4bit, fp32_logits),
                   recorded = rollouts_of(true, in_4bit, fp32_logits);
    EXPECT_EQ(issued.recorded.back(), 0);
    EXPECT_EQ(issued.ids, recorded.ids);
    EXPECT_EQ(issued.logprobs, recorded.logprobs);
    for (int round = 0; round < rounds; ++round)
        EXPECT_TRUE(
            issued.trained[static_cast<std::size_t>(round)].equal(recorded.trained[static_cast<std::size_t>(round)]))
            << "step " << round + 1;
    for (int round = 1; round < rounds; ++round)
        EXPECT_NE(issued.logprobs[static_cast<std::size_t>(round * answers)], issued.logprobs[0]) << round;
    // The shapes of the third round were met before: a decode pass and the step's two are replayed from then on.
    EXPECT_EQ(recorded.recorded[3], recorded.recorded[2]) << "recordings were lost";
    EXPECT_EQ(recorded.recorded[4], recorded.recorded[3]) << "recordings were lost";
    EXPECT_GE(recorded.replayed[4] - recorded.replayed[3], new_tokens - 1);
}

INSTANTIATE_TEST_SUITE_P(All, RolloutGpu, ::testing::Combine(::testing::Bool(), ::testing::Bool()),
                         [](const auto& info) {
                             return std::string(std::get<0>(info.param) ? "4bit" : "16bit") +
                                    (std::get<1>(info.param) ? "_fp32_logits" : "");
                         });

}  // namespace
}  // namespace unsloth
