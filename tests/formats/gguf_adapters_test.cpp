// Experts and adapters as GGUF files.
#include <cmath>
#include <cstring>
#include <span>

#include "formats/gguf_support.h"

namespace unsloth::formats {
namespace {

using namespace test;

const std::vector<std::pair<const char*, spec::Projection>> expert_parts = {{"ffn_gate_exps", spec::Projection::gate},
                                                                            {"ffn_up_exps", spec::Projection::up},
                                                                            {"ffn_down_exps", spec::Projection::down}};

void expect_adapters_of_experts(const spec::ModelSpec& spec, const ScratchFolder& folder,
                                const GgufExportOptions& options) {
    const spec::ExpertsSpec& experts = *spec.experts;
    PeftConfig adapter_config;
    adapter_config.lora.r = 2;
    adapter_config.lora.lora_alpha = 6;
    adapter_config.lora.target_modules = {"q_proj"};
    adapter_config.lora.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
    std::vector<TensorBlob> blobs;
    for (const TensorDecl& decl : adapter_tensors(adapter_config.lora, spec)) {
        std::vector<float> values(decl.bytes() / sizeof(float));
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(blobs.size() * 100000 + i);
        const auto bytes = std::as_bytes(std::span(values));
        blobs.push_back({decl, {bytes.begin(), bytes.end()}});
    }
    write_text(folder / "adapter/adapter_config.json", write_peft_config(adapter_config));
    write_safetensors(folder / "adapter/adapter_model.safetensors", blobs);
    const Adapter adapter = read_adapter(folder / "adapter", spec);
    export_adapter_gguf(adapter, spec, folder / "a.gguf", options);
    const GgufFile exported(folder / "a.gguf");
    for (const auto& [name, projection] : expert_parts) {
        const bool down = projection == spec::Projection::down;
        const spec::LinearId id{1, down ? spec::Projection::experts_down : spec::Projection::experts_gate_up};
        const std::string weight = cat("blk.1.", name, ".weight");
        const int64_t n = spec.out_features({1, projection, 0}), k = spec.in_features({1, projection, 0});
        const std::vector<int64_t> of_a = {experts.count, 2, k}, of_b = {experts.count, n, 2};
        EXPECT_EQ(exported.find_tensor(weight + ".lora_a")->shape, of_a);
        EXPECT_EQ(exported.find_tensor(weight + ".lora_b")->shape, of_b);
        const std::vector<float> a = floats(exported, weight + ".lora_a"), b = floats(exported, weight + ".lora_b");
        EXPECT_TRUE(std::memcmp(a.data(), adapter.a(id).data.data(), adapter.a(id).data.size()) == 0) << name;
        std::vector<float> all(static_cast<std::size_t>(adapter.b(id).elements()));
        std::memcpy(all.data(), adapter.b(id).data.data(), adapter.b(id).data.size());
        const int64_t first = projection == spec::Projection::up ? n : 0;
        for (int64_t e = 0; e < experts.count; ++e)
            for (int64_t row = 0; row < n; ++row)
                for (int64_t j = 0; j < 2; ++j)
                    ASSERT_EQ(b[static_cast<std::size_t>((e * n + row) * 2 + j)],
                              all[static_cast<std::size_t>(((first + row) * 2 + j) * experts.count + e)])
                        << name << " " << e << " " << row;
    }
}

/// Rows of all experts one after the other, and of an adapter gate's and up's parts of B with the A that both have.
TEST_F(GgufExport, WritesTheExpertsOfALayerAsOne) {
    nlohmann::json config = golden_json("families/qwen3_moe/model/config.json");
    config["dtype"] = "float32";
    config["mlp_only_layers"] = nlohmann::json::array();
    const spec::ModelSpec spec = parse_model_spec(config.dump(), "config");
    write_model(folder_.path(), spec);
    write_text(folder_ / "config.json", config.dump());
    const WeightFile model = WeightFile::open(folder_.path().string());
    export_model_gguf(model, small_vocabulary(), out_, f32_);
    const GgufFile file(out_);
    const spec::ExpertsSpec& experts = *spec.experts;
    EXPECT_EQ(file.find_field("general.architecture")->text(), "qwen3moe");
    EXPECT_EQ(file.find_field("qwen3moe.expert_count")->integer(), experts.count);
    EXPECT_EQ(file.find_field("qwen3moe.expert_used_count")->integer(), experts.top_k);
    EXPECT_EQ(file.find_field("qwen3moe.expert_feed_forward_length")->integer(), experts.intermediate_size);
    EXPECT_EQ(file.find_tensor("blk.3.ffn_gate_inp.weight")->shape,
              (std::vector<int64_t>{experts.count, spec.hidden_size}));
    for (const auto& [name, projection] : expert_parts) {
        std::vector<float> expected;
        for (int e = 0; e < experts.count; ++e) {
            const TensorSource& source = model.tensors.linear({2, projection, e});
            std::vector<float> values(static_cast<std::size_t>(source.rows() * source.cols()));
            source.read_f32(values.data());
            expected.insert(expected.end(), values.begin(), values.end());
        }
        EXPECT_EQ(floats(file, cat("blk.2.", name, ".weight")), expected) << name;
    }
    // llama-quantize's choice where there are eight experts
    const auto type_of = [&](spec::Projection p, int expert, GgufFileType type) {
        spec::TensorRule rule{.role = spec::TensorRole::linear, .shape = {256, 256}};
        rule.id = {0, p, expert};
        return std::string(info_of(wanted_type(spec, rule, type)).name);
    };
    EXPECT_EQ(type_of(spec::Projection::v, -1, GgufFileType::q4_0), "Q8_0");
    EXPECT_EQ(type_of(spec::Projection::k, -1, GgufFileType::f16), "F16");
    EXPECT_EQ(type_of(spec::Projection::o, -1, GgufFileType::q4_k_m), "Q5_K");
    EXPECT_EQ(type_of(spec::Projection::o, -1, GgufFileType::q5_k_m), "Q5_K");
    EXPECT_EQ(type_of(spec::Projection::down, 3, GgufFileType::q4_k_m), "Q4_K");
    expect_adapters_of_experts(spec, folder_, f32_);
    for (const auto& [key, value] :
         {std::pair<const char*, nlohmann::json>{"mlp_only_layers", nlohmann::json::array({0})},
          std::pair<const char*, nlohmann::json>{"norm_topk_prob", false}}) {
        nlohmann::json other = config;
        other[key] = value;
        const fs::path folder = folder_ / key;
        write_model(folder, parse_model_spec(other.dump(), "config"));
        write_text(folder / "config.json", other.dump());
        expect_error("export.unsupported", {"qwen3moe", key}, [&] {
            export_model_gguf(WeightFile::open(folder.string()), small_vocabulary(), folder / "m.gguf", f32_);
        });
    }
}

/// The product that llama.cpp makes of an adapter's file, alpha / r · B · A, against PEFT's scale · B · A.
void compare_scales(const fs::path& adapter_folder, const spec::ModelSpec& spec, const fs::path& out, bool folded) {
    const Adapter adapter = read_adapter(adapter_folder, spec);
    export_adapter_gguf(adapter, spec, out, {GgufFileType::f32, "name"});
    const GgufFile file(out);
    EXPECT_EQ(file.find_field("general.type")->text(), "adapter");
    EXPECT_EQ(file.find_field("adapter.type")->text(), "lora");
    const auto alpha = static_cast<float>(*file.find_field("adapter.lora.alpha")->number());
    bool any_folded = false;
    for (std::size_t layer = 0; layer < adapter.layers.size(); ++layer) {
        const spec::LoraModule& module = adapter.layers[layer][spec::Projection::v];
        if (module.r == 0) continue;
        const std::string name = cat("blk.", layer, ".attn_v.weight");
        const TensorView& b = adapter.b({static_cast<int>(layer), spec::Projection::v});
        std::vector<float> expected(static_cast<std::size_t>(b.elements()));
        spec::convert_to_f32(b.dtype, b.data.data(), b.elements(), expected.data());
        const std::vector<float> values = floats(file, name + ".lora_b");
        ASSERT_EQ(values.size(), expected.size());
        EXPECT_EQ(file.find_tensor(name + ".lora_b")->shape, b.shape);
        for (std::size_t i = 0; i < values.size(); ++i)
            EXPECT_NEAR(values[i] * alpha / static_cast<float>(module.r), expected[i] * module.scale,
                        1e-6 * std::abs(expected[i] * module.scale));
        any_folded = any_folded || values != expected;
    }
    EXPECT_EQ(any_folded, folded);
}

TEST_F(GgufExport, KeepsAnAdaptersScales) {
    const spec::ModelSpec spec = read_model_spec(golden("formats/small_llama/nf4_dq"));
    compare_scales(golden("formats/adapters/patterns"), spec, folder_ / "patterns.gguf", true);
    fs::copy(golden("formats/adapters/patterns"), folder_ / "rslora");
    auto config = golden_json("formats/adapters/patterns/adapter_config.json");
    config["use_rslora"] = true;
    config["alpha_pattern"] = nlohmann::json::object();
    write_text(folder_ / "rslora/adapter_config.json", config.dump());
    compare_scales(folder_ / "rslora", spec, folder_ / "rslora.gguf", true);
}

TEST_F(GgufExport, RefusesAdaptersInFourBits) {
    const spec::ModelSpec spec = read_model_spec(golden("formats/small_llama/nf4_dq"));
    const Adapter adapter = read_adapter(golden("formats/adapters/patterns"), spec);
    expect_error("option.unsupported", {"f32, f16, bf16 or q8_0", "Merge"},
                 [&] { export_adapter_gguf(adapter, spec, out_, {GgufFileType::q4_0, "name"}); });
}

}  // namespace
}  // namespace unsloth::formats
