#include "unsloth/formats/merge.h"

#include <cmath>

#include "formats/model_support.h"

namespace unsloth::formats {
namespace {

using namespace test;

std::vector<float> merged_values_of(const MergedTensor& tensor) {
    std::vector<float> values(static_cast<std::size_t>(tensor.rows() * tensor.cols()));
    tensor.read_f32(0, tensor.rows(), values.data());
    return values;
}

std::vector<float> merged_values_of(const TensorSource& source) {
    std::vector<float> values(static_cast<std::size_t>(source.rows() * source.cols()));
    source.read_f32(values.data());
    return values;
}

/// w + scale · B·A in fp64, and how large its terms are.
struct Reference {
    std::vector<double> values, magnitude;
};

Reference reference(const std::vector<float>& w, const std::vector<float>& b, const std::vector<float>& a, int64_t r,
                    double scale, int64_t cols) {
    Reference result{{w.begin(), w.end()}, {}};
    for (std::size_t i = 0; i < w.size(); ++i) {
        const auto row = static_cast<int64_t>(i) / cols, col = static_cast<int64_t>(i) % cols;
        double sum = 0, size = 0;
        for (int64_t j = 0; j < r; ++j) {
            const double term = static_cast<double>(b[static_cast<std::size_t>(row * r + j)]) *
                                static_cast<double>(a[static_cast<std::size_t>(j * cols + col)]);
            sum += term;
            size += std::abs(term);
        }
        result.values[i] += scale * sum;
        result.magnitude.push_back(std::abs(static_cast<double>(w[i])) + std::abs(scale) * size);
    }
    return result;
}

void expect_close(const std::vector<float>& found, const Reference& expected, int64_t r, const std::string& name) {
    ASSERT_EQ(found.size(), expected.values.size()) << name;
    const double bound =
        static_cast<double>(r + 3) * 0x1p-24;  // one rounding a product, a sum, the scale and the last sum
    for (std::size_t i = 0; i < found.size(); ++i)
        ASSERT_NEAR(static_cast<double>(found[i]), expected.values[i], bound * expected.magnitude[i])
            << name << " element " << i;
}

std::vector<float> random_floats(int64_t n, uint64_t seed) {
    const TensorBlob blob = random_blob({"x", spec::DType::f32, {n}}, seed, 1.0F);
    std::vector<float> values(static_cast<std::size_t>(n));
    std::memcpy(values.data(), blob.data.data(), blob.data.size());
    return values;
}

TEST(AddLowRank, AgreesWithFp64OverOddShapes) {
    for (const auto& [rows, cols, r] : std::vector<std::array<int64_t, 3>>{
             {1, 1, 1}, {4, 256, 8}, {7, 519, 3}, {5, 255, 16}, {9, 257, 1}, {3, 40, 64}}) {
        const auto w = random_floats(rows * cols, 1), b = random_floats(rows * r, 2), a = random_floats(r * cols, 3);
        auto merged = w;
        add_low_rank(b.data(), a.data(), r, 0.75F, rows, cols, merged.data());
        expect_close(merged, reference(w, b, a, r, 0.75, cols), r, cat(rows, "x", cols, " r ", r));
    }
}

TEST(AddLowRank, DoesNotDependOnHowTheRowsAreGrouped) {
    const int64_t rows = 11, cols = 300, r = 5;
    const auto w = random_floats(rows * cols, 1), b = random_floats(rows * r, 2), a = random_floats(r * cols, 3);
    auto whole = w, by_row = w;
    add_low_rank(b.data(), a.data(), r, 2.5F, rows, cols, whole.data());
    for (int64_t row = 0; row < rows; ++row)
        add_low_rank(b.data() + row * r, a.data(), r, 2.5F, 1, cols, by_row.data() + row * cols);
    EXPECT_EQ(whole, by_row);
}

TEST(MergedModel, AddsPeftsAdapterToDequantisedWeights) {
    const WeightFile base = WeightFile::open(golden("formats/small_llama/nf4_dq").string());
    const Adapter adapter = read_adapter(golden("formats/adapters/patterns"), base.spec);
    const auto scales = golden_json("formats/adapters/patterns/lora_scaling.json");  // PEFT's own
    const MergedModel model(base, &adapter);
    EXPECT_EQ(model.changed_tensors(), 7);
    EXPECT_EQ(model.tensors().size(), base.tensors.all().size());
    for (const spec::TensorRule& rule : model.tensors()) {
        const auto merged = merged_values_of(model.open(rule)),
                   before = merged_values_of(*base.tensors.find(rule.hf_name));
        const bool adapted = rule.role == spec::TensorRole::linear && rule.id.layer == 1;
        if (!adapted) {
            EXPECT_EQ(merged, before) << rule.hf_name;
            continue;
        }
        const auto a = floats_of(adapter.a({1, rule.id.projection})), b = floats_of(adapter.b({1, rule.id.projection}));
        const int64_t r = adapter.layers[1][rule.id.projection].r;
        const double scale = scales.at(cat("model.layers.1.", spec::path_of(rule.id.projection))).get<double>();
        expect_close(merged, reference(before, b, a, r, scale, rule.shape[1]), r, rule.hf_name);
        EXPECT_NE(merged, before) << rule.hf_name;
    }
}

TEST(MergedModel, ReadsRowsOfATensorAsTheWholeHasThem) {
    const WeightFile base = WeightFile::open(golden("formats/small_llama/nf4_dq").string());
    const Adapter adapter = read_adapter(golden("formats/adapters/patterns"), base.spec);
    const MergedModel model(base, &adapter);
    for (const spec::TensorRule& rule : model.tensors()) {
        const MergedTensor tensor = model.open(rule);
        const auto whole = merged_values_of(tensor);
        std::vector<float> pieces(whole.size());
        for (int64_t row = 0; row < tensor.rows(); row += 3) {
            const int64_t stop = std::min(tensor.rows(), row + 3);
            tensor.read_f32(row, stop, pieces.data() + row * tensor.cols());
            tensor.drop(row, stop);
        }
        EXPECT_EQ(pieces, whole) << rule.hf_name;
    }
}

/// A base of the tests' own, tied or not, and an adapter for it.
class WrittenPair : public testing::Test {
  protected:
    void write(bool tied, const spec::LoraSpec& lora) {
        const spec::ModelSpec spec = tiny_spec(tied);
        write_model_folder(folder_ / "base", spec, random_weights(spec));
        write_adapter_folder(folder_ / "adapter", spec, lora, (folder_ / "base").string());
        base_.emplace(WeightFile::open((folder_ / "base").string()));
        adapter_.emplace(read_adapter(folder_ / "adapter", base_->spec));
    }
    std::vector<float> base_values(const std::string& name) const {
        return merged_values_of(*base_->tensors.find(name));
    }
    std::vector<float> merged_values(const MergedModel& model, const std::string& name) const {
        for (const spec::TensorRule& rule : model.tensors())
            if (rule.hf_name == name) return merged_values_of(model.open(rule));
        ADD_FAILURE() << "no " << name;
        return {};
    }

