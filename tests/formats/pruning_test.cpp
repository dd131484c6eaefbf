#include "unsloth/formats/pruning.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/model_support.h"
#include "unsloth/core/files.h"
#include "unsloth/formats/model_writer.h"
#include "unsloth/formats/random_model.h"

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

/// Six experts in the layers that have some, of which a token passes two.
const char* const moe = R"({"model_type": "qwen3_moe", "hidden_size": 32, "intermediate_size": 40,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 50,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "num_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "mlp_only_layers": [1], "norm_topk_prob": true, "torch_dtype": "bfloat16"})";
const char* const gpt_oss = R"({"model_type": "gpt_oss", "hidden_size": 32, "intermediate_size": 32,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 50,
    "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 8, "torch_dtype": "bfloat16"})";

std::vector<float> all_values(const TensorSource& source) {
    std::vector<float> values(static_cast<std::size_t>(source.rows() * source.cols()));
    source.read_f32(values.data());
    return values;
}

/// Some of a tensor's rows, or of a vector's elements.
std::vector<float> some_rows(const std::vector<float>& values, std::size_t count, const std::vector<int64_t>& kept) {
    const std::size_t width = values.size() / count;
    std::vector<float> some;
    for (const int64_t row : kept) {
        const auto first = values.begin() + row * static_cast<std::ptrdiff_t>(width);
        some.insert(some.end(), first, first + static_cast<std::ptrdiff_t>(width));
    }
    return some;
}

/// The tensor of the base that a pruned model's is, or is a part of.
const TensorSource& original_of(const WeightFile& base, spec::TensorRule rule, const Pruning& pruning) {
    if (rule.id.expert >= 0) {
        const auto layer = static_cast<std::size_t>(rule.id.layer);
        rule.id.expert = static_cast<int>(pruning.experts[layer][static_cast<std::size_t>(rule.id.expert)]);
    }
    if (rule.role == spec::TensorRole::linear) return base.tensors.linear(rule.id);
    if (rule.role == spec::TensorRole::bias) return *base.tensors.bias(rule.id);
    return base.tensors.of(rule.role, rule.id.layer);
}

TEST(PrunedModel, HasTheRemainingExpertsOfEachLayer) {
    for (const char* const config : {moe, gpt_oss}) {
        const spec::ModelSpec spec = parse_model_spec(config, "a test");
        const bool dense = !spec.has_experts(1);
        const Pruning pruning = {
            .layers = {0, 1, 2},
            .neurons = {},
            .experts = {{0, 2, 5}, dense ? std::vector<int64_t>() : std::vector<int64_t>{3, 4, 5}, {1, 2, 3}},
            .zero = {}};
        const ScratchFolder folder;
        for (const char* const name : {"base", "pruned"}) std::filesystem::create_directory(folder / name);
        write_random_model({.spec = spec, .seed = 5}, folder / "base");
        const WeightFile base = WeightFile::open((folder / "base").string());
        write_model(MergedModel(base, pruning), folder / "pruned", {.shard_bytes = 4000});
        const WeightFile pruned = WeightFile::open((folder / "pruned").string());
        ASSERT_EQ(pruned.spec.experts->count, 3);
        EXPECT_EQ(pruned.spec.experts->top_k, 2);
        EXPECT_EQ(pruned.spec.layers, spec.layers);
        EXPECT_EQ(pruned.spec.intermediate_size, spec.intermediate_size);
        int64_t routers = 0;
        for (const TensorSource& source : pruned.tensors.all()) {
            std::vector<float> expected = all_values(original_of(base, source.rule, pruning));
            const bool router =
                source.rule.role == spec::TensorRole::router || source.rule.role == spec::TensorRole::router_bias;
            if (router)
                expected = some_rows(expected, 6, pruning.experts[static_cast<std::size_t>(source.rule.id.layer)]);
            EXPECT_EQ(all_values(source), expected) << source.rule.hf_name;
            routers += router;
        }
        EXPECT_EQ(routers, dense ? 2 : 6);
        const auto written = nlohmann::json::parse(read_file(folder / "pruned" / "config.json"));
        EXPECT_EQ(written[dense ? "num_experts" : "num_local_experts"], 3);
        EXPECT_EQ(written.value("mlp_only_layers", std::vector<int>{1}), std::vector<int>{1});
    }
}

