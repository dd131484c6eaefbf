#include "unsloth/formats/pruning.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/model_support.h"
#include "unsloth/core/files.h"
#include "unsloth/formats/model_writer.h"

namespace unsloth::formats {
namespace {

using namespace test;

/// Wanda's rule as its reference has it: sort the products of `group` neighbours (stable), drop the first `count`.
std::vector<float> by_sorting(const std::vector<float>& row, const std::vector<float>& norms, std::size_t group,
                              std::size_t count) {
    std::vector<float> pruned = row;
    for (std::size_t begin = 0; begin < row.size(); begin += group) {
        std::vector<std::size_t> order(group);
        for (std::size_t i = 0; i < group; ++i) order[i] = begin + i;
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return std::abs(row[a]) * norms[a] < std::abs(row[b]) * norms[b];
        });
        for (std::size_t i = 0; i < count; ++i) pruned[order[i]] = 0;
    }
    return pruned;
}

std::vector<float> random_row(int64_t n, uint64_t seed) {
    const TensorBlob blob = random_blob({"x", spec::DType::f32, {n}}, seed, 1.0F);
    std::vector<float> values(static_cast<std::size_t>(n));
    std::memcpy(values.data(), blob.data.data(), blob.data.size());
    return values;
}

TEST(ZeroLeast, IsWandasRuleForRandomRows) {
    for (const int64_t cols : {4, 8, 52, 256})
        for (uint64_t seed = 0; seed < 20; ++seed) {
            const std::vector<float> row = random_row(cols, seed);
            std::vector<float> norms = random_row(cols, seed + 100);
            for (float& norm : norms) norm = std::abs(norm);
            const auto n = static_cast<std::size_t>(cols);
            std::vector<float> half = row, of_four = row, all = row;
            zero_least(Sparsity::half, norms.data(), cols, half.data());
            zero_least(Sparsity::two_of_four, norms.data(), cols, of_four.data());
            zero_least(Sparsity::none, norms.data(), cols, all.data());
            EXPECT_EQ(half, by_sorting(row, norms, n, n / 2)) << cols;
            EXPECT_EQ(of_four, by_sorting(row, norms, 4, 2)) << cols;
            EXPECT_EQ(all, row);
            EXPECT_EQ(std::ranges::count(half, 0.0F), cols / 2);
            for (std::size_t i = 0; i < n; i += 4) EXPECT_EQ(std::count(&of_four[i], &of_four[i] + 4, 0.0F), 2) << cols;
        }
}

TEST(ZeroLeast, TheInputsNormDecides) {
    std::vector<float> row = {10, 1, 1, 1};
    zero_least(Sparsity::two_of_four, std::vector<float>{0.01F, 1, 2, 3}.data(), 4, row.data());
    EXPECT_EQ(row, (std::vector<float>{0, 0, 1, 1}));
    row = {1, 1, 1, 1, 1};  // of equal ones the first go, and of an odd number the smaller half
    zero_least(Sparsity::half, std::vector<float>(5, 1).data(), 5, row.data());
    EXPECT_EQ(row, (std::vector<float>{0, 0, 1, 1, 1}));
}

TEST(PlacesOfLargest, AscendAndTakeTheFirstOfEqualOnes) {
    EXPECT_EQ(places_of_largest({3, 1, 2, 3, 2}, 3), (std::vector<int64_t>{0, 2, 3}));
    EXPECT_EQ(places_of_largest({1, 1, 1}, 2), (std::vector<int64_t>{0, 1}));
}

TEST(ColumnNorms, AgreeWithSumsOverAllRows) {
    const ScratchFolder folder;
    const spec::ModelSpec spec = tiny_spec();
    write_model_folder(folder.path(), spec, random_weights(spec));
    const WeightFile file = WeightFile::open(folder.path().string());
    const TensorSource& down = file.tensors.linear({1, spec::Projection::down});
    const std::vector<float> values = floats_of(down.tensor());
    const std::vector<double> norms = column_norms(down);
    ASSERT_EQ(static_cast<int64_t>(norms.size()), spec.intermediate_size);
    for (int64_t col = 0; col < spec.intermediate_size; ++col) {
        double sum = 0;
        for (int64_t row = 0; row < spec.hidden_size; ++row) {
            const double value = values[static_cast<std::size_t>(row * spec.intermediate_size + col)];
            sum += value * value;
        }
        EXPECT_NEAR(norms[static_cast<std::size_t>(col)], std::sqrt(sum), 1e-12);
    }
}

spec::ModelSpec four_layers(const std::string& family = "llama") {
    spec::ModelSpec spec = tiny_spec(/*tied=*/family == "qwen3");
    spec.model_type = family;
    spec.num_layers = 4;
    spec.layers.assign(4, {});
    spec.qk_norm = family == "qwen3";
    spec.qkv_bias = spec.o_bias = spec.mlp_bias = family == "llama";
    return spec;
}

/// The written folder, read again, of a base of random weights.
struct Pruned {
    Pruned(const spec::ModelSpec& spec, const Pruning& pruning, std::size_t shard_bytes = default_shard_bytes) {
        write_model_folder(folder.path() / "base", spec, random_weights(spec));
        std::filesystem::create_directory(folder.path() / "pruned");
        base.emplace(WeightFile::open((folder.path() / "base").string()));
        write_model(MergedModel(*base, pruning), folder.path() / "pruned", {.shard_bytes = shard_bytes});
        pruned.emplace(WeightFile::open((folder.path() / "pruned").string()));
    }
    ScratchFolder folder;
    std::optional<WeightFile> base, pruned;
};

