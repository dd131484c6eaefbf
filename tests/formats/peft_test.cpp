#include "unsloth/formats/peft.h"

#include "formats/support.h"
#include "unsloth/formats/hf_config.h"

#include <array>
#include <cmath>
#include <span>

namespace unsloth::formats {
namespace {

using namespace test;
using nlohmann::json;

spec::ModelSpec small_llama() {
    return read_model_spec(golden("formats/small_llama/nf4_dq"));
}

PeftConfig peft_config(const json& config) {
    return parse_peft_config(config.dump(), "adapter_config.json");
}
json changed(const json& changes) {
    json config = golden_json("formats/adapters/patterns/adapter_config.json");
    config.update(changes);
    return config;
}

TEST(PeftConfig, RoundTripsByteForByte) {
    for (const char* const variant : {"lora", "rslora", "patterns", "modules_to_save"}) {
        const fs::path folder = golden(cat("formats/adapters/", variant));
        EXPECT_EQ(write_peft_config(read_peft_config(folder)), read_file(folder / "adapter_config.json")) << variant;
    }
}

TEST(PeftConfig, ReadsWhatPeftWrote) {
    const PeftConfig config = read_peft_config(golden("formats/adapters/patterns"));
    EXPECT_EQ(config.base_model_name_or_path, "small_llama/nf4_dq");
    EXPECT_EQ(config.lora.r, 4);
    EXPECT_EQ(config.lora.lora_alpha, 8.0);
    EXPECT_EQ(config.lora.layers_to_transform, std::vector<int64_t>{1});
    EXPECT_EQ(config.lora.rank_pattern,
              (std::vector<std::pair<std::string, int64_t>>{{"layers.1.mlp.down_proj", 2}, {"q_proj", 6}}));
    EXPECT_EQ(config.lora.alpha_pattern, (std::vector<std::pair<std::string, double>>{{"q_proj", 3}, {"v_proj", 20}}));
    EXPECT_TRUE(read_peft_config(golden("formats/adapters/rslora")).lora.use_rslora);
    EXPECT_EQ(read_peft_config(golden("formats/adapters/modules_to_save")).lora.modules_to_save,
              (std::vector<std::string>{"embed_tokens", "lm_head"}));
}

TEST(PeftConfig, KeepsTheOrderOfPatterns) {
    const std::string text =
        R"({"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"], "rank_pattern": {"q_proj": 8, ".*": 1}})";
    const PeftConfig config = parse_peft_config(text, "adapter_config.json");
    EXPECT_EQ(config.lora.rank_pattern[0].first, "q_proj");
    EXPECT_EQ(parse_peft_config(write_peft_config(config), "written").lora.rank_pattern, config.lora.rank_pattern);
}

TEST(PeftConfig, ReadsTheOtherFormsOfTargets) {
    EXPECT_EQ(peft_config(changed({{"target_modules", "all-linear"}})).lora.target_modules.size(), 7U);
    const PeftConfig expression =
        peft_config(changed({{"target_modules", ".*q_proj"}, {"layers_to_transform", nullptr}}));
    EXPECT_TRUE(expression.lora.target_is_regex);
    EXPECT_EQ(json::parse(write_peft_config(expression)).at("target_modules"), ".*q_proj");
    EXPECT_EQ(peft_config(changed({{"layers_to_transform", 1}})).lora.layers_to_transform, std::vector<int64_t>{1});
    PeftConfig odd = expression;
    odd.lora.lora_alpha = 2.5;
    odd.lora.lora_dropout = 0.05;
    odd.base_model_name_or_path = "a \"quoted\" \xc3\xa9";
    const PeftConfig back = parse_peft_config(write_peft_config(odd), "written");
    EXPECT_EQ(back.lora.lora_alpha, 2.5);
    EXPECT_EQ(back.lora.lora_dropout, 0.05);
    EXPECT_EQ(back.base_model_name_or_path, odd.base_model_name_or_path);
}

TEST(PeftConfig, DoraComesBackWithAMagnitudeForEachModule) {
    const PeftConfig dora = read_peft_config(golden("formats/adapters/dora"));
    EXPECT_TRUE(dora.lora.use_dora);
    EXPECT_EQ(write_peft_config(dora), read_file(golden("formats/adapters/dora/adapter_config.json")));
    const spec::ModelSpec spec = small_llama();
    const auto tensors = adapter_tensors(dora.lora, spec);
    ASSERT_EQ(tensors.size(), static_cast<std::size_t>(3 * 7 * spec.num_layers));
    EXPECT_EQ(tensors[2].name, "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector");
    EXPECT_EQ(tensors[2].shape, std::vector<int64_t>{spec.out_features(spec::Projection::q)});
}

TEST(PeftConfig, RefusesByNameWhatItDoesNotTrain) {
    const auto refuse = [](const json& changes, const std::string& word) {
        expect_error("json.wrong-value", {"adapter_config.json", word}, [&] { peft_config(changed(changes)); });
    };
    refuse({{"bias", "all"}}, "bias");
    refuse({{"fan_in_fan_out", true}}, "fan_in_fan_out");
    refuse({{"peft_type", "IA3"}}, "IA3");
    refuse({{"peft_type", nullptr}}, "peft_type");
    refuse({{"task_type", "SEQ_CLS"}}, "task_type");
    refuse({{"lora_bias", true}}, "lora_bias");
    refuse({{"init_lora_weights", "pissa"}}, "pissa");
    refuse({{"trainable_token_indices", {1, 2}}}, "trainable_token_indices");
    refuse({{"target_modules", nullptr}}, "target_modules");
    refuse({{"target_modules", {1}}}, "target_modules");
    refuse({{"r", "8"}}, "r: expected");
    refuse({{"rank_pattern", {{"q_proj", 1.5}}}}, "rank_pattern.q_proj");
    refuse({{"alpha_pattern", {{"q_proj", "x"}}}}, "alpha_pattern.q_proj");
    refuse({{"modules_to_save", "lm_head"}}, "modules_to_save");
    EXPECT_NO_THROW(peft_config(
        changed({{"init_lora_weights", "gaussian"}, {"layers_pattern", "layers"}, {"lora_bias", nullptr}})));
}

TEST(PeftConfig, RefusesByNameWhatItDoesNotKnow) {
    for (const json& value : {json(true), json(3), json("left"), json::array({1}), json{{"a", 1}}})
        expect_error("json.wrong-value", {"adapter_config.json", "lora_of_tomorrow", "is not known"},
                     [&] { peft_config(changed({{"lora_of_tomorrow", value}})); });
    for (const json& off : {json(false), json(0), json(nullptr), json(""), json::array(), json::object()})
        EXPECT_NO_THROW(peft_config(changed({{"lora_of_tomorrow", off}}))) << off;
    // What says nothing about a finished adapter may have any value.
    EXPECT_NO_THROW(peft_config(changed({{"auto_mapping", {{"unsloth_fixed", true}}},
                                         {"revision", "main"},
                                         {"peft_version", "0.99"},
                                         {"eva_config", {{"rho", 2.0}}}})));
}

TEST(Adapter, ReadsAFolderThatFitsItsModel) {
    const Adapter adapter = read_adapter(golden("formats/adapters/patterns"), small_llama());
    const auto scales = golden_json("formats/adapters/patterns/lora_scaling.json");
    EXPECT_TRUE(adapter.layers[0].empty()) << "layers_to_transform is [1]";
    for (const spec::Projection p : small_llama().linears) {
        const spec::LoraModule& module = adapter.layers[1][p];
        EXPECT_EQ(module.scale, scales.at(cat("model.layers.1.", spec::path_of(p))).get<double>()) << spec::name_of(p);
        EXPECT_EQ(adapter.a({1, p}).shape, (std::vector<int64_t>{module.r, small_llama().in_features(p)}));
        EXPECT_EQ(adapter.b({1, p}).shape, (std::vector<int64_t>{small_llama().out_features(p), module.r}));
    }
    EXPECT_EQ(adapter.file.tensors().size(), 14U);
}

/// A folder that the writers of this module made, which a test may break.
class WrittenAdapter : public testing::Test {
  protected:
    WrittenAdapter() {
        config_.lora.r = 4;
        config_.lora.target_modules = {"q_proj", "down_proj"};
        config_.lora.modules_to_save = {"lm_head"};
        for (const TensorDecl& decl : adapter_tensors(config_.lora, model_))
            blobs_.push_back({decl, std::vector<std::byte>(decl.bytes())});
    }
    Adapter write_and_read() {
        write_file_atomically(folder_ / "adapter_config.json", write_peft_config(config_));
        write_safetensors(folder_ / "adapter_model.safetensors", blobs_);
        return read_adapter(folder_.path(), model_);
    }
    void expect_refused(const std::vector<std::string>& words) {
        expect_input_error(words, [&] { write_and_read(); });
    }

