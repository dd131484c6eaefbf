#include "unsloth/formats/load_plan.h"

#include "formats/model_support.h"

namespace unsloth::formats {
namespace {

using namespace test;

TEST(WeightFile, ResolvesAQuantisedModel) {
    WeightFile opened = WeightFile::open(golden("formats/small_llama/nf4_dq").string());
    const WeightFile file = std::move(opened);
    EXPECT_EQ(file.tensors.all().size(), 2U * 9 + 3);
    EXPECT_EQ(file.tensors.quantised_linears(), 14);
    EXPECT_TRUE(file.quantization && file.quantization->load_in_4bit);
    EXPECT_EQ(file.tensors.stored_bytes(), file.checkpoint.total_bytes())
        << "every byte of the file belongs to a tensor";
    EXPECT_EQ(file.tensors.parameters(), 264192 + 2 * 256 * 128 + 5 * 128);
    const TensorSource& down = file.tensors.linear({1, spec::Projection::down});
    EXPECT_TRUE(down.quantised());
    EXPECT_EQ(down.rows(), 128);
    EXPECT_EQ(down.cols(), 216);
    EXPECT_FALSE(file.tensors.head().quantised());
    EXPECT_EQ(file.tensors.head().rule.hf_name, "lm_head.weight");
    EXPECT_EQ(file.tensors.of(spec::TensorRole::post_norm, 1).rule.hf_name,
              "model.layers.1.post_attention_layernorm.weight");
    EXPECT_EQ(file.tensors.bias({0, spec::Projection::q}), nullptr);
    EXPECT_THROW(file.tensors.linear({2, spec::Projection::q}), CheckError);
    EXPECT_THROW(file.tensors.of(spec::TensorRole::q_norm, 0), CheckError);
}

TEST(TensorSource, ReadsRowsInFp32) {
    const WeightFile file = WeightFile::open(golden("formats/small_llama/nf4_dq").string());
    const TensorSource& down = file.tensors.linear({0, spec::Projection::down});
    std::vector<float> whole(128 * 216), part(3 * 216);
    down.read_f32(whole.data());
    EXPECT_EQ(sha256(whole), golden_json("formats/small_llama/nf4_dq.linears.json")
                                 .at(down.rule.hf_name)
                                 .at("weight_fp32_sha256")
                                 .get<std::string>());
    down.read_f32(5, 8, part.data());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 5 * 216));

    const TensorSource& embedding = file.tensors.of(spec::TensorRole::embed_tokens);
    std::vector<float> rows(2 * 128), all(256 * 128);
    embedding.read_f32(all.data());
    embedding.read_f32(254, 256, rows.data());
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), all.end() - 256));
    uint16_t bits = 0;
    std::memcpy(&bits, embedding.tensor().data.data() + 2 * 12345, sizeof bits);
    uint32_t widened = 0;
    std::memcpy(&widened, &all[12345], sizeof widened);
    EXPECT_EQ(widened, static_cast<uint32_t>(bits) << 16);
    std::vector<float> norm(128);
    file.tensors.of(spec::TensorRole::final_norm).read_f32(norm.data());
    EXPECT_NEAR(norm[0], 1.0F, 0.6F);
    EXPECT_THROW(embedding.read_f32(0, 257, all.data()), CheckError);
}

/// A small 16-bit model whose tensors a test may change.
class PlainModel : public testing::Test {
  protected:
    PlainModel() {
        spec_ = read_model_spec(golden("formats/small_llama/nf4_dq"));
        for (const spec::TensorRule& rule : spec::tensor_table(spec_)) add(rule.hf_name, spec::DType::bf16, rule.shape);
    }
    void add(const std::string& name, spec::DType dtype, std::vector<int64_t> shape) {
        const TensorDecl decl{name, dtype, std::move(shape)};
        blobs_.push_back({decl, std::vector<std::byte>(decl.bytes())});
    }
    void remove(const std::string& name) {
        std::erase_if(blobs_, [&](const TensorBlob& blob) { return blob.decl.name == name; });
    }
    void replace(const std::string& name, spec::DType dtype, std::vector<int64_t> shape) {
        remove(name);
        add(name, dtype, std::move(shape));
    }
    ModelTensors resolve() {
        write_safetensors(folder_ / "model.safetensors", blobs_);
        checkpoint_.emplace(Checkpoint::open(folder_.path().string()));
        return resolve_tensors(*checkpoint_, spec_);
    }
    void expect_refused(const std::vector<std::string>& words) {
        expect_error("checkpoint.wrong-tensors", words, [&] { resolve(); });
    }