TEST(PrunedModel, HasTheRemainingLayersBitForBit) {
    for (const char* family : {"llama", "qwen3", "mistral"}) {
        const spec::ModelSpec spec = four_layers(family);
        const Pruned model(spec, {.layers = {0, 2, 3}}, /*shard_bytes=*/2000);  // several shards
        EXPECT_EQ(model.pruned->spec.num_layers, 3);
        EXPECT_EQ(model.pruned->spec.tie_word_embeddings, spec.tie_word_embeddings);
        EXPECT_GT(model.pruned->checkpoint.files().size(), 1U);
        for (const TensorSource& source : model.pruned->tensors.all()) {
            std::string name = source.rule.hf_name;
            const std::string here = cat("layers.", source.rule.id.layer, "."),
                              there = cat("layers.", source.rule.id.layer == 0 ? 0 : source.rule.id.layer + 1, ".");
            if (source.rule.id.layer >= 0) name.replace(name.find(here), here.size(), there);
            const TensorSource* const original = model.base->tensors.find(name);
            ASSERT_NE(original, nullptr) << name;
            EXPECT_TRUE(std::ranges::equal(source.tensor().data, original->tensor().data)) << family << " " << name;
        }
    }
}

TEST(PrunedModel, HasTheRemainingNeuronsOfEachLayer) {
    const spec::ModelSpec spec = four_layers();
    const Pruning pruning = {.layers = {1, 3}, .neurons = {{0, 7, 8, 39}, {1, 2, 20, 38}}};
    const Pruned model(spec, pruning);
    EXPECT_EQ(model.pruned->spec.intermediate_size, 4);
    for (int layer = 0; layer < 2; ++layer) {
        const auto of_base = static_cast<int>(pruning.layers[static_cast<std::size_t>(layer)]);
        const auto& kept = pruning.neurons[static_cast<std::size_t>(layer)];
        for (std::size_t k = 0; k < kept.size(); ++k) {
            for (const spec::Projection p : {spec::Projection::gate, spec::Projection::up}) {
                std::vector<float> found(24), expected(24), bias(4), biases(40);
                model.pruned->tensors.linear({layer, p})
                    .read_f32(static_cast<int64_t>(k), static_cast<int64_t>(k) + 1, found.data());
                model.base->tensors.linear({of_base, p}).read_f32(kept[k], kept[k] + 1, expected.data());
                EXPECT_EQ(found, expected);
                model.pruned->tensors.bias({layer, p})->read_f32(bias.data());
                model.base->tensors.bias({of_base, p})->read_f32(biases.data());
                EXPECT_EQ(bias[k], biases[static_cast<std::size_t>(kept[k])]);
            }
            const spec::Projection down = spec::Projection::down;
            const std::vector<float> found = floats_of(model.pruned->tensors.linear({layer, down}).tensor()),
                                     all = floats_of(model.base->tensors.linear({of_base, down}).tensor());
            for (std::size_t row = 0; row < 24; ++row)
                EXPECT_EQ(found[row * 4 + k], all[row * 40 + static_cast<std::size_t>(kept[k])]);
        }
        EXPECT_TRUE(std::ranges::equal(model.pruned->tensors.linear({layer, spec::Projection::o}).tensor().data,
                                       model.base->tensors.linear({of_base, spec::Projection::o}).tensor().data));
    }
}

TEST(PrunedModel, WindowsStayWithTheirLayers) {
    spec::ModelSpec spec = four_layers("qwen3");
    for (const std::size_t layer : {1, 3}) spec.layers[layer].window = 8;
    const Pruned model(spec, {.layers = {0, 1, 3}});
    std::vector<int64_t> windows;
    for (const spec::LayerSpec& layer : model.pruned->spec.layers) windows.push_back(layer.window);
    EXPECT_EQ(windows, (std::vector<int64_t>{0, 8, 8}));
    const auto config = nlohmann::json::parse(read_file(model.folder.path() / "pruned" / "config.json"));
    EXPECT_EQ(config["layer_types"],
              (std::vector<std::string>{"full_attention", "sliding_attention", "sliding_attention"}));
    EXPECT_EQ(config["num_hidden_layers"], 3);
    // Qwen2 and 2.5 name the first layer with a window alone.
    const std::string numbered = R"({"num_hidden_layers": 4, "max_window_layers": 2, "other": [1, 2, 3, 4]})";
    EXPECT_EQ(nlohmann::json::parse(pruned_config(numbered, {.layers = {0, 2}}, 4)),
              nlohmann::json::parse(R"({"num_hidden_layers": 2, "max_window_layers": 2, "other": [1, 2, 3, 4]})"));
}

TEST(PrunedModel, ListsOfLayersAreCutOrRefusedByName) {
    const std::string text = R"({"num_hidden_layers": 3, "no_rope_layers": [1, 0, 1]})";
    const auto config = nlohmann::json::parse(pruned_config(text, {.layers = {0, 1}}, 3));
    EXPECT_EQ(config["no_rope_layers"], (std::vector<int>{1, 0}));
    EXPECT_EQ(pruned_config(text, {.layers = {0, 1, 2}}, 3), text);
    try {
        (void)pruned_config(R"({"num_hidden_layers": 3, "moe_layers": [1]})", {.layers = {0, 1}}, 3);
        FAIL() << "which of them remain is not known";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("moe_layers has 1 entries for 3 layers"), std::string::npos)
            << error.what();
    }
}

}  // namespace
}  // namespace unsloth::formats
