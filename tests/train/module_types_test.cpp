// model.precision: what is held by module, against references that hold the same values in another way.
#include <map>
#include <set>

#include "train/streamed_weights.h"

namespace unsloth {
namespace {

using namespace test;

struct Losses {
    std::vector<float> of_steps, evaluations;
    at::Tensor gradients_P;
};

model::LoadRequest training_request() {
    model::LoadRequest request;
    request.load_in_4bit = false;
    request.lora.emplace();
    request.lora->target_modules = {"q_proj", "v_proj", "o_proj", "up_proj", "down_proj"};
    request.trains = true;
    request.optim = config::Optimizer::adamw_torch;
    request.sizes.tokens = request.sizes.head_rows = 16 * matrix_rows;
    request.sizes.segments = matrix_rows;
    request.sizes.longest = 16;
    request.run.layers = {{.keep = spec::Keep::input}};
    request.run.head_tile = 24;
    return request;
}

Losses losses_of(const fs::path& folder, const model::LoadRequest& request) {
    LoadedModel loaded = load_model(folder, request);
    train::Stepper stepper(*loaded.ctx, *loaded.model, {});
    Losses losses;
    for (int step = 0; step < 3; ++step) {
        stepper.issue(matrix_batch({}, step, 0), step + 1, 0.01);
        while (const auto result = stepper.take(/*must=*/true)) losses.of_steps.push_back(result->outcome.loss);
        losses.evaluations.push_back(
            loaded->score(matrix_batch({.micro_batches = 4}, 90 + step, 0).micro[0]).sum().item<float>());
    }
    losses.gradients_P = loaded->parameters()->state().grads_P.clone();
    return losses;
}

void expect_equal(const Losses& a, const Losses& b) {
    EXPECT_EQ(a.of_steps, b.of_steps);
    EXPECT_EQ(a.evaluations, b.evaluations);
    EXPECT_TRUE(same_bits(a.gradients_P, b.gradients_P));
    EXPECT_GT(a.gradients_P.abs().max().item<float>(), 0.0F);
}

class Precision : public ::testing::TestWithParam<Base> {
  protected:
    fs::path written(const char* name, const formats::MergedModel& model, const formats::ModelWriteOptions& options) {
        fs::create_directory(folder_ / name);
        formats::write_model(model, folder_ / name, options);
        return folder_ / name;
    }
    ScratchFolder folder_;
};

/// From a checkpoint in 16, 4 or 8 bit: the same losses as a 32-bit model with the values that the types stand for, and
/// as a folder that quantize wrote, in every bit.
TEST_P(Precision, TrainsOnTheValuesThatTheTypesStandFor) {
    const fs::path base = base_folder(GetParam());
    const formats::WeightFile file = formats::WeightFile::open(base.string());
    model::LoadRequest request = training_request();
    const fs::path dequantised =
        written("values", formats::MergedModel(file, nullptr, {.precision = mixed_precision()}),
                {.type = spec::WeightType::f32});
    const fs::path quantised = written("quantised", formats::MergedModel(file, nullptr),
                                       {.type = spec::WeightType::nf4, .precision = mixed_precision()});
    const Losses of_values = losses_of(dequantised, request), of_folder = losses_of(quantised, request),
                 as_stored = losses_of(base, request);
    request.precision = mixed_precision();
    const Losses named = losses_of(base, request);
    expect_equal(named, of_values);
    expect_equal(named, of_folder);
    EXPECT_NE(named.of_steps, as_stored.of_steps) << "the types leave no trace";
}

INSTANTIATE_TEST_SUITE_P(Cpu, Precision, ::testing::Values(Base::bf16, Base::nf4, Base::int8),
                         [](const auto& info) { return std::string(name_of(info.param)); });

/// Each type alone, from a checkpoint in each of them.
TEST(EachPrecision, TrainsOnTheValuesThatItStandsFor) {
    const formats::WeightFile plain = formats::WeightFile::open(base_folder(Base::bf16).string());
    const std::pair<const char*, spec::WeightType> types[] = {
        {"nf4", spec::WeightType::nf4},   {"fp4", spec::WeightType::fp4},  {"int8", spec::WeightType::int8},
        {"bf16", spec::WeightType::bf16}, {"fp16", spec::WeightType::f16}, {"fp32", spec::WeightType::f32}};
    const ScratchFolder scratch;
    const auto written = [&](const std::string& name, const formats::MergedModel& model, spec::WeightType type) {
        fs::create_directory(scratch / name);
        formats::write_model(model, scratch / name, {.type = type});
        return scratch / name;
    };
    for (const auto& [stored, stored_type] : types) {
        const fs::path folder = written(stored, formats::MergedModel(plain, nullptr), stored_type);
        const formats::WeightFile file = formats::WeightFile::open(folder.string());
        std::set<float> first_losses;
        for (const auto& [named, named_type] : types) {
            SCOPED_TRACE(cat(named, " from ", stored));
            model::LoadRequest request = training_request();
            const spec::PrecisionMap precision({{"default", named}, {"model.embed_tokens", named}, {"lm_head", named}});
            const Losses of_values =
                losses_of(written(cat(stored, " as ", named),
                                  formats::MergedModel(file, nullptr, {.precision = precision}), spec::WeightType::f32),
                          request);
            request.precision = precision;
            const Losses held = losses_of(folder, request);
            expect_equal(held, of_values);
            first_losses.insert(held.of_steps.front());
        }
        EXPECT_GE(first_losses.size(), 4U) << stored << ": three quantise in ways of their own";
    }
}

int64_t rounded(int64_t bytes) {
    return (bytes + 511) / 512 * 512;
}
int64_t bytes_in_8bit(int64_t rows, int64_t cols) {
    return rounded(rows * cols) + rounded(4 * rows);
}
int64_t bytes_in_4bit(int64_t rows, int64_t cols) {
    const int64_t blocks = rows * cols / 64;
    return rounded(rows * cols / 2) + rounded(blocks) + rounded(4 * ((blocks + 255) / 256)) + rounded(4) +
           rounded(4 * (16 + 256));
}

TEST(PrecisionPlan, HoldsWhatTheTypesTake) {
    model::LoadRequest request = training_request();
    request.precision = mixed_precision();
    const auto file =
        std::make_shared<const formats::WeightFile>(formats::WeightFile::open(base_folder(Base::bf16).string()));
    const model::ModelPlan plan(file, request);
    std::map<std::string, int64_t> bytes;
    const memory::Plan resident = plan.resident();
    for (const memory::Entry& entry : resident.entries()) bytes[entry.name] = entry.bytes;
    const auto in_4bit = bytes_in_4bit, in_8bit = bytes_in_8bit;
    const int64_t attention = 2 * in_4bit(64, 64) + 2 * in_4bit(32, 64), mlp = 2 * in_4bit(128, 64) + in_4bit(64, 128);
    EXPECT_EQ(bytes.count("layer 0 base"), 0U) << "bf16 stays in the file's map";
    EXPECT_EQ(bytes["layer 1 base"], attention + 2 * in_8bit(128, 64) + in_8bit(64, 128));
    EXPECT_EQ(bytes["layer 2 base"], attention + mlp);
    EXPECT_EQ(bytes["layer 4 base"], attention - in_4bit(64, 64) + 4 * 64 * 64 + mlp);
    EXPECT_EQ(bytes["layer 5 base"],
              2 * in_8bit(64, 64) + 2 * in_8bit(32, 64) + 2 * in_8bit(128, 64) + in_8bit(64, 128));
    EXPECT_EQ(bytes["model.embed_tokens.weight"], in_4bit(256, 64));
    EXPECT_EQ(bytes["lm_head.weight"], in_8bit(256, 64));
    EXPECT_NE(plan.base_description().find("8 linears in 4 bit (fp4)"), std::string::npos) << plan.base_description();
    EXPECT_NE(plan.base_description().find("lm_head in int8"), std::string::npos) << plan.base_description();
}

}  // namespace
}  // namespace unsloth