/// Of each tensor of a folder, but for those that hold all experts, the bytes; of these the kept experts'.
TEST(PrunedModel, KeepsTheBytesOfExpertsInMxfp4) {
    const spec::ModelSpec spec = parse_model_spec(gpt_oss, "a test");
    const Pruning pruning = {
        .layers = {0, 1, 2}, .neurons = {}, .experts = {{0, 2, 5}, {3, 4, 5}, {1, 2, 3}}, .zero = {}};
    const ScratchFolder folder;
    for (const char* const name : {"base", "pruned"}) std::filesystem::create_directory(folder / name);
    write_random_model({.spec = spec, .seed = 5, .original_config = {}, .mxfp4 = true}, folder / "base");
    const WeightFile base = WeightFile::open((folder / "base").string());
    write_model(MergedModel(base, pruning), folder / "pruned", {});
    const auto config_of = [&](const char* name) {
        return nlohmann::json::parse(read_file(folder / name / "config.json"));
    };
    EXPECT_EQ(config_of("pruned")["quantization_config"], config_of("base")["quantization_config"]);
    const SafetensorsFile before(folder / "base/model.safetensors"), after(folder / "pruned/model.safetensors");
    ASSERT_EQ(after.tensors().size(), before.tensors().size());
    int64_t blocks = 0;
    for (const TensorView& tensor : after.tensors()) {
        const TensorView* const original = before.find(tensor.name);
        ASSERT_NE(original, nullptr) << tensor.name;
        EXPECT_EQ(tensor.dtype, original->dtype);
        std::vector<std::byte> expected(original->data.begin(), original->data.end());
        if (tensor.shape != original->shape) {
            const auto layer = static_cast<std::size_t>(tensor.name[std::string("model.layers.").size()] - '0');
            const std::size_t each = original->data.size() / 6;
            expected.clear();
            for (const int64_t expert : pruning.experts[layer]) {
                const auto part = original->data.subspan(static_cast<std::size_t>(expert) * each, each);
                expected.insert(expected.end(), part.begin(), part.end());
            }
            EXPECT_EQ(tensor.shape.front(), 3);
        }
        EXPECT_TRUE(std::ranges::equal(tensor.data, expected)) << tensor.name;
        blocks += tensor.name.ends_with("_blocks");
    }
    EXPECT_EQ(blocks, 6);
    EXPECT_TRUE(WeightFile::open((folder / "pruned").string()).tensors.quantised_linears() > 0);
}

TEST(PrunedModel, LayersWithoutExpertsKeepTheirPlaces) {
    const spec::ModelSpec spec = parse_model_spec(moe, "a test");
    const ScratchFolder folder;
    for (const char* const name : {"base", "one", "dense"}) std::filesystem::create_directory(folder / name);
    write_random_model({.spec = spec, .seed = 5}, folder / "base");
    const WeightFile base = WeightFile::open((folder / "base").string());
    write_model(MergedModel(base, {.layers = {1, 2}}), folder / "one", {});
    const WeightFile one = WeightFile::open((folder / "one").string());
    EXPECT_EQ(one.spec.layers, (std::vector<spec::LayerSpec>{spec.layers[1], spec.layers[2]}));
    EXPECT_EQ(all_values(one.tensors.linear({1, spec::Projection::down, 4})),
              all_values(base.tensors.linear({2, spec::Projection::down, 4})));
    write_model(MergedModel(base, {.layers = {1}}), folder / "dense", {});
    EXPECT_FALSE(WeightFile::open((folder / "dense").string()).spec.experts);
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
