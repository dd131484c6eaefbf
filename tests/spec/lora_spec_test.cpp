#include "unsloth/spec/lora_spec.h"

#include <gtest/gtest.h>

#include <cmath>

#include "unsloth/core/error.h"

namespace unsloth::spec {
namespace {

ModelSpec model() {
    ModelSpec spec;
    spec.num_layers = 12;
    spec.layers.resize(12);
    return spec;
}

LoraSpec all_linears() {
    LoraSpec lora;
    lora.r = 4;
    lora.lora_alpha = 8;
    lora.target_modules.assign(projection_names.begin(), projection_names.begin() + separate_projections);
    return lora;
}

const LoraModule& at(const std::vector<LayerLora>& layers, int layer, Projection p) {
    return layers.at(static_cast<std::size_t>(layer))[p];
}

void expect_usage_error(const LoraSpec& lora, const std::string& word) {
    try {
        resolve_lora(lora, model());
        FAIL() << "accepted; expected an error about " << word;
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
}

TEST(ResolveLora, ScalesByRankOrByItsRoot) {
    LoraSpec lora = all_linears();
    EXPECT_EQ(at(resolve_lora(lora, model()), 3, Projection::up).scale, 2.0);
    lora.use_rslora = true;
    EXPECT_EQ(at(resolve_lora(lora, model()), 3, Projection::up).scale, 4.0);
}

TEST(ResolveLora, GivesAdaptersToTheTargetsOnly) {
    LoraSpec lora = all_linears();
    lora.target_modules = {"q_proj", "v_proj"};
    const auto layers = resolve_lora(lora, model());
    ASSERT_EQ(layers.size(), 12U);
    for (const LayerLora& layer : layers)
        for (const Projection p : model().linears)
            EXPECT_EQ(layer[p].r, p == Projection::q || p == Projection::v ? 4 : 0);
}

TEST(ResolveLora, MatchesWholePathsAndEndsAtADot) {
    LoraSpec lora = all_linears();
    lora.target_modules = {"model.layers.3.self_attn.q_proj", "mlp.up_proj"};
    lora.layers_to_transform = {1};
    const auto layers = resolve_lora(lora, model());
    EXPECT_EQ(at(layers, 3, Projection::q).r, 4);  // a whole path is taken whatever layers_to_transform says
    EXPECT_EQ(at(layers, 1, Projection::q).r, 0);
    EXPECT_EQ(at(layers, 1, Projection::up).r, 4);
    EXPECT_EQ(at(layers, 3, Projection::up).r, 0);
}

TEST(ResolveLora, TakesATargetExpression) {
    LoraSpec lora = all_linears();
    lora.target_modules = {R"(.*\.layers\.(1|11)\.self_attn\.(q|k)_proj)"};
    lora.target_is_regex = true;
    const auto layers = resolve_lora(lora, model());
    EXPECT_EQ(at(layers, 1, Projection::q).r, 4);
    EXPECT_EQ(at(layers, 11, Projection::k).r, 4);
    EXPECT_EQ(at(layers, 0, Projection::q).r, 0);
    EXPECT_EQ(at(layers, 1, Projection::v).r, 0);
    lora.target_modules = {"self_attn.q_proj"};  // it must match a whole path
    expect_usage_error(lora, "self_attn.q_proj");
}

TEST(ResolveLora, TakesTheFirstPatternThatMatches) {
    LoraSpec lora = all_linears();
    lora.rank_pattern = {{"layers.1.mlp.down_proj", 2}, {"down_proj", 6}, {R"(.*\.[0-3]\.self_attn\.q_proj)", 16}};
    lora.alpha_pattern = {{"q_proj|v_proj", 3}, {"v_proj", 100}};
    const auto layers = resolve_lora(lora, model());
    EXPECT_EQ(at(layers, 1, Projection::down).r, 2);
    EXPECT_EQ(at(layers, 1, Projection::down).scale, 4.0);
    EXPECT_EQ(at(layers, 11, Projection::down).r, 6) << "layers.1 must not match layers.11";
    EXPECT_EQ(at(layers, 3, Projection::q).r, 16);
    EXPECT_EQ(at(layers, 4, Projection::q).r, 4);
    EXPECT_EQ(at(layers, 0, Projection::v).alpha, 3);
    EXPECT_EQ(at(layers, 0, Projection::k).alpha, 8);
}

TEST(ResolveLora, MatchesAKeyAtADotOnly) {
    LoraSpec lora = all_linears();
    lora.rank_pattern = {{"_proj", 2}, {"proj", 3}, {"^model.layers.0.mlp.up_proj", 5}};
    const auto layers = resolve_lora(lora, model());
    EXPECT_EQ(at(layers, 0, Projection::q).r, 4);
    EXPECT_EQ(at(layers, 0, Projection::up).r, 5);
}

TEST(ResolveLora, RefusesWhatCannotBe) {
    auto changed = [](auto&& change) {
        LoraSpec lora = all_linears();
        change(lora);
        return lora;
    };
    expect_usage_error(changed([](LoraSpec& lora) { lora.r = 0; }), "lora.r");
    expect_usage_error(changed([](LoraSpec& lora) { lora.lora_dropout = 1.0; }), "lora_dropout");
    expect_usage_error(changed([](LoraSpec& lora) { lora.lora_alpha = NAN; }), "lora_alpha");
    expect_usage_error(changed([](LoraSpec& lora) { lora.target_modules = {}; }), "target_modules");
    expect_usage_error(changed([](LoraSpec& lora) { lora.target_modules = {"q_proj", "query"}; }), "query");
    expect_usage_error(changed([](LoraSpec& lora) { lora.target_modules = {"proj"}; }), "proj");
    expect_usage_error(changed([](LoraSpec& lora) { lora.modules_to_save = {"norm"}; }), "norm");
    expect_usage_error(changed([](LoraSpec& lora) { lora.layers_to_transform = {12}; }), "12");
    expect_usage_error(changed([](LoraSpec& lora) { lora.layers_to_transform = {-1}; }), "-1");
    expect_usage_error(changed([](LoraSpec& lora) { lora.rank_pattern = {{"q_proj", 0}}; }), "rank_pattern");
    expect_usage_error(changed([](LoraSpec& lora) { lora.rank_pattern = {{"q_proj(", 2}}; }), "q_proj(");
    expect_usage_error(changed([](LoraSpec& lora) { lora.alpha_pattern = {{"[", 2}}; }), "alpha_pattern");
}

TEST(ResolveLora, RefusesPatternsThatServeNothing) {
    const auto refused = [](const LoraSpec& lora) {
        try {
            refuse_idle_patterns(lora, model());
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::usage);
            return std::string(error.what());
        }
        return std::string();
    };
    const auto expect = [&](const std::string& key, const std::string& words, auto&& change) {
        LoraSpec lora = all_linears();
        change(lora);
        for (const bool ranks : {true, false}) {
            LoraSpec one = lora;
            if (ranks)
                one.rank_pattern.emplace_back(key, 7);
            else
                one.alpha_pattern.emplace_back(key, 7);
            const std::string said = refused(one);
            const std::string place = std::string(ranks ? "lora.rank_pattern" : "lora.alpha_pattern") + ": '" + key;
            EXPECT_EQ(said.substr(0, said.find('\n')).substr(0, (place + "' " + words).size()),
                      words.empty() ? "" : place + "' " + words);
        }
    };
    const auto as_it_is = [](LoraSpec&) {};
    for (const char* key : {"qproj", "^q_proj", "base_model.model.model.layers.0.self_attn.q_proj", "layers.12.mlp",
                            "layers.12.self_attn.q_proj", "lm_head"})
        expect(key, "matches no module of this model", as_it_is);
    for (const char* key : {"q_proj", R"(layers\.[0-3]\.mlp\..*)", "model.layers.11.mlp.up_proj"})
        expect(key, "", as_it_is);
    expect("o_proj", "matches modules without an adapter", [](LoraSpec& lora) { lora.target_modules = {"q_proj"}; });
    expect("layers.3.mlp.up_proj", "matches modules without an adapter",
           [](LoraSpec& lora) { lora.layers_to_transform = {1}; });
    expect("layers.1.self_attn.q_proj", "never counts", [](LoraSpec& lora) {
        lora.rank_pattern = {{"q_proj", 2}};
        lora.alpha_pattern = {{"q_proj", 2}};
    });
    EXPECT_NO_THROW(resolve_lora(all_linears(), model()));
}

TEST(ResolveLora, ReadsExpressionsAsPythonDoes) {
    LoraSpec lora = all_linears();
    lora.target_modules = {R"(.*\.layers\.(?P<layer>0)\.self_attn\.(?!k_)._proj)"};
    lora.target_is_regex = true;
    const auto layers = resolve_lora(lora, model());
    EXPECT_EQ(at(layers, 0, Projection::q).r, 4);
    EXPECT_EQ(at(layers, 0, Projection::k).r, 0);
    EXPECT_EQ(at(layers, 1, Projection::q).r, 0);
}

TEST(ResolveLora, AllProjectionsAreThoseOfAModelWithFusedOnes) {
    ModelSpec fused = model();
    fused.linears = {Projection::qkv, Projection::o, Projection::gate_up, Projection::down};
    const LoraSpec own = for_model(all_linears(), fused);
    EXPECT_EQ(own.target_modules, (std::vector<std::string>{"o_proj", "down_proj", "qkv_proj", "gate_up_proj"}));
    const auto layers = resolve_lora(all_linears(), fused);
    for (const Projection p : fused.linears) EXPECT_EQ(at(layers, 11, p).r, 4);
    EXPECT_EQ(for_model(all_linears(), model()).target_modules, all_linears().target_modules);
    LoraSpec part = all_linears();
    part.target_modules = {"q_proj", "v_proj"};
    try {
        resolve_lora(part, fused);
        FAIL() << "two of three projections have no matrix of their own";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("qkv_proj, o_proj, gate_up_proj, down_proj"), std::string::npos);
    }
}

TEST(ResolveLora, TargetsOfAPartLeaveOtherPartsAlone) {
    ModelSpec part = model();
    part.part_of = "gemma3";
    LoraSpec asked = all_linears();
    asked.target_modules = {"q_proj", "down_proj"};
    asked.layers_to_transform = {1, 11};
    const LoraSpec own = for_model(asked, part);
    EXPECT_TRUE(own.target_is_regex);
    EXPECT_EQ(own.target_modules,
              std::vector<std::string>{R"(.*language_model\.layers\.(1|11)\..*(q_proj|down_proj))"});
    const auto listed = resolve_lora(asked, part), expressed = resolve_lora(own, part);
    for (int layer = 0; layer < 12; ++layer)
        for (const Projection p : part.linears) {
            const bool wanted = (layer == 1 || layer == 11) && (p == Projection::q || p == Projection::down);
            EXPECT_EQ(at(listed, layer, p).r, wanted ? 4 : 0);
            EXPECT_EQ(at(expressed, layer, p).r, wanted ? 4 : 0);
        }
}

TEST(ResolveLora, AdaptsExpertsByTheirTensors) {
    ModelSpec experts = model();
    experts.layers.assign(12, {.experts = true});
    experts.layers[0].experts = false;
    experts.experts = {.count = 4, .top_k = 2, .intermediate_size = 8};
    LoraSpec lora = all_linears();
    EXPECT_THROW(resolve_lora(lora, experts), Error) << "gate_proj is one matrix of many";
    lora.usual_targets = true;
    const auto usual = resolve_lora(lora, experts);
    EXPECT_EQ(at(usual, 1, Projection::q).r, 4);
    EXPECT_EQ(at(usual, 0, Projection::gate).r, 0);
    EXPECT_EQ(at(usual, 1, Projection::experts_gate_up).r, 0);
    EXPECT_EQ(for_model(lora, experts).target_modules,
              (std::vector<std::string>{"q_proj", "k_proj", "v_proj", "o_proj"}));
    lora.target_parameters = {"gate_up_proj", "mlp.experts.gate_up_proj", "layers.3.mlp.experts.down_proj"};
    lora.rank_pattern = {{R"(.*\.gate_up_proj)", 6}};
    const auto layers = resolve_lora(lora, experts);
    EXPECT_EQ(at(layers, 0, Projection::experts_gate_up).r, 0);
    EXPECT_EQ(at(layers, 1, Projection::experts_gate_up).r, 6);
    EXPECT_EQ(at(layers, 1, Projection::experts_down).r, 0);
    EXPECT_EQ(at(layers, 3, Projection::experts_down).r, 4);
    EXPECT_TRUE(layers[3].is_within(Projection::experts_gate_up));
    EXPECT_FALSE(layers[1].is_within(Projection::experts_gate_up));
    const auto refused = [](LoraSpec asked, const ModelSpec& of) { EXPECT_THROW(resolve_lora(asked, of), Error); };
    refused(lora, model());
    lora.lora_dropout = 0.1;
    refused(lora, experts);
    lora.lora_dropout = 0;
    lora.target_parameters = {"mlp.gate.weight"};
    refused(lora, experts);
}

// An adapter_config.json may come from anyone. Each of these ran for hours, or off the stack.
TEST(ResolveLora, PatternsTakeABoundedTimeAndNoStack) {
    const auto with_pattern = [](const std::string& key) {
        LoraSpec lora = all_linears();
        lora.rank_pattern = {{key, 2}};
        return lora;
    };
    expect_usage_error(with_pattern("(.*)*[!?]"), "cannot be matched");
    expect_usage_error(with_pattern("([a-z._0-9]+)+[!?]"), "cannot be matched");
    expect_usage_error(with_pattern(std::string(100000, '(') + "a" + std::string(100000, ')')),
                       "no valid regular expression");
    LoraSpec lora = all_linears();
    lora.target_modules = {std::string(1000000, 'a')};
    lora.target_is_regex = true;
    expect_usage_error(lora, "target_modules");
}

}  // namespace
}  // namespace unsloth::spec