    spec::ModelSpec model_ = small_llama();
    PeftConfig config_;
    std::vector<TensorBlob> blobs_;
    ScratchFolder folder_;
};

TEST_F(WrittenAdapter, IsReadBack) {
    const Adapter adapter = write_and_read();
    EXPECT_EQ(adapter.file.tensors().size(), 2U * 2 * 2 + 1);
    EXPECT_EQ(adapter.file.find("base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"),
              &adapter.a({1, spec::Projection::q}));
    EXPECT_EQ(adapter.b({0, spec::Projection::down}).shape, (std::vector<int64_t>{128, 4}));
    EXPECT_EQ(adapter.saved_module("lm_head").name, "base_model.model.lm_head.weight");
    EXPECT_EQ(saved_module_name("embed_tokens"), "base_model.model.model.embed_tokens.weight");
    EXPECT_EQ(adapter.file.metadata().at("format"), "pt");
}

TEST_F(WrittenAdapter, NamesWhatDoesNotFit) {
    const auto intact = blobs_;
    blobs_.pop_back();
    expect_refused({"missing tensors", "base_model.model.lm_head.weight", "[256, 128]"});
    blobs_ = intact;
    blobs_.push_back({{"base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight", spec::DType::f32, {1}},
                      std::vector<std::byte>(4)});
    expect_refused({"unknown tensors", "k_proj.lora_A"});
    blobs_ = intact;
    blobs_[0].decl.shape = {2, 256};
    expect_refused({"q_proj.lora_A", "[4, 128]", "[2, 256]"});
    blobs_ = intact;
    config_.lora.r = 8;
    expect_refused({"wrong type or shape", "[8, 128]"});
    config_.lora.r = 4;
    config_.lora.layers_to_transform = {7};
    expect_refused({"adapter_config.json", "layer 7"});
    config_.lora.layers_to_transform = {};
    blobs_[0] = {{blobs_[0].decl.name, spec::DType::i32, {4, 128}}, std::vector<std::byte>(4 * 4 * 128)};
    expect_refused({"q_proj.lora_A", "I32"});
}

TEST_F(WrittenAdapter, SaysWhichFileIsMissing) {
    const auto refused = [&](const std::vector<std::string>& words) {
        expect_error("model.incomplete", words, [&] { read_adapter(folder_.path(), model_); });
    };
    refused({"no adapter_config.json: it is empty", "training.output_dir"});
    write_text(folder_ / "checkpoint-5/adapter_config.json", "{}");
    refused({"no adapter_config.json", "checkpoints of a run (checkpoint-5/)"});
    write_text(folder_ / "model.safetensors", "x");
    refused({"is a model, not a PEFT adapter", "training.output_dir"});
    fs::remove(folder_ / "model.safetensors");
    write_text(folder_ / "adapter_config.json", write_peft_config(config_));
    write_text(folder_ / "adapter_model.bin", "x");
    refused({"no adapter_model.safetensors", "pickle", "adapter_model.bin", "PeftModel.from_pretrained"});
    fs::rename(folder_ / "adapter_model.bin", folder_ / "adapter.gguf");
    refused({"no adapter_model.safetensors", "GGUF"});
    expect_error("adapter.not-a-folder", {"adapter.gguf: is a file", "that it was made of"},
                 [&] { read_adapter(folder_ / "adapter.gguf", model_); });
}

/// PEFT stores the embeddings and the head by itself where the vocabulary was changed.
TEST_F(WrittenAdapter, MayHoldEmbeddingsThatStandInForTheBases) {
    const auto intact = blobs_;
    const auto add = [&](const std::string& name, spec::DType dtype, std::vector<int64_t> shape) {
        const TensorDecl decl{name, dtype, std::move(shape)};
        blobs_.push_back({decl, std::vector<std::byte>(decl.bytes())});
    };
    const std::string embedding = saved_module_name("embed_tokens"), head = saved_module_name("lm_head");
    add(embedding, spec::DType::bf16, {256, 128});
    const Adapter adapter = write_and_read();
    ASSERT_NE(adapter.stand_in("embed_tokens"), nullptr);
    EXPECT_EQ(adapter.stand_in("embed_tokens")->name, embedding);
    EXPECT_EQ(adapter.stand_in("lm_head"), nullptr) << "modules_to_save names it";
    expect_error("adapter.unsupported", {embedding, "would lose it", "Merge"},
                 [&] { adapter.refuse_stand_ins("and a file of GGUF would lose it", "Merge it."); });
    blobs_ = intact;
    add(embedding, spec::DType::bf16, {258, 128});
    expect_refused({"the vocabulary was enlarged from 256 to 258", "resize_token_embeddings(258)"});
    blobs_ = intact;
    add(embedding, spec::DType::bf16, {250, 128});
    expect_refused({"the vocabulary was cut from 256 to 250"});
    blobs_ = intact;
    add(embedding, spec::DType::i32, {256, 128});
    expect_refused({"wrong type or shape", embedding, "I32"});
    blobs_ = intact;  // what modules_to_save names, too
    std::erase_if(blobs_, [&](const TensorBlob& blob) { return blob.decl.name == head; });
    add(head, spec::DType::f32, {264, 128});
    expect_refused({"the vocabulary was enlarged from 256 to 264", head});
}

/// Adapters of single experts, as PEFT wrote them of transformers 4's modules; a test may break them.
class AdapterOfSingleExperts : public testing::Test {
  protected:
    static constexpr int64_t r = 2;
    AdapterOfSingleExperts() {
        config_ = {{"peft_type", "LORA"},
                   {"r", r},
                   {"lora_alpha", 6},
                   {"lora_dropout", 0.05},
                   {"target_modules", {"q_proj", "gate_proj", "up_proj", "down_proj"}}};
        for (int layer = 0; layer < static_cast<int>(model_.num_layers); ++layer) {
            add({layer, spec::Projection::q});
            for (const spec::Projection p : parts) {
                if (!model_.has_experts(layer)) add({layer, p});
                for (int e = 0; model_.has_experts(layer) && e < model_.experts->count; ++e) add({layer, p, e});
            }
        }
    }
    static std::string name(const spec::LinearId& id, const char* which) {
        return cat("base_model.model.model.layers.", id.layer, ".", spec::path_of(id), ".", which, ".weight");
    }
    /// Small whole numbers, so that all sums of products are exact.
    void add_values(const std::string& name, std::vector<int64_t> shape) {
        std::vector<float> values(static_cast<std::size_t>(shape[0] * shape[1]));
        for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = static_cast<float>((blobs_.size() * 13 + i * 7) % 11) - 5.0F;
        const auto bytes = std::as_bytes(std::span(values));
        blobs_.push_back({{name, spec::DType::f32, std::move(shape)}, {bytes.begin(), bytes.end()}});
    }
    void add(const spec::LinearId& id) {
        add_values(name(id, "lora_A"), {r, model_.in_features(id)});
        add_values(name(id, "lora_B"), {model_.out_features(id), r});
    }
    Adapter write_and_read() {
        write_file_atomically(folder_ / "adapter_config.json", config_.dump());
        write_safetensors(folder_ / "adapter_model.safetensors", blobs_);
        return read_adapter(folder_.path(), model_);
    }
    static const float* floats(const TensorView& tensor) { return reinterpret_cast<const float*>(tensor.data.data()); }
    /// scale · B·A of the adapter as it was written, [N, K].
    std::vector<float> written_delta(const SafetensorsFile& file, const spec::LinearId& id, double scale) const {
        const int64_t n = model_.out_features(id), k = model_.in_features(id);
        const float* const a = floats(file.at(name(id, "lora_A")));
        const float* const b = floats(file.at(name(id, "lora_B")));
        std::vector<float> delta(static_cast<std::size_t>(n * k));
        for (int64_t i = 0; i < n; ++i)
            for (int64_t j = 0; j < k; ++j) {
                double sum = 0;
                for (int64_t t = 0; t < r; ++t) sum += static_cast<double>(b[i * r + t] * a[t * k + j]);
                delta[static_cast<std::size_t>(i * k + j)] = static_cast<float>(scale * sum);
            }
        return delta;
    }
    /// Of one expert of the joined adapter, rows `first` to `first + rows`.
    std::vector<float> joined_delta(const Adapter& adapter, int layer, spec::Projection p, int expert, int64_t first,
                                    int64_t rows) const {
        const spec::LoraModule& module = adapter.layers[static_cast<std::size_t>(layer)][p];
        const int64_t experts = model_.experts->count, k = model_.in_features(p);
        const float* const a = floats(adapter.a({layer, p})) + expert * module.r * k;
        const float* const b = floats(adapter.b({layer, p}));
        std::vector<float> delta(static_cast<std::size_t>(rows * k));
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < k; ++j) {
                double sum = 0;
                for (int64_t t = 0; t < module.r; ++t)
                    sum += static_cast<double>(b[((first + i) * module.r + t) * experts + expert] * a[t * k + j]);
                delta[static_cast<std::size_t>(i * k + j)] = static_cast<float>(module.scale * sum);
            }
        return delta;
    }