    const std::string q_ = "model.layers.1.self_attn.q_proj.weight";
    spec::ModelSpec spec_;
    std::vector<TensorBlob> blobs_;
    ScratchFolder folder_;
    std::optional<Checkpoint> checkpoint_;
};

/// The rows of three experts as transformers 5 holds them in memory.
TEST_F(PlainModel, MayHoldAllExpertsOfALayerInOneTensor) {
    spec_.layers.assign(2, {});
    spec_.layers[1].experts = true;
    spec_.experts = {.count = 3, .top_k = 2, .intermediate_size = 2};
    blobs_ = random_weights(spec_);
    const auto values = [&](const ModelTensors& tensors) {
        std::vector<std::vector<float>> all;
        for (const spec::LinearId& id : spec_.linears_of(1)) {
            const TensorSource& source = tensors.linear(id);
            source.read_f32(all.emplace_back(source.rows() * source.cols()).data());
        }
        return all;
    };
    const auto apart = values(resolve());
    TensorBlob gate_up{{"model.layers.1.mlp.experts.gate_up_proj", spec::DType::bf16, {3, 4, 128}}, {}},
        down{{"model.layers.1.mlp.experts.down_proj", spec::DType::bf16, {3, 128, 2}}, {}};
    for (const spec::LinearId& id : spec_.linears_of(1)) {
        if (id.expert < 0) continue;
        const std::string name = cat("model.layers.1.", path_of(id), ".weight");
        const auto found = std::ranges::find(blobs_, name, [](const TensorBlob& blob) { return blob.decl.name; });
        TensorBlob& all = id.projection == spec::Projection::down ? down : gate_up;
        all.data.insert(all.data.end(), found->data.begin(), found->data.end());
        blobs_.erase(found);
    }
    blobs_.push_back(gate_up);
    blobs_.push_back(down);
    EXPECT_EQ(values(resolve()), apart);
    replace(gate_up.decl.name, spec::DType::bf16, {3, 6, 128});
    expect_refused({"gate_up_proj", "expected [3, 4, 128], found [3, 6, 128]"});
}

/// gpt-oss's form: transposed, with columns of gate and up in turn; biases the same.
TEST_F(PlainModel, MayHaveExpertsThatAreTransposed) {
    spec_.layers.assign(2, {});
    spec_.layers[1].experts = true;
    spec_.mlp_bias = true;
    spec_.experts = {.count = 3, .top_k = 2, .intermediate_size = 2, .transposed = true};
    const int64_t d = spec_.hidden_size;
    blobs_ = random_weights(spec_);
    std::erase_if(blobs_, [](const TensorBlob& blob) { return blob.decl.name.find(".experts.") != std::string::npos; });
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
        std::vector<float> values;
        const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
        for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i));
        const auto bytes = std::as_bytes(std::span(values));
        blobs_.push_back(
            {{"model.layers.1.mlp.experts." + name, spec::DType::f32, std::move(shape)}, {bytes.begin(), bytes.end()}});
    };
    add("gate_up_proj", {3, d, 4});
    add("gate_up_proj_bias", {3, 4});
    add("down_proj", {3, 2, d});
    add("down_proj_bias", {3, d});
    const ModelTensors tensors = resolve();
    const auto value = [](const TensorSource& source, int64_t row, int64_t col) {
        std::vector<float> values(static_cast<std::size_t>(source.cols()));
        source.read_f32(row, row + 1, values.data());
        return values[static_cast<std::size_t>(col)];
    };
    using spec::Projection;
    EXPECT_EQ(value(tensors.linear({1, Projection::gate, 2}), 1, 5), 2 * d * 4 + 5 * 4 + 2);
    EXPECT_EQ(value(tensors.linear({1, Projection::up, 2}), 1, 5), 2 * d * 4 + 5 * 4 + 3);
    EXPECT_EQ(value(tensors.linear({1, Projection::down, 1}), 7, 1), 2 * d + d + 7);
    EXPECT_EQ(value(*tensors.bias({1, Projection::up, 1}), 0, 1), 4 + 3);
    EXPECT_EQ(value(*tensors.bias({1, Projection::down, 1}), 0, 9), d + 9);
    std::vector<float> rows(static_cast<std::size_t>(2 * d));
    tensors.linear({1, Projection::up, 0}).read_f32(rows.data());
    EXPECT_EQ(rows[static_cast<std::size_t>(d + 4)], 4 * 4 + 3);
    replace("model.layers.1.mlp.experts.down_proj", spec::DType::bf16, {3, d, 2});
    remove("model.layers.1.mlp.experts.gate_up_proj_bias");
    expect_refused({"down_proj: expected F32, BF16 or F16 [3, 2, ", "missing tensors (1 tensor)", "gate_up_proj_bias"});
}

