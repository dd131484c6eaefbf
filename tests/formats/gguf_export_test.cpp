// Models and adapters as GGUF files: names, types, the order of q's and k's rows, errors. tests/e2e/gguf_test.py
// compares with the package `gguf`.
#include <cmath>
#include <cstring>

#include "formats/gguf_support.h"

namespace unsloth::formats {
namespace {

using namespace test;

/// Row `row` of a tensor of the model, by what write_model put there.
int row_of(float value) {
    return static_cast<int>((value - std::floor(value)) * 256);
}

TEST_F(GgufExport, InterleavesTheHalvesOfHeadsForLlamaAlone) {
    for (const bool llama : {true, false}) {
        spec::ModelSpec spec = small_spec(llama ? "llama" : "qwen3");
        spec.qkv_bias = spec.o_bias = llama;
        const ScratchFolder folder;
        const WeightFile model = write_model(folder.path(), spec);
        const fs::path out = folder / "m.gguf";
        export_model_gguf(model, small_vocabulary(), out, f32_);
        const GgufFile file(out);
        const std::vector<int> interleaved = {0, 4, 1, 5, 2, 6, 3, 7};
        for (const char* const name : {"blk.1.attn_q.weight", "blk.1.attn_k.weight", "blk.1.attn_v.weight"}) {
            const bool turned = llama && name[11] != 'v';
            const std::vector<float> values = floats(file, name);
            for (int row = 0; row < 16; ++row)
                EXPECT_EQ(row_of(values[static_cast<std::size_t>(row) * 32]),
                          turned ? row / 8 * 8 + interleaved[static_cast<std::size_t>(row % 8)] : row)
                    << name << " row " << row;
        }
        if (!llama) continue;
        const std::vector<float> bias = floats(file, "blk.0.attn_k.bias"), plain = floats(file, "blk.0.attn_v.bias");
        for (std::size_t i = 0; i < 16; ++i) {
            const auto from = [](float value) { return std::lround((value - std::floor(value)) * 65536); };
            EXPECT_EQ(from(bias[i]), static_cast<long>(i / 8 * 8) + interleaved[i % 8]);
            EXPECT_EQ(from(plain[i]), static_cast<long>(i));
        }
    }
}

TEST_F(GgufExport, DescribesTheModelAndItsTokens) {
    spec::ModelSpec spec = small_spec();
    spec.ropes[0] = {spec::RopeSpec::Type::llama3, 500000.0, 8.0, 32};
    const WeightFile model = write_model(folder_.path(), spec);
    const GgufReport report = export_model_gguf(model, small_vocabulary(), out_, f32_);
    const GgufFile file(out_);
    EXPECT_EQ(report.file_bytes, fs::file_size(out_));
    EXPECT_EQ(report.types.at("F32").tensors, static_cast<int64_t>(file.tensors().size()));
    EXPECT_EQ(report.types.at("F32").relative_error(), 0);
    EXPECT_EQ(file.find_field("general.architecture")->text(), "llama");
    EXPECT_EQ(file.find_field("llama.context_length")->integer(), 64);
    EXPECT_EQ(file.find_field("llama.attention.key_length")->integer(), 8);
    EXPECT_EQ(file.find_field("llama.rope.freq_base")->number(), 500000);
    EXPECT_EQ(file.find_field("llama.rope.scaling.type"), nullptr);
    const std::vector<float> divisors = floats(file, "rope_freqs.weight");
    ASSERT_EQ(divisors.size(), 4U);
    EXPECT_EQ(divisors.front(), 1.0F);  // the fastest angle stays, the slowest is divided by the whole factor
    EXPECT_FLOAT_EQ(divisors.back(), 8.0F);
    const std::vector<std::string> tokens = file.find_field("tokenizer.ggml.tokens")->texts();
    ASSERT_EQ(tokens.size(), 12U);
    EXPECT_EQ(tokens[3], "t3");
    EXPECT_EQ(tokens[2], "[PAD2]");
    EXPECT_EQ(tokens[11], "[PAD11]");
    std::vector<int32_t> kinds(12);
    std::memcpy(kinds.data(), file.find_field("tokenizer.ggml.token_type")->data.data(), 48);
    EXPECT_EQ(kinds, (std::vector<int32_t>{1, 3, 5, 1, 1, 1, 1, 1, 1, 1, 5, 5}));
    EXPECT_EQ(file.find_field("tokenizer.ggml.bos_token_id")->integer(), 1);
    EXPECT_EQ(file.find_field("tokenizer.ggml.add_bos_token")->summary(), "true");
    EXPECT_EQ(file.find_field("tokenizer.chat_template")->text(), "{{ messages }}");
    EXPECT_EQ(file.find_field("tokenizer.chat_template.tool_use")->text(), "{{ tools }}");
}

TEST_F(GgufExport, DoesNotDependOnTheNumberOfThreads) {
    spec::ModelSpec spec = small_spec();
    spec.hidden_size = 512, spec.num_heads = 64;  // large enough for several threads
    const WeightFile model = write_model(folder_.path(), spec);
    std::string one;
    for (const int threads : {1, 2, 5}) {
        const fs::path out = folder_ / cat(threads, ".gguf");
        export_model_gguf(model, small_vocabulary(), out, {GgufFileType::q4_k_m, "name", threads});
        if (one.empty()) one = read_file(out);
        EXPECT_TRUE(read_file(out) == one) << threads << " threads";
    }
}

TEST_F(GgufExport, WritesSixteenBitsAndFourAlike) {
    const WeightFile nf4 = WeightFile::open(golden("formats/small_llama/nf4_dq").string());
    const spec::Vocabulary vocabulary = small_vocabulary();
    export_model_gguf(nf4, vocabulary, out_, f32_);
    const GgufFile file(out_);
    const TensorSource& down = nf4.tensors.linear({1, spec::Projection::down});
    std::vector<float> expected(static_cast<std::size_t>(down.rows() * down.cols()));
    down.read_f32(expected.data());
    EXPECT_EQ(floats(file, "blk.1.ffn_down.weight"), expected);
    export_model_gguf(nf4, vocabulary, folder_ / "bf16.gguf", {GgufFileType::bf16, "name"});
    EXPECT_EQ(GgufFile(folder_ / "bf16.gguf").find_tensor("blk.1.ffn_down.weight")->type->name, "BF16");
}

TEST_F(GgufExport, MixesTypesAsLlamaQuantizeDoes) {
    spec::ModelSpec spec = small_spec();
    spec.num_layers = 16;
    const auto type_of = [&](spec::TensorRole role, spec::Projection p, int layer, GgufFileType file_type) {
        spec::TensorRule rule;
        rule.role = role, rule.id = {layer, p}, rule.shape = {256, 256};
        return info_of(wanted_type(spec, rule, file_type)).name;
    };
    const auto linear = [&](spec::Projection p, int layer) {
        return type_of(spec::TensorRole::linear, p, layer, GgufFileType::q4_k_m);
    };
    std::string down;
    for (int layer = 0; layer < 16; ++layer) down += linear(spec::Projection::down, layer) == "Q6_K" ? '6' : '4';
    EXPECT_EQ(down, "6644644644644666");
    EXPECT_EQ(linear(spec::Projection::v, 0), "Q6_K");
    EXPECT_EQ(linear(spec::Projection::q, 0), "Q4_K");
    EXPECT_EQ(type_of(spec::TensorRole::lm_head, spec::Projection::q, -1, GgufFileType::q4_0), "Q6_K");
    EXPECT_EQ(type_of(spec::TensorRole::lm_head, spec::Projection::q, -1, GgufFileType::q8_0), "Q8_0");
    EXPECT_EQ(type_of(spec::TensorRole::embed_tokens, spec::Projection::q, -1, GgufFileType::q4_k_m), "Q4_K");
    spec.tie_word_embeddings = true;
    EXPECT_EQ(type_of(spec::TensorRole::embed_tokens, spec::Projection::q, -1, GgufFileType::q4_k_m), "Q6_K");
    spec.num_layers = 80;
    EXPECT_EQ(linear(spec::Projection::v, 11), "Q5_K");
    EXPECT_EQ(info_of(type_for_rows(GgmlType::q4_k, 344)).name, "F16");
    EXPECT_EQ(info_of(type_for_rows(GgmlType::q4_k, 96)).name, "Q5_0");
    EXPECT_EQ(info_of(type_for_rows(GgmlType::q5_k, 96)).name, "Q5_1");
    EXPECT_EQ(info_of(type_for_rows(GgmlType::q6_k, 96)).name, "Q8_0");
    EXPECT_EQ(info_of(type_for_rows(GgmlType::q8_0, 20)).name, "F16");
}

TEST_F(GgufExport, RefusesWhatCannotBe) {
    const WeightFile model = write_model(folder_.path(), small_spec());
    const auto refused = [&](const WeightFile& file, const spec::Vocabulary& vocabulary, GgufFileType type,
                             const std::vector<std::string>& words) {
        expect_input_error(words, [&] { export_model_gguf(file, vocabulary, out_, {type, "name"}); });
        EXPECT_FALSE(fs::exists(out_));
    };
    refused(model, small_vocabulary(13), GgufFileType::f32, {"13 tokens", "12"});
    {
        const ScratchFolder folder;
        refused(write_model(folder.path(), small_spec(), NAN), small_vocabulary(), GgufFileType::f32,
                {"model.embed_tokens.weight", "not finite"});
    }
    {
        const ScratchFolder folder;
        const WeightFile large = write_model(folder.path(), small_spec(), 1e6F);
        refused(large, small_vocabulary(), GgufFileType::f16,
                {"model.embed_tokens.weight", "too large for F16", "bf16"});
        export_model_gguf(large, small_vocabulary(), folder / "bf16.gguf", {GgufFileType::bf16, "name"});
    }
    {
        const ScratchFolder folder;
        spec::ModelSpec spec = small_spec("qwen3");
        spec.ropes[0] = {spec::RopeSpec::Type::llama3, 10000.0, 8.0, 32};
        refused(write_model(folder.path(), spec), small_vocabulary(), GgufFileType::f32, {"qwen3", "llama3"});
    }
    write_text(out_, "something");
    expect_error("output.exists", {"m.gguf exists"}, [&] { export_model_gguf(model, small_vocabulary(), out_, f32_); });
    expect_error("disk.cannot-write", {"There is no folder"},
                 [&] { export_model_gguf(model, small_vocabulary(), folder_ / "none/m.gguf", f32_); });
    EXPECT_EQ(read_file(out_), "something");
}

TEST_F(GgufExport, SaysWhatDiffersInFamilies) {
    const auto exported = [&](const char* family, const nlohmann::json& changes) {
        nlohmann::json config = golden_json(cat("families/", family, "/model/config.json"));
        for (const auto& [key, value] : changes.items()) config[key] = value;
        config["dtype"] = "float32";
        const fs::path folder = folder_ / cat(family, changes.size());
        const spec::ModelSpec spec = parse_model_spec(config.dump(), family);
        write_model(folder, spec);
        write_text(folder / "config.json", config.dump());
        const WeightFile model = WeightFile::open(folder.string());
        export_model_gguf(model, small_vocabulary(), folder / "m.gguf", f32_);
        return GgufFile(folder / "m.gguf");
    };
    const GgufFile granite = exported("granite", {});
    EXPECT_NEAR(*granite.find_field("granite.embedding_scale")->number(), 1.75, 1e-6);
    EXPECT_NEAR(*granite.find_field("granite.residual_scale")->number(), 0.45, 1e-6);
    EXPECT_NEAR(*granite.find_field("granite.attention.scale")->number(), 0.11, 1e-6);
    EXPECT_NEAR(*granite.find_field("granite.logit_scale")->number(), 3, 1e-6);
    const GgufFile ministral = exported("ministral3", {});
    EXPECT_NEAR(*ministral.find_field("mistral3.attention.temperature_scale")->number(), 0.3, 1e-6);
    EXPECT_EQ(ministral.find_field("mistral3.rope.scaling.yarn_log_multiplier")->number(), 1);
    const GgufFile phi = exported("phi3_longrope", {});
    EXPECT_EQ(phi.find_field("phi3.rope.dimension_count")->integer(), 24);
    EXPECT_EQ(phi.find_field("phi3.attention.sliding_window")->integer(), 0);
    EXPECT_EQ(phi.find_field("phi3.rope.scaling.original_context_length")->integer(), 24);
    EXPECT_EQ(floats(phi, "rope_factors_long.weight").size(), 12U);
    EXPECT_NE(phi.find_tensor("blk.2.attn_qkv.weight"), nullptr);
    EXPECT_EQ(phi.find_tensor("blk.2.ffn_up.weight")->shape, (std::vector<int64_t>{208, 96}));
    expect_error("export.unsupported", {"gemma3", "scale"}, [&] { exported("gemma3_text", {}); });
    const GgufFile gemma = exported("gemma3_text", {{"query_pre_attn_scalar", 24}});
    EXPECT_EQ(gemma.find_field("gemma3.attention.sliding_window")->integer(), 9);
    for (const char* const norm : {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "attn_q_norm"})
        EXPECT_NE(gemma.find_tensor(cat("blk.6.", norm, ".weight")), nullptr) << norm;
    EXPECT_NEAR(floats(gemma, "blk.0.attn_norm.weight")[3], 1 + 1 + 3.0 / 65536, 1e-6) << "w + 1";
    const GgufFile olmo = exported("olmo3", {});
    EXPECT_NE(olmo.find_field("olmo2.attention.sliding_window_pattern"), nullptr);
    EXPECT_EQ(olmo.find_tensor("blk.0.attn_norm.weight"), nullptr);
    EXPECT_EQ(floats(olmo, "blk.0.attn_q_norm.weight").size(), 64U);
    expect_error("export.unsupported", {"qwen3_5_text", "gated delta nets"}, [&] { exported("qwen3_5_text", {}); });
}

}  // namespace
}  // namespace unsloth::formats
