// Logits, loss and per-module checksums against transformers' (tests/golden/forward).
//
// Bounds: in fp32 ten times the reference's own spread (its deviation from fp64); in bf16 twice the root-mean-square
// deviation that bf16 matrix products cause in the reference itself.
#include "model/support.h"
#include "unsloth/train/step.h"

namespace unsloth {
namespace {

using namespace test;
using Rows = std::vector<std::vector<int32_t>>;

struct Spread {
    std::string name;
    double max_abs, rms, checksum_l2;  ///< fp32 against fp64
    double bf16_rms;
    friend void PrintTo(const Spread& spread, std::ostream* out) { *out << spread.name; }
};

const std::vector<Spread> architectures = {{"llama_tied", 5.4e-6, 8.0e-7, 6.3e-8, 1.1e-2},
                                           {"llama_bias", 2.7e-6, 4.0e-7, 1.4e-7, 6.6e-3},
                                           {"mistral_window", 2.8e-6, 5.2e-7, 5.3e-8, 7.4e-3},
                                           {"qwen3", 3.2e-6, 5.3e-7, 3.9e-8, 7.3e-3},
                                           {"qwen2", 2.1e-6, 4.1e-7, 1.3e-7, 6.0e-3}};
const std::vector<Spread> rope_types = {
    {"default", 6.0e-6, 8.4e-7, 1.4e-7, 1.0e-2},      {"linear", 3.4e-6, 6.3e-7, 6.9e-8, 9.1e-3},
    {"dynamic", 4.4e-6, 7.6e-7, 6.8e-8, 9.2e-3},      {"yarn", 4.7e-6, 7.9e-7, 4.6e-8, 9.9e-3},
    {"yarn_options", 4.6e-6, 8.5e-7, 6.0e-8, 1.4e-2}, {"llama3", 3.3e-6, 6.5e-7, 8.8e-8, 9.1e-3}};
const Spread main_bf16{"bf16", 1.1e-5, 1.4e-6, 1.3e-7, 1.4e-2}, main_nf4_dq{"nf4_dq", 8.6e-6, 1.3e-6, 1.1e-7, 1.4e-2};

struct Checksum {
    double mean, l2, rms;
    std::vector<double> first4;
};

Checksum checksum(const at::Tensor& output_TN) {
    const at::Tensor values = in_fp64(output_TN);
    Checksum sum{values.mean().item<double>(), l2(values), rms(values), {}};
    for (int64_t i = 0; i < 4; ++i) sum.first4.push_back(values[0][i].item<double>());
    return sum;
}

/// What the model reports of its modules in one forward pass. A block's output goes by the reference's name for it.
class ModuleLog {
  public:
    explicit ModuleLog(model::Model& model) : model_(model) {
        model.on_module = [this](const std::string& module, const at::Tensor& output_TN) {
            const bool block = module.rfind("model.layers.", 0) == 0 && module.find('.', 13) == std::string::npos;
            EXPECT_TRUE(sums.emplace(block ? module + " (block output)" : module, checksum(output_TN)).second)
                << module << " twice";
        };
    }
    ~ModuleLog() { model_.on_module = nullptr; }
    std::map<std::string, Checksum> sums;