    static constexpr std::array parts{spec::Projection::gate, spec::Projection::up, spec::Projection::down};
    spec::ModelSpec model_ = parse_model_spec(golden_json("families/qwen3_moe/model/config.json").dump(), "config");
    json config_;
    std::vector<TensorBlob> blobs_;
    ScratchFolder folder_;
};

TEST_F(AdapterOfSingleExperts, BecomesThatOfTheirTensorsExactly) {
    for (const bool rslora : {false, true}) {
        config_["use_rslora"] = rslora;
        const Adapter adapter = write_and_read();
        const SafetensorsFile file(folder_ / "adapter_model.safetensors");
        const spec::LoraSpec& lora = adapter.config.lora;
        EXPECT_EQ(lora.target_modules,
                  (std::vector<std::string>{"q_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}));
        EXPECT_EQ(lora.target_parameters,
                  (std::vector<std::string>{"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}));
        EXPECT_EQ(lora.rank_pattern,
                  (std::vector<std::pair<std::string, int64_t>>{{R"(mlp\.experts\.gate_up_proj)", 2 * r}}));
        EXPECT_EQ(lora.lora_dropout, 0);
        EXPECT_EQ(adapter.layers[0][spec::Projection::gate].r, r);
        EXPECT_EQ(adapter.layers[1][spec::Projection::experts_down].r, r);
        const double scale = 6 / (rslora ? std::sqrt(2.0) : 2.0);
        EXPECT_DOUBLE_EQ(adapter.layers[1][spec::Projection::experts_gate_up].scale, scale);
        for (int layer = 1; layer < static_cast<int>(model_.num_layers); ++layer)
            for (int e = 0; e < static_cast<int>(model_.experts->count); ++e)
                for (const spec::Projection p : parts) {
                    const int64_t f = model_.experts->intermediate_size;
                    const bool down = p == spec::Projection::down;
                    EXPECT_EQ(joined_delta(adapter, layer,
                                           down ? spec::Projection::experts_down : spec::Projection::experts_gate_up, e,
                                           p == spec::Projection::up ? f : 0, down ? model_.hidden_size : f),
                              written_delta(file, {layer, p, e}, scale))
                        << layer << " " << e << " " << spec::name_of(p);
                }
        // Saved again, it is the same adapter for PEFT 0.21 as for this program.
        const PeftConfig saved = parse_peft_config(write_peft_config(adapter.config), "saved");
        EXPECT_EQ(adapter_tensors(saved.lora, model_).size(), adapter.file.tensors().size());
    }
}

TEST_F(AdapterOfSingleExperts, MayBeOfSomeMatricesAndLayers) {
    std::erase_if(blobs_, [](const TensorBlob& blob) {
        const bool up_alone = blob.decl.name.find("gate_proj") == std::string::npos &&
                              blob.decl.name.find("down_proj") == std::string::npos;
        return !up_alone || blob.decl.name.find(".layers.2.") == std::string::npos;
    });
    config_["target_modules"] = {"q_proj", "up_proj"};
    config_["layers_to_transform"] = {2};
    config_["rank_pattern"] = {{"q_proj", r}, {"mlp.experts.gate_up_proj", 7}};
    const Adapter adapter = write_and_read();
    EXPECT_EQ(adapter.config.lora.target_parameters, std::vector<std::string>{"layers.2.mlp.experts.gate_up_proj"});
    EXPECT_EQ(adapter.config.lora.target_modules, std::vector<std::string>{"model.layers.2.self_attn.q_proj"});
    EXPECT_EQ(adapter.layers[2][spec::Projection::experts_gate_up].r, r);
    EXPECT_TRUE(adapter.layers[1].empty());
    const SafetensorsFile file(folder_ / "adapter_model.safetensors");
    const int64_t f = model_.experts->intermediate_size;
    EXPECT_EQ(joined_delta(adapter, 2, spec::Projection::experts_gate_up, 5, f, f),
              written_delta(file, {2, spec::Projection::up, 5}, 3));
    EXPECT_EQ(joined_delta(adapter, 2, spec::Projection::experts_gate_up, 5, 0, f),
              std::vector<float>(static_cast<std::size_t>(f * model_.hidden_size)));
}

TEST_F(AdapterOfSingleExperts, SaysWhatItCannotJoin) {
    const auto intact = blobs_;
    const json whole = config_;
    config_["rank_pattern"] = {{"experts.3.up_proj", r + 1}};
    expect_error("adapter.unsupported", {"layer 1's experts", "different ranks"}, [&] { write_and_read(); });
    config_ = whole;
    std::erase_if(blobs_,
                  [](const TensorBlob& blob) { return blob.decl.name.find("experts.5.up") != std::string::npos; });
    expect_error("checkpoint.missing-tensor", {"expert 5 of layer 1", "up_proj"}, [&] { write_and_read(); });
    blobs_ = intact;
    add_values("base_model.model.model.layers.1.mlp.gate.lora_A.weight", {r, model_.hidden_size});
    expect_error("adapter.unsupported", {"router", "layers.1.mlp.gate.lora_A"}, [&] { write_and_read(); });
    blobs_ = intact;
    config_["r"] = int64_t{1} << 50;  // no memory is taken for it
    expect_error("checkpoint.wrong-tensors", {"experts.0.gate_proj.lora_A", "[2, 64]"}, [&] { write_and_read(); });
    config_["r"] = r;
    config_["use_dora"] = true;
    expect_error("adapter.unsupported", {"DoRA"}, [&] { write_and_read(); });
}

}  // namespace
}  // namespace unsloth::formats
