// Logits in fp32 of 16-bit models, for objectives that ask for them (ObjectiveNeeds::fp32_logits).
#include "model/support.h"
#include "unsloth/generate/decoder.h"
#include "unsloth/train/step.h"

namespace unsloth {
namespace {

using namespace test;

const std::vector<int32_t> tokens = {3, 17, 99, 5, 64, 200, 31, 8, 150, 42, 7, 77, 12};

class Fp32LogitsTest : public ::testing::TestWithParam<std::string> {
  protected:
    void SetUp() override { UNSLOTH_NEEDS_XZ(); }
    model::LoadRequest request(bool fp32, at::ScalarType dtype = at::kBFloat16) const {
        model::LoadRequest r;
        r.device = ops::choose_device(GetParam());
        r.dtype = dtype;
        r.load_in_4bit = false;
        r.sizes.tokens = r.sizes.longest = r.sizes.head_rows = 32;
        r.sizes.segments = 2;
        r.sizes.cache_tokens = 64;
        r.sizes.training = r.trains = true;
        r.sizes.objective.fp32_logits = fp32;
        r.run.head_tile = 8;
        r.lora = spec::LoraSpec{.r = 8, .target_modules = {"q_proj", "down_proj"}, .modules_to_save = {"lm_head"}};
        return r;
    }
    LoadedModel load(bool fp32, at::ScalarType dtype = at::kBFloat16) const {
        return load_model(model_folder("small_llama/bf16"), request(fp32, dtype));
    }
};

at::Tensor scored(const LoadedModel& model, at::ScalarType& type) {
    std::vector<at::Tensor> chunks;
    model->score(every_position({tokens}), [&](int64_t, const at::Tensor& logits_CV) {
        type = logits_CV.scalar_type();
        chunks.push_back(logits_CV.cpu().clone());
    });
    return at::cat(chunks);
}

TEST_P(Fp32LogitsTest, RoundToThoseOf16Bits) {
    at::ScalarType type = at::kByte, fp32_type = at::kByte;
    const at::Tensor rounded = scored(load(false), type), exact = scored(load(true), fp32_type);
    EXPECT_EQ(type, at::kBFloat16);
    EXPECT_EQ(fp32_type, at::kFloat);
    // Of a product that sums in another order a value near the middle may be rounded to the neighbour.
    const at::Tensor apart = (exact.to(at::kBFloat16).to(at::kFloat) - rounded.to(at::kFloat)).abs();
    EXPECT_LT(apart.gt(0).to(at::kFloat).mean().item<double>(), 0.02);
    EXPECT_LE(apart.max().item<double>(), 0.01 * exact.abs().max().item<double>());
    EXPECT_GT(max_abs(exact, rounded), 1e-3) << "they were rounded all the same";
}

/// The sampler's log-probabilities at a temperature, and those of the scoring pass.
TEST_P(Fp32LogitsTest, SamplerAndTrainerReadTheSame) {
    const LoadedModel model = load(true);
    const generate::Completion answer = generate::Decoder(*model.ctx, *model.model)
                                            .answer({{.prompt = tokens,
                                                      .max_new_tokens = 12,
                                                      .sampling = {.temperature = 0.7},
                                                      .logprobs = ops::LogprobOf::policy}})
                                            .front();
    std::vector<int32_t> all = tokens;
    all.insert(all.end(), answer.ids.begin(), answer.ids.end());
    const at::Tensor policy =
        (score_every_position(*model.model, {all}).logits_TV.to(at::kDouble) / 0.7).log_softmax(-1).cpu();
    double sum = 0;
    for (std::size_t t = 0; t < answer.ids.size(); ++t)
        sum += std::abs(answer.logprobs[t] -
                        policy[static_cast<int64_t>(tokens.size() + t) - 1][answer.ids[t]].item<double>());
    EXPECT_LT(sum / static_cast<double>(answer.ids.size()), 0.01) << "more than the layers' 16 bits leave";
}

TEST_P(Fp32LogitsTest, GradientsAreThoseOf16BitsUpToTheirRounding) {
    const auto gradients = [&](bool fp32, at::ScalarType dtype) {
        const LoadedModel model = load(fp32, dtype);
        weights::Parameters& parameters = *model->parameters();
        at::manual_seed(5);
        for (const weights::Parameter& p : parameters.table().parameters())
            if (p.kind == weights::Parameter::Kind::lora_b) parameters.value(p).copy_(at::randn(p.shape) * 0.05);
        model->parameters_changed();
        data::StepBatch batch;
        batch.micro = {every_position({tokens})};
        batch.tokens = batch.labels = batch.micro[0].labels;
        train::Stepper stepper(*model.ctx, *model.model, {});
        stepper.issue(batch, 1, /*learning_rate=*/0.0);
        while (stepper.take(/*must=*/true)) {
        }
        std::map<std::string, at::Tensor> result;
        for (const weights::Parameter& p : parameters.table().parameters())
            result[p.name] = parameters.gradient(p).cpu().clone();
        return result;
    };
    const auto wanted = gradients(false, at::kFloat), fp32 = gradients(true, at::kBFloat16);
    for (const auto& [name, gradient] : wanted) {
        EXPECT_GT(gradient.norm().item<double>(), 0) << name;
        EXPECT_LT(((fp32.at(name) - gradient).norm() / gradient.norm()).item<double>(), 0.1) << name;
    }
    const auto same = gradients(true, at::kFloat);
    for (const auto& [name, gradient] : wanted) EXPECT_TRUE(same.at(name).equal(gradient)) << name;
}

TEST_P(Fp32LogitsTest, ThePlanHasRoomForBoth) {
    const auto bytes = [&](bool fp32, at::ScalarType dtype) {
        const model::ModelPlan plan(std::make_shared<const formats::WeightFile>(
                                        formats::WeightFile::open(model_folder("small_llama/bf16").string())),
                                    request(fp32, dtype));
        const memory::Plan step = plan.step();
        int64_t sum = 0;
        for (const memory::Entry& entry : step.entries())
            if (entry.name.starts_with("logits")) sum += entry.bytes;
        return sum;
    };
    EXPECT_EQ(bytes(true, at::kBFloat16), 3 * bytes(false, at::kBFloat16)) << "four bytes, and two of the gradient";
    EXPECT_EQ(bytes(true, at::kFloat), bytes(false, at::kFloat)) << "float32 models have them already";
}

INSTANTIATE_TEST_SUITE_P(All, Fp32LogitsTest, ::testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace unsloth