TEST_F(PlainModel, IsAccepted) {
    EXPECT_EQ(resolve().quantised_linears(), 0);
}

TEST_F(PlainModel, MayMixTypesAndKinds) {
    replace(q_, spec::DType::f32, {128, 128});
    replace("model.norm.weight", spec::DType::f16, {128});
    const std::string k = "model.layers.0.self_attn.k_proj.weight";
    remove(k);
    const std::vector<float> w(64 * 128, 0.5F);
    for (TensorBlob& blob : quant4_tensors(k, quantize_nf4(w.data(), 64, 128), spec::DType::bf16))
        blobs_.push_back(std::move(blob));
    const ModelTensors tensors = resolve();
    EXPECT_EQ(tensors.quantised_linears(), 1);
    EXPECT_TRUE(tensors.linear({0, spec::Projection::k}).quantised());
    EXPECT_FALSE(tensors.linear({1, spec::Projection::k}).quantised());
}

TEST_F(PlainModel, NamesWhatIsMissing) {
    remove(q_);
    expect_refused({"missing tensors (1 tensor)", q_, "[128, 128]"});
    for (int layer = 0; layer < 2; ++layer)
        for (const char* const name : {"input_layernorm", "mlp.up_proj", "mlp.gate_proj"})
            remove(cat("model.layers.", layer, ".", name, ".weight"));
    expect_refused({"missing tensors (7 tensors, the first five)"});
}

TEST_F(PlainModel, NamesWhatIsUnknown) {
    add("model.layers.2.self_attn.q_proj.weight", spec::DType::bf16, {128, 128});
    add("model.layers.0.self_attn.q_proj.bias", spec::DType::bf16, {128});
    add("model.layers.0.self_attn.rotary_emb.inv_freq", spec::DType::f32, {16});
    expect_refused({"unknown tensors (2 tensors)", "model.layers.2.self_attn.q_proj.weight", "q_proj.bias BF16 [128]"});
}

TEST_F(PlainModel, IgnoresWhatNobodyNeeds) {
    add("model.layers.0.self_attn.rotary_emb.inv_freq", spec::DType::f32, {16});
    spec_.tie_word_embeddings = true;  // lm_head.weight is then a copy
    EXPECT_EQ(resolve().head().rule.hf_name, "model.embed_tokens.weight");
}

TEST_F(PlainModel, NamesAWrongShapeOrType) {
    replace(q_, spec::DType::bf16, {128, 64});
    expect_refused({q_, "[128, 128]", "[128, 64]"});
    replace(q_, spec::DType::i32, {128, 128});
    expect_refused({q_, "I32"});
    replace(q_, spec::DType::f8_e4m3, {128, 128});
    expect_refused({q_, "F8_E4M3"});
    replace(q_, spec::DType::u8, {8192, 1});
    expect_refused({q_, "without their quant_state"});
}