  private:
    model::Model& model_;
};

/// Outputs that exist in no buffer of ours: added to the residual stream by the product itself, or normalised in place.
bool is_fused(const std::string& module) {
    for (const char* end : {".o_proj", ".down_proj", ".q_norm", ".k_norm"})
        if (module.size() > std::strlen(end) &&
            module.compare(module.size() - std::strlen(end), std::string::npos, end) == 0)
            return true;
    return false;
}

void expect_checksums(const ModuleLog& log, const nlohmann::json& modules, const Spread& spread, double logits_rms) {
    std::size_t compared = 0;
    for (const auto& expected : modules) {
        const auto name = expected["module"].get<std::string>();
        const auto found = log.sums.find(name);
        if (found == log.sums.end()) {
            EXPECT_TRUE(is_fused(name)) << name << " was not reported";
            continue;
        }
        const Checksum& got = found->second;
        EXPECT_NEAR(got.l2, expected["l2"].get<double>(), 10 * spread.checksum_l2 * got.l2) << name;
        // A module's values deviate as the logits do, relative to their size; a mean deviates by less than the values.
        EXPECT_NEAR(got.mean, expected["mean"].get<double>(), 10 * spread.rms / logits_rms * got.rms) << name;
        for (std::size_t i = 0; i < 4; ++i)
            EXPECT_NEAR(got.first4[i], expected["first4"][i].get<double>(), 10 * spread.max_abs / logits_rms * got.rms)
                << name << " [" << i << "]";
        ++compared;
    }
    EXPECT_GE(compared, 3U);
}

void expect_logits(const at::Tensor& got, const at::Tensor& expected, const Spread& spread, at::ScalarType dtype) {
    ASSERT_EQ(got.sizes(), expected.sizes());
    if (dtype == at::kFloat) {
        EXPECT_LE(max_abs(got, expected), 10 * spread.max_abs);
        EXPECT_LE(rms(got, expected), 10 * spread.rms);
    } else {
        EXPECT_LE(rms(got, expected), 2 * spread.bf16_rms);
        EXPECT_GT(rms(got, expected), 100 * spread.rms) << "this was not computed in 16 bits";
    }
}

Rows real_tokens(const nlohmann::json& inputs) {
    Rows rows;
    for (std::size_t r = 0; r < inputs["input_ids"].size(); ++r) {
        rows.emplace_back();
        for (std::size_t t = 0; t < inputs["input_ids"][r].size(); ++t)
            if (inputs["attention_mask"][r][t] == 1) rows.back().push_back(inputs["input_ids"][r][t]);
    }
    return rows;
}

int64_t total(const Rows& rows) {
    int64_t tokens = 0;
    for (const auto& row : rows) tokens += static_cast<int64_t>(row.size());
    return tokens;
}

/// Reference logits [rows, T, V] at the real tokens, joined: [tokens, V].
at::Tensor at_real_tokens(const at::Tensor& logits_BTV, const Rows& rows, int64_t stride = 1) {
    std::vector<at::Tensor> parts;
    for (std::size_t r = 0; r < rows.size(); ++r)
        parts.push_back(logits_BTV[static_cast<int64_t>(r)].narrow(
            0, 0, (static_cast<int64_t>(rows[r].size()) + stride - 1) / stride));
    return at::cat(parts);
}

using Where = std::tuple<std::string, at::ScalarType>;
std::string where_name(const Where& where) {
    return cat(std::get<0>(where), "_", c10::toString(std::get<1>(where)));
}

class ArchitectureTest : public ::testing::TestWithParam<std::tuple<Spread, std::string, at::ScalarType>> {};

TEST_P(ArchitectureTest, LogitsAndModulesEqualTheReference) {
    const auto& [spread, device, dtype] = GetParam();
    UNSLOTH_NEEDS_XZ();
    const nlohmann::json reference = read_json(golden("forward/" + spread.name + ".json"));
    const Rows rows = real_tokens(reference);
    const LoadedModel model = load_model(model_folder(spread.name), device, dtype, false, total(rows), 2);
    const at::Tensor expected =
        at_real_tokens(read_tensors(golden("forward/" + spread.name + ".logits.safetensors")).at("logits"), rows);
    ModuleLog log(*model.model);
    const Scored scored = score_every_position(*model.model, rows);
    expect_logits(scored.logits_TV, expected, spread, dtype);
    if (dtype != at::kFloat) return;
    EXPECT_NEAR(scored.mean_loss, reference["mean_loss"].get<double>(), 10 * spread.max_abs);
    expect_checksums(log, reference["modules"], spread, rms(expected));
}

class RopeTypeTest : public ::testing::TestWithParam<std::tuple<Spread, std::string, at::ScalarType>> {};

TEST_P(RopeTypeTest, LogitsBeyondTheOriginalLengthEqualTheReference) {
    const auto& [spread, device, dtype] = GetParam();
    UNSLOTH_NEEDS_XZ();
    const nlohmann::json reference = read_json(golden("forward/rope_types.json"));
    const nlohmann::json& type = reference["types"][spread.name];
    const ScratchFolder folder;
    nlohmann::json config = read_json(model_folder("small_llama/bf16") / "config.json");
    for (const auto& [key, value] : type["config"].items()) config[key] = value;
    write_text(folder / "config.json", config.dump());
    fs::create_symlink(model_folder("small_llama/bf16") / "model.safetensors", folder / "model.safetensors");

    const Rows rows = {reference["input_ids"].get<std::vector<int32_t>>()};
    const LoadedModel model = load_model((folder / "config.json").parent_path(), device, dtype, false, total(rows), 1);
    ModuleLog log(*model.model);
    const Scored scored = score_every_position(*model.model, rows);
    const at::Tensor expected = read_tensors(golden("forward/rope_logits.safetensors")).at(spread.name);
    expect_logits(scored.logits_TV.slice(0, 1, at::indexing::None, 2), expected, spread, dtype);
    if (dtype != at::kFloat) return;
    EXPECT_NEAR(scored.mean_loss, type["mean_loss"].get<double>(), 10 * spread.max_abs);
    expect_checksums(log, type["modules"], spread, rms(expected));
}

/// "dynamic" depends on the longest position of the call: a short batch after a long one starts over.
TEST(DynamicRopeTest, FrequenciesFollowEachBatch) {
    UNSLOTH_NEEDS_XZ();
    const nlohmann::json reference = read_json(golden("forward/rope_types.json"));
    const ScratchFolder folder;
    nlohmann::json config = read_json(model_folder("small_llama/bf16") / "config.json");
    for (const auto& [key, value] : reference["types"]["dynamic"]["config"].items()) config[key] = value;
    write_text(folder / "config.json", config.dump());
    fs::create_symlink(model_folder("small_llama/bf16") / "model.safetensors", folder / "model.safetensors");
    const auto ids = reference["input_ids"].get<std::vector<int32_t>>();
    const Rows whole = {ids}, begin = {{ids.begin(), ids.begin() + 20}};
    const LoadedModel model = load_model((folder / "config.json").parent_path(), "cpu", at::kFloat, false, 64, 1);
    const at::Tensor fresh = score_every_position(*model.model, begin).logits_TV;
    const at::Tensor long_row = score_every_position(*model.model, whole).logits_TV;
    EXPECT_TRUE(same_bits(score_every_position(*model.model, begin).logits_TV, fresh));
    EXPECT_GT(rms(long_row.narrow(0, 0, 20), fresh), 1e-3);
}

class MainModelTest : public ::testing::TestWithParam<Where> {};

TEST_P(MainModelTest, FourBitLogitsAndModulesEqualTheReference) {
    const auto& [device, dtype] = GetParam();
    UNSLOTH_NEEDS_XZ();
    const Rows rows = real_tokens(read_json(golden("forward/main_inputs.json")));
    const LoadedModel model = load_model(model_folder("tiny_llama/nf4_dq"), device, dtype, true, total(rows), 2);
    ModuleLog log(*model.model);
    const Scored scored = score_every_position(*model.model, rows);
    const at::Tensor expected =
        at_real_tokens(read_tensors(golden("forward/main_nf4_dq.safetensors")).at("logits.every4th"), rows, 4);
    std::vector<at::Tensor> every4th;
    int64_t begin = 0;
    for (const auto& row : rows) {
        every4th.push_back(
            scored.logits_TV.narrow(0, begin, static_cast<int64_t>(row.size())).slice(0, 0, at::indexing::None, 4));
        begin += static_cast<int64_t>(row.size());
    }
    expect_logits(at::cat(every4th), expected, main_nf4_dq, dtype);
    if (dtype != at::kFloat) return;
    const nlohmann::json reference = read_json(golden("forward/main_checksums.json"))["nf4_dq"];
    EXPECT_NEAR(scored.mean_loss, reference["mean_loss"].get<double>(), 10 * main_nf4_dq.max_abs);
    expect_checksums(log, reference["modules"], main_nf4_dq, rms(expected));
}

/// The 16-bit form of the main model is too large for the repository.
TEST_P(MainModelTest, SixteenBitLogitsAndModulesEqualTheReference) {
    const auto& [device, dtype] = GetParam();
    UNSLOTH_NEEDS_XZ();
    const char* const shared = std::getenv("UNSLOTH_SHARED");
    if (shared == nullptr || !fs::exists(fs::path(shared) / "golden/tiny_llama/bf16"))
        GTEST_SKIP() << "UNSLOTH_SHARED does not name the collection";
    const fs::path collection = fs::path(shared) / "golden";
    const Rows rows = real_tokens(read_json(golden("forward/main_inputs.json")));
    const LoadedModel model =
        load_model(unpacked(collection / "tiny_llama/bf16"), device, dtype, false, total(rows), 2);
    ModuleLog log(*model.model);
    const Scored scored = score_every_position(*model.model, rows);
    const at::Tensor expected =
        at_real_tokens(read_tensors(collection / "forward/main_logits.safetensors").at("logits.bf16"), rows);
    expect_logits(scored.logits_TV, expected, main_bf16, dtype);
    if (dtype != at::kFloat) return;
    const nlohmann::json reference = read_json(golden("forward/main_checksums.json"))["bf16"];
    EXPECT_NEAR(scored.mean_loss, reference["mean_loss"].get<double>(), 10 * main_bf16.max_abs);
    expect_checksums(log, reference["modules"], main_bf16, rms(expected));
}

const auto all_dtypes = ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf);
template <class Info>
std::string case_name(const Info& info) {
    return cat(std::get<0>(info.param).name, "_", where_name({std::get<1>(info.param), std::get<2>(info.param)}));
}
INSTANTIATE_TEST_SUITE_P(All, ArchitectureTest,
                         ::testing::Combine(::testing::ValuesIn(architectures), ::testing::ValuesIn(test_devices()),
                                            all_dtypes),
                         [](const auto& info) { return case_name(info); });
INSTANTIATE_TEST_SUITE_P(All, RopeTypeTest,
                         ::testing::Combine(::testing::ValuesIn(rope_types), ::testing::ValuesIn(test_devices()),
                                            all_dtypes),
                         [](const auto& info) { return case_name(info); });
INSTANTIATE_TEST_SUITE_P(All, MainModelTest, ::testing::Combine(::testing::ValuesIn(test_devices()), all_dtypes),
                         [](const auto& info) { return where_name(info.param); });

/// Logits of a row, and the gradients that a step makes of it, of the small model in fp32 with layers of this kind.
std::map<std::string, at::Tensor> passes_of(const std::vector<spec::RopeSpec>& ropes, int of_second_layer) {
    auto file = std::make_shared<formats::WeightFile>(formats::WeightFile::open(model_folder("qwen3").string()));
    file->spec.ropes = ropes;
    file->spec.layers.at(1).rope = of_second_layer;
    const std::vector<int32_t> row{17, 40, 23, 99, 5, 5, 71, 64, 118, 30, 11, 2};
    model::LoadRequest request;
    request.dtype = at::kFloat;
    request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = static_cast<int64_t>(row.size());
    request.sizes.segments = 1;
    request.run.head_tile = 16;
    request.sizes.training = request.trains = true;
    request.lora = spec::LoraSpec{.r = 4, .target_modules = {"q_proj", "k_proj"}};
    ops::Context ctx(at::kCPU);
    model::Model model(ctx, model::ModelPlan(file, request).load(ctx));
    data::StepBatch batch;
    batch.micro = {every_position({row})};
    batch.tokens = batch.labels = batch.micro[0].labels;
    train::Stepper stepper(ctx, model, {});
    stepper.issue(batch, 1, /*learning_rate=*/0.0);
    while (stepper.take(/*must=*/true)) {
    }
    std::map<std::string, at::Tensor> result{{"logits", score_every_position(model, {row}).logits_TV}};
    for (const weights::Parameter& p : model.parameters()->table().parameters())
        result[p.name] = model.parameters()->gradient(p).clone();
    return result;
}

TEST(Layers, AreRotatedEachByItsOwnRope) {
    UNSLOTH_NEEDS_XZ();
    using Type = spec::RopeSpec::Type;
    const spec::RopeSpec usual{.theta = 1e6}, local{.theta = 1e3}, still{.type = Type::linear, .factor = 1e38};
    const auto same = [](const auto& a, const auto& b) {
        return std::ranges::all_of(a, [&](const auto& entry) { return same_bits(entry.second, b.at(entry.first)); });
    };
    const auto plain = passes_of({usual}, 0);
    EXPECT_TRUE(same(plain, passes_of({usual, usual}, 1)));
    EXPECT_FALSE(same(plain, passes_of({usual, local}, 1)));
    EXPECT_TRUE(same(plain, passes_of({usual, local}, 0))) << "a rope that no layer has changes nothing";
    const auto without = passes_of({usual}, spec::LayerSpec::no_rope);
    EXPECT_FALSE(same(plain, without));
    EXPECT_TRUE(same(without, passes_of({usual, still}, 1))) << "no rope is one that rotates by nothing";
}

}  // namespace
}  // namespace unsloth
