#include "unsloth/spec/model_spec.h"
#include "common/files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"

namespace unsloth::spec {
namespace {

nlohmann::json golden(const std::string& name) {
    std::ifstream file(test::golden("rope") / name);
    return nlohmann::json::parse(file);
}

/// The bound of the golden files' README.
constexpr double tolerance = 5e-7;

ModelSpec rope_model(const nlohmann::json& config, int64_t head_dim) {
    ModelSpec spec;
    spec.head_dim = head_dim;
    spec.max_position_embeddings = config.at("max_position_embeddings");
    const auto& rope = config.at("rope_parameters");
    const std::string type = rope.at("rope_type");
    using Type = RopeSpec::Type;
    spec.ropes[0].type = type == "linear"     ? Type::linear
                         : type == "dynamic"  ? Type::dynamic
                         : type == "yarn"     ? Type::yarn
                         : type == "llama3"   ? Type::llama3
                         : type == "longrope" ? Type::longrope
                                              : Type::standard;
    spec.ropes[0].theta = rope.at("rope_theta");
    spec.ropes[0].factor = rope.value("factor", 1.0);
    spec.ropes[0].original_max_position_embeddings = rope.value("original_max_position_embeddings", int64_t{0});
    spec.ropes[0].low_freq_factor = rope.value("low_freq_factor", 1.0);
    spec.ropes[0].high_freq_factor = rope.value("high_freq_factor", 4.0);
    spec.ropes[0].beta_fast = rope.value("beta_fast", 32.0);
    spec.ropes[0].beta_slow = rope.value("beta_slow", 1.0);
    spec.ropes[0].truncate = rope.value("truncate", true);
    spec.ropes[0].short_factor = rope.value("short_factor", std::vector<double>{});
    spec.ropes[0].long_factor = rope.value("long_factor", std::vector<double>{});
    if (rope.contains("attention_factor")) spec.ropes[0].attention_factor = rope.at("attention_factor").get<double>();
    return spec;
}

void expect_frequencies(const RopeFrequencies& found, const nlohmann::json& inv_freq, double scaling,
                        const std::string& what) {
    ASSERT_EQ(found.inv_freq.size(), inv_freq.size()) << what;
    for (std::size_t i = 0; i < inv_freq.size(); ++i) {
        const double expected = inv_freq[i];
        EXPECT_NEAR(found.inv_freq[i], expected, tolerance * expected) << what << ", frequency " << i;
    }
    EXPECT_NEAR(found.attention_scaling, scaling, 1e-6) << what;
}

TEST(RopeFrequencies, AgreeWithTransformersAtPublishedShapes) {
    const auto cases = golden("rope.json");
    ASSERT_GE(cases.size(), 7U);
    for (const auto& [name, entry] : cases.items()) {
        const ModelSpec spec = rope_model(entry, entry.at("head_dim"));
        for (const auto& result : entry.at("results")) {
            const int64_t length = result.at("seq_len").is_null() ? 1 : result.at("seq_len").get<int64_t>();
            expect_frequencies(rope_frequencies(spec, length), result.at("inv_freq"), result.at("attention_scaling"),
                               name);
        }
    }
}

TEST(RopeFrequencies, AgreeWithTransformersForEveryType) {
    const auto types = golden("rope_types.json");
    ASSERT_EQ(types.size(), 6U);
    for (const auto& [name, entry] : types.items())
        expect_frequencies(rope_frequencies(rope_model(entry.at("config"), 32), 64), entry.at("inv_freq_used"),
                           entry.at("attention_scaling"), name);
}

TEST(RopeFrequencies, LongropeAgreesWithTransformersOnBothSidesOfTheTrainedLength) {
    const auto cases = golden("rope_longrope.json");
    ASSERT_EQ(cases.size(), 3U);
    for (const auto& [name, entry] : cases.items()) {
        const ModelSpec spec = rope_model(entry, entry.at("head_dim"));
        for (const auto& result : entry.at("results"))
            expect_frequencies(rope_frequencies(spec, result.at("seq_len")), result.at("inv_freq"),
                               result.at("attention_scaling"), name);
    }
}

TEST(RopeFrequencies, OnlyDynamicAndLongropeDependOnTheLength) {
    ModelSpec spec;
    spec.head_dim = 64;
    spec.max_position_embeddings = 128;
    spec.ropes[0].factor = 2.0;
    for (const auto type :
         {RopeSpec::Type::standard, RopeSpec::Type::linear, RopeSpec::Type::yarn, RopeSpec::Type::llama3}) {
        spec.ropes[0].type = type;
        EXPECT_EQ(rope_frequencies(spec, 10).inv_freq, rope_frequencies(spec, 1000).inv_freq);
    }
    spec.ropes[0].type = RopeSpec::Type::dynamic;
    EXPECT_EQ(rope_frequencies(spec, 10).inv_freq, rope_frequencies(spec, 128).inv_freq);
    EXPECT_NE(rope_frequencies(spec, 128).inv_freq, rope_frequencies(spec, 129).inv_freq);
}

TEST(RopeFrequencies, YarnTakesItsScalingFromTheTwoMscales) {
    ModelSpec spec;
    spec.head_dim = 32;
    spec.max_position_embeddings = 4096;
    spec.ropes[0] = {
        .type = RopeSpec::Type::yarn, .theta = 10000.0, .factor = 40.0, .mscale = 0.707, .mscale_all_dim = 1.0};
    const double expected = (0.1 * 0.707 * std::log(40.0) + 1.0) / (0.1 * std::log(40.0) + 1.0);
    EXPECT_NEAR(rope_frequencies(spec, 1).attention_scaling, expected, 1e-7);
    spec.ropes[0].mscale_all_dim = 0.0;  // as if it were absent
    EXPECT_NEAR(rope_frequencies(spec, 1).attention_scaling, 0.1 * std::log(40.0) + 1.0, 1e-6);
}

TEST(ModelSpec, KnowsTheShapesAndBiasesOfItsProjections) {
    ModelSpec spec;
    spec.hidden_size = 48;
    spec.intermediate_size = 100;
    spec.num_heads = 4;
    spec.num_kv_heads = 2;
    spec.head_dim = 16;  // q_size 64 differs from hidden_size
    std::vector<std::pair<int64_t, int64_t>> shapes;
    for (const Projection p : spec.linears) shapes.emplace_back(spec.out_features(p), spec.in_features(p));
    EXPECT_EQ(shapes, (std::vector<std::pair<int64_t, int64_t>>{
                          {64, 48}, {32, 48}, {32, 48}, {48, 64}, {100, 48}, {100, 48}, {48, 100}}));
    spec.qkv_bias = true;
    EXPECT_TRUE(spec.has_bias(Projection::q) && spec.has_bias(Projection::k) && spec.has_bias(Projection::v));
    EXPECT_FALSE(spec.has_bias(Projection::o) || spec.has_bias(Projection::gate) || spec.has_bias(Projection::down));
    spec.qkv_bias = false;
    spec.mlp_bias = true;
    EXPECT_TRUE(spec.has_bias(Projection::gate) && spec.has_bias(Projection::up) && spec.has_bias(Projection::down));
    EXPECT_FALSE(spec.has_bias(Projection::q) || spec.has_bias(Projection::o));
    spec.mlp_bias = false;
    spec.o_bias = true;
    EXPECT_TRUE(spec.has_bias(Projection::o));
    EXPECT_FALSE(spec.has_bias(Projection::down));
}

}  // namespace
}  // namespace unsloth::spec