TEST_F(PlainModel, TakesInt8LinearsWithTheirScales) {
    replace(q_, spec::DType::i8, {128, 128});
    expect_refused({q_, "without their model.layers.1.self_attn.q_proj.SCB"});
    add("model.layers.1.self_attn.q_proj.SCB", spec::DType::f32, {128});
    EXPECT_EQ(resolve().int8_linears(), 1);
    add("model.layers.1.self_attn.q_proj.weight_format", spec::DType::u8, {});
    EXPECT_EQ(resolve().int8_linears(), 1);
    replace(q_, spec::DType::i8, {128, 64});
    expect_refused({q_, "[128, 128]", "I8 [128, 64]"});
}

TEST_F(PlainModel, TakesAnInt8Embedding) {
    replace("lm_head.weight", spec::DType::i8, {256, 128});
    add("lm_head.SCB", spec::DType::f32, {256});
    const ModelTensors tensors = resolve();
    EXPECT_EQ(stored_type(tensors.head()), spec::WeightType::int8);
    EXPECT_EQ(tensors.int8_linears(), 0) << "of the layers";
}

TEST_F(PlainModel, TakesQuantisedEmbeddingsAndRefusesOtherShapes) {
    const auto quantised = [&](const std::string& name, int64_t rows, int64_t cols) {
        remove(name);
        const std::vector<float> w(static_cast<std::size_t>(rows * cols), 0.5F);
        for (TensorBlob& blob : quant4_tensors(name, quantize_nf4(w.data(), rows, cols), spec::DType::bf16))
            blobs_.push_back(std::move(blob));
    };
    quantised("lm_head.weight", 256, 128);
    EXPECT_EQ(stored_type(resolve().head()), spec::WeightType::nf4);
    quantised("model.norm.weight", 1, 128);
    expect_refused({"model.norm.weight", "only matrices may be"});
    std::erase_if(blobs_, [](const TensorBlob& blob) { return blob.decl.name.starts_with("model.norm"); });
    add("model.norm.weight", spec::DType::bf16, {128});
    quantised(q_, 64, 256);
    expect_refused({q_, "[128, 128]", "quant_state says [64, 256]"});
}

std::vector<float> values_of(const TensorSource& source) {
    std::vector<float> values(static_cast<std::size_t>(source.rows() * source.cols()));
    source.read_f32(values.data());
    return values;
}

/// A tied config beside a head of its own, as transformers 5 takes it.
TEST(WeightFile, AHeadOfOtherValuesIsNotTied) {
    const ScratchFolder folder;
    const spec::ModelSpec tied = tiny_spec(/*tied=*/true);
    const std::vector<TensorBlob> weights = random_weights(tied);
    const auto open = [&](const std::vector<TensorBlob>& heads) {
        std::vector<TensorBlob> all = weights;
        all.insert(all.end(), heads.begin(), heads.end());
        write_model_folder(folder.path(), tied, all);
        return WeightFile::open(folder.path().string());
    };
    EXPECT_TRUE(open({}).spec.tie_word_embeddings);
    TensorBlob head = random_blob({"lm_head.weight", spec::DType::bf16, {50, 24}}, 9);
    const WeightFile other = open({head});
    EXPECT_FALSE(other.spec.tie_word_embeddings);
    EXPECT_EQ(other.tensors.head().rule.hf_name, "lm_head.weight");
    EXPECT_NE(values_of(other.tensors.head()), values_of(other.tensors.of(spec::TensorRole::embed_tokens)));
    // A copy stays one, also in a wider type.
    const auto embedding = std::ranges::find_if(
        weights, [](const TensorBlob& blob) { return blob.decl.name == "model.embed_tokens.weight"; });
    head.data = embedding->data;
    EXPECT_TRUE(open({head}).spec.tie_word_embeddings);
    std::vector<float> wide(50 * 24);
    spec::convert_to_f32(spec::DType::bf16, head.data.data(), 50 * 24, wide.data());
    const auto bytes = std::as_bytes(std::span(wide));
    head = {{"lm_head.weight", spec::DType::f32, {50, 24}}, {bytes.begin(), bytes.end()}};
    EXPECT_TRUE(open({head}).spec.tie_word_embeddings);
    head.data.back() ^= std::byte{1};
    EXPECT_FALSE(open({head}).spec.tie_word_embeddings);
    expect_error("checkpoint.wrong-tensors", {"lm_head.weight", "[50, 24]", "[52, 24]"},
                 [&] { open({random_blob({"lm_head.weight", spec::DType::bf16, {52, 24}}, 9)}); });
}