    ScratchFolder folder_;
    std::optional<WeightFile> base_;
    std::optional<Adapter> adapter_;
};

spec::LoraSpec lora_with(std::vector<std::string> modules_to_save) {
    spec::LoraSpec lora;
    lora.r = 3;
    lora.lora_alpha = 5;
    lora.target_modules = {"q_proj", "down_proj"};
    lora.modules_to_save = std::move(modules_to_save);
    return lora;
}

TEST_F(WrittenPair, RankStabilisedScale) {
    spec::LoraSpec lora = lora_with({});
    lora.use_rslora = true;
    write(false, lora);
    const MergedModel model(*base_, &*adapter_);
    const std::string name = "model.layers.0.mlp.down_proj.weight";
    const auto expected = reference(base_values(name), floats_of(adapter_->b({0, spec::Projection::down})),
                                    floats_of(adapter_->a({0, spec::Projection::down})), 3, 5 / std::sqrt(3.0), 40);
    expect_close(merged_values(model, name), expected, 4, name);  // one rounding more: of the scale itself
}

// PEFT's: m / ‖W + sBA‖ · (W + sBA), by rows.
TEST_F(WrittenPair, DoraGivesRowsTheirMagnitudes) {
    spec::LoraSpec lora = lora_with({});
    lora.use_dora = true;
    write(false, lora);
    const MergedModel model(*base_, &*adapter_);
    const std::string name = "model.layers.1.self_attn.q_proj.weight";
    const auto sum = reference(base_values(name), floats_of(adapter_->b({1, spec::Projection::q})),
                               floats_of(adapter_->a({1, spec::Projection::q})), 3, 5 / 3.0, 24);
    const auto magnitude = floats_of(adapter_->magnitude({1, spec::Projection::q}));
    const auto merged = merged_values(model, name);
    ASSERT_EQ(merged.size(), magnitude.size() * 24);
    for (std::size_t row = 0; row < magnitude.size(); ++row) {
        double squares = 0;
        for (std::size_t k = row * 24; k < (row + 1) * 24; ++k) squares += sum.values[k] * sum.values[k];
        for (std::size_t k = row * 24; k < (row + 1) * 24; ++k)
            EXPECT_NEAR(static_cast<double>(merged[k]),
                        static_cast<double>(magnitude[row]) / std::sqrt(squares) * sum.values[k], 1e-5)
                << k;
    }
    EXPECT_NE(merged, base_values(name));
}

TEST_F(WrittenPair, SavedModulesReplaceTheBases) {
    write(false, lora_with({"lm_head"}));
    const MergedModel model(*base_, &*adapter_);
    EXPECT_EQ(model.changed_tensors(), 2 * 2 + 1);
    EXPECT_EQ(merged_values(model, "lm_head.weight"), floats_of(adapter_->saved_module("lm_head")));
    EXPECT_EQ(merged_values(model, "model.embed_tokens.weight"), base_values("model.embed_tokens.weight"));
    EXPECT_FALSE(model.spec().tie_word_embeddings);
}

TEST_F(WrittenPair, ATiedBaseStaysTiedUnlessAnEndWasSaved) {
    write(true, lora_with({}));
    const MergedModel tied(*base_, &*adapter_);
    EXPECT_TRUE(tied.spec().tie_word_embeddings);
    for (const spec::TensorRule& rule : tied.tensors()) EXPECT_NE(rule.role, spec::TensorRole::lm_head);

    write(true, lora_with({"embed_tokens"}));
    const MergedModel untied(*base_, &*adapter_);
    EXPECT_FALSE(untied.spec().tie_word_embeddings);
    EXPECT_EQ(merged_values(untied, "model.embed_tokens.weight"), floats_of(adapter_->saved_module("embed_tokens")));
    EXPECT_EQ(merged_values(untied, "lm_head.weight"), base_values("model.embed_tokens.weight"))
        << "the head was not trained";
}

TEST_F(WrittenPair, MergesIntoTheValuesOfLoadingIn4Bit) {
    write(false, lora_with({}));
    const MergedModel model(*base_, &*adapter_, {.load_in_4bit = true});
    const std::string adapted = "model.layers.1.self_attn.q_proj.weight",
                      other = "model.layers.1.self_attn.k_proj.weight";
    const auto rounded = [&](const std::string& name, int64_t rows, int64_t cols) {
        const Quant4Owned weight = quantize_nf4(base_values(name).data(), rows, cols);
        std::vector<float> values(static_cast<std::size_t>(rows * cols));
        dequantize_rows(weight.view(), 0, rows, values.data());
        return values;
    };
    EXPECT_EQ(merged_values(model, other), rounded(other, 12, 24));
    EXPECT_NE(merged_values(model, other), base_values(other));
    expect_close(merged_values(model, adapted),
                 reference(rounded(adapted, 24, 24), floats_of(adapter_->b({1, spec::Projection::q})),
                           floats_of(adapter_->a({1, spec::Projection::q})), 3, 5.0 / 3, 24),
                 4, adapted);
    EXPECT_EQ(merged_values(model, "lm_head.weight"), base_values("lm_head.weight"))
        << "only linears of layers are quantised";
}

TEST_F(WrittenPair, WithoutAnAdapterTheBaseItself) {
    write(true, lora_with({}));
    const MergedModel model(*base_, nullptr);
    EXPECT_EQ(model.changed_tensors(), 0);
    for (const spec::TensorRule& rule : model.tensors())
        EXPECT_EQ(merged_values_of(model.open(rule)), base_values(rule.hf_name)) << rule.hf_name;
}

TEST_F(WrittenPair, SaysWhatTheAdapterWasTrainedOn) {
    write(false, lora_with({}));
    const auto found = [&](const std::string& base) { return trained_on(folder_ / "adapter", {{}, base}); };
    EXPECT_EQ(found((folder_ / "base").string()), TrainedOn::plain);
    EXPECT_EQ(found(golden("formats/small_llama/nf4_dq").string()), TrainedOn::file_4bit);
    EXPECT_EQ(found("/nowhere/model"), TrainedOn::unknown);
    EXPECT_EQ(found("/nowhere/model-bnb-4bit"), TrainedOn::file_4bit);
    write_text(folder_ / "adapter/run_config.json", R"({"model": {"load_in_4bit": true}})");
    EXPECT_EQ(found((folder_ / "base").string()), TrainedOn::quantised_while_loading);
    EXPECT_EQ(found(golden("formats/small_llama/nf4_dq").string()), TrainedOn::file_4bit);
    EXPECT_EQ(found("/nowhere/model"), TrainedOn::quantised_while_loading);
    write_text(folder_ / "adapter/run_config.json", R"({"model": {"load_in_8bit": true, "precision": {}}})");
    EXPECT_EQ(found((folder_ / "base").string()), TrainedOn::quantised_to_8bit_while_loading);
    EXPECT_FALSE(trained_with_precision(folder_ / "adapter"));
    write_text(folder_ / "adapter/run_config.json", R"({"model": {"precision": {"lm_head": "int8"}}})");
    EXPECT_TRUE(trained_with_precision(folder_ / "adapter"));
    write_text(folder_ / "adapter/run_config.json", R"({"model": {"load_in_4bit": false}})");
    EXPECT_EQ(found((folder_ / "base").string()), TrainedOn::plain);
    write_text(folder_ / "adapter/run_config.json", "{ damaged");
    EXPECT_EQ(found("/nowhere/model"), TrainedOn::unknown);
}

}  // namespace
}  // namespace unsloth::formats