TEST(WeightFile, TheTensorsSayTheTypeThatTheConfigLeavesOut) {
    const ScratchFolder folder;
    for (const spec::DType type : {spec::DType::bf16, spec::DType::f16, spec::DType::f32}) {
        const spec::ModelSpec spec = tiny_spec(false, type);
        write_model_folder(folder.path(), spec, random_weights(spec));
        nlohmann::json config = nlohmann::json::parse(read_file(folder / "config.json"));
        config.erase("torch_dtype");
        write_text(folder / "config.json", config.dump());
        EXPECT_EQ(WeightFile::open(folder.path().string()).spec.dtype, type);
    }
}

/// Embeddings that PEFT stored beside an adapter take the base's place, as PEFT loads them.
TEST(WeightFile, AnAdaptersEmbeddingsStandInForTheBases) {
    const ScratchFolder folder;
    spec::LoraSpec lora;
    lora.r = 2;
    lora.target_modules = {"q_proj"};
    const auto open = [&](bool tied, const std::vector<TensorBlob>& stored) {
        const spec::ModelSpec spec = tiny_spec(tied);
        write_model_folder(folder / "base", spec, random_weights(spec));
        std::vector<TensorBlob> blobs = stored;
        for (const TensorDecl& decl : adapter_tensors(lora, spec)) blobs.push_back(random_blob(decl, 2));
        write_safetensors(folder / "adapter/adapter_model.safetensors", blobs);
        write_text(folder / "adapter/adapter_config.json", write_peft_config({lora, "base"}));
        return WeightFile::open((folder / "base").string(), "", folder / "adapter");
    };
    fs::create_directories(folder / "adapter");
    const auto stored = [](const char* module, uint64_t seed) {
        TensorBlob blob = random_blob({"same", spec::DType::f32, {50, 24}}, seed);
        blob.decl.name = saved_module_name(module);
        return blob;
    };
    const auto values = [](const TensorBlob& blob) {
        std::vector<float> all(50 * 24);
        std::memcpy(all.data(), blob.data.data(), blob.data.size());
        return all;
    };
    const TensorBlob embedding = stored("embed_tokens", 5), head = stored("lm_head", 6);
    const auto embedded = [](const WeightFile& file) {
        return values_of(file.tensors.of(spec::TensorRole::embed_tokens));
    };
    EXPECT_TRUE(open(false, {}).stand_in_tensors().empty());
    const WeightFile one = open(false, {embedding});
    EXPECT_EQ(embedded(one), values(embedding));
    EXPECT_NE(values_of(one.tensors.head()), values(embedding));
    ASSERT_EQ(one.stand_in_tensors().size(), 1U);
    EXPECT_EQ(one.stand_in_tensors()[0]->name, embedding.decl.name);
    const WeightFile both = open(false, {embedding, head});
    EXPECT_EQ(embedded(both), values(embedding));
    EXPECT_EQ(values_of(both.tensors.head()), values(head));
    EXPECT_EQ(both.stand_in_tensors().size(), 2U);
    // Of a tied model one matrix stands for both ends.
    const WeightFile tied = open(true, {head});
    EXPECT_TRUE(tied.spec.tie_word_embeddings);
    EXPECT_EQ(embedded(tied), values(head));
    EXPECT_EQ(embedded(open(true, {embedding, stored("lm_head", 5)})), values(embedding));
    expect_error("adapter.unsupported", {"lm_head of other values", "tie_word_embeddings"},
                 [&] { open(true, {embedding, head}); });
}

}  // namespace
}  // namespace unsloth::formats
