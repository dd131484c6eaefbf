#include "unsloth/formats/model_writer.h"

#include <limits>

#include "formats/model_support.h"

namespace unsloth::formats {
namespace {

using namespace test;

/// The golden NF4 model with an adapter on some of its layers, written to a folder and opened again.
class WrittenModelFolder : public testing::Test {
  protected:
    WrittenModelFolder()
        : base_(WeightFile::open(golden("formats/small_llama/nf4_dq").string())),
          adapter_(read_adapter(golden("formats/adapters/patterns"), base_.spec)),
          model_(base_, &adapter_) {}

    WrittenModel write(spec::WeightType type, std::size_t shard_bytes = default_shard_bytes, int threads = 0) {
        fs::remove_all(folder_.path());
        fs::create_directories(folder_.path());
        return write_model(model_, folder_.path(), {type, shard_bytes, threads});
    }
    WeightFile open() const { return WeightFile::open(folder_.path().string()); }
    std::vector<float> merged(const spec::TensorRule& rule) const {
        const MergedTensor tensor = model_.open(rule);
        std::vector<float> values(static_cast<std::size_t>(tensor.rows() * tensor.cols()));
        tensor.read_f32(0, tensor.rows(), values.data());
        return values;
    }

    WeightFile base_;
    Adapter adapter_;
    MergedModel model_;
    ScratchFolder folder_;
};

TEST_F(WrittenModelFolder, HoldsEveryValueRoundedOnce) {
    for (const auto& [type, dtype] : {std::pair(spec::WeightType::f32, spec::DType::f32),
                                      {spec::WeightType::bf16, spec::DType::bf16},
                                      {spec::WeightType::f16, spec::DType::f16},
                                      {spec::WeightType::automatic, spec::DType::bf16}}) {
        const WrittenModel written = write(type);
        const WeightFile found = open();
        EXPECT_EQ(written.files, 1U);
        EXPECT_EQ(written.tensor_bytes, found.checkpoint.total_bytes());
        EXPECT_EQ(found.spec.dtype, dtype);
        EXPECT_FALSE(found.quantization.has_value());
        for (const spec::TensorRule& rule : model_.tensors()) {
            const auto values = merged(rule);
            std::vector<std::byte> expected(values.size() * spec::size_of(dtype));
            spec::convert_from_f32(dtype, values.data(), static_cast<int64_t>(values.size()), expected.data());
            const TensorView& tensor = found.checkpoint.at(rule.hf_name);
            EXPECT_EQ(tensor.dtype, dtype);
            EXPECT_EQ(tensor.shape, rule.shape);
            EXPECT_TRUE(std::equal(tensor.data.begin(), tensor.data.end(), expected.begin(), expected.end()))
                << rule.hf_name;
        }
    }
}

TEST_F(WrittenModelFolder, InNf4QuantisesTheMergedValuesAndKeepsTheOthersAsTheyLie) {
    write(spec::WeightType::nf4);
    const WeightFile found = open();
    ASSERT_TRUE(found.quantization.has_value());
    EXPECT_EQ(found.quantization->bnb_4bit_quant_type, "nf4");
    EXPECT_TRUE(found.quantization->bnb_4bit_use_double_quant);
    EXPECT_EQ(found.quantization->bnb_4bit_compute_dtype, "bfloat16");
    EXPECT_EQ(found.tensors.quantised_linears(), 14);
    for (const spec::TensorRule& rule : model_.tensors()) {
        const auto& source = *found.tensors.find(rule.hf_name);
        EXPECT_EQ(source.quantised(), rule.role == spec::TensorRole::linear) << rule.hf_name;
        if (!source.quantised()) continue;
        if (rule.id.layer == 0) {  // the adapter is on layer 1
            for (const TensorView* part : source.quant4()->parts) {
                const TensorView& before = base_.checkpoint.at(part->name);
                EXPECT_TRUE(std::equal(part->data.begin(), part->data.end(), before.data.begin(), before.data.end()))
                    << part->name;
            }
            continue;
        }
        const auto expected = quant4_tensors(
            rule.hf_name, quantize_nf4(merged(rule).data(), rule.shape[0], rule.shape[1]), spec::DType::bf16);
        for (const TensorBlob& blob : expected) {
            const TensorView& part = found.checkpoint.at(blob.decl.name);
            EXPECT_TRUE(std::equal(part.data.begin(), part.data.end(), blob.data.begin(), blob.data.end()))
                << blob.decl.name;
        }
    }
}

TEST_F(WrittenModelFolder, InShardsHoldsTheSameTensors) {
    write(spec::WeightType::bf16);
    const auto hashes = [](const WeightFile& file) {
        std::map<std::string, std::string> all;
        for (const std::string& name : file.checkpoint.names()) all[name] = sha256(file.checkpoint.at(name).data);
        return all;
    };
    const auto expected = hashes(open());
    for (const spec::WeightType type : {spec::WeightType::bf16, spec::WeightType::nf4}) {
        constexpr std::size_t limit = 60'000;
        const WrittenModel written = write(type, limit);
        const WeightFile found = open();
        EXPECT_GT(written.files, 3U);
        EXPECT_EQ(found.checkpoint.files().size(), written.files);
        EXPECT_FALSE(fs::exists(folder_ / "model.safetensors"));
        const auto index = nlohmann::json::parse(read_file(folder_ / shard_index_file));
        EXPECT_EQ(index.at("metadata").at("total_size"), found.checkpoint.total_bytes());
        for (const SafetensorsFile& file : found.checkpoint.files()) {
            std::size_t bytes = 0;
            for (const TensorView& tensor : file.tensors()) bytes += tensor.data.size();
            EXPECT_TRUE(bytes <= limit || file.tensors().size() == 1) << file.path();
        }
        if (type == spec::WeightType::bf16) {
            EXPECT_EQ(hashes(found), expected);
        }
    }
}

TEST_F(WrittenModelFolder, DoesNotDependOnTheThreads) {
    for (const spec::WeightType type : {spec::WeightType::bf16, spec::WeightType::nf4}) {
        write(type, default_shard_bytes, 1);
        const std::string one = read_file(folder_ / "model.safetensors");
        write(type, default_shard_bytes, 7);
        EXPECT_EQ(read_file(folder_ / "model.safetensors"), one);
    }
}

TEST_F(WrittenModelFolder, KeepsWhatTheConfigSaysBesides) {
    write(spec::WeightType::bf16);
    const auto before = nlohmann::json::parse(read_file(golden("formats/small_llama/nf4_dq/config.json")));
    auto after = nlohmann::json::parse(read_file(folder_ / "config.json"));
    EXPECT_FALSE(after.contains("quantization_config"));
    after["quantization_config"] = before.at("quantization_config");
    EXPECT_EQ(after, before);
}

/// A base whose values a test chooses.
class ChosenBase : public testing::Test {
  protected:
    void write_base(const std::string& name, std::size_t element, float value, spec::DType dtype = spec::DType::f32) {
        const spec::ModelSpec spec = tiny_spec(false, dtype);
        auto weights = random_weights(spec);
        for (TensorBlob& blob : weights)
            if (blob.decl.name == name)
                spec::convert_from_f32(dtype, &value, 1, blob.data.data() + element * spec::size_of(dtype));
        write_model_folder(folder_ / "base", spec, weights);
        fs::create_directories(folder_ / "out");
    }
    void write_as(spec::WeightType type) {
        const WeightFile base = WeightFile::open((folder_ / "base").string());
        write_model(MergedModel(base, nullptr), folder_ / "out", {type});
    }
    ScratchFolder folder_;
};

/// The folder's own words about its types, and what is read of them.
TEST_F(ChosenBase, MixesTypesAndSaysWhichOfThemTransformersKnows) {
    write_base("lm_head.weight", 0, 1.0F);
    const WeightFile base = WeightFile::open((folder_ / "base").string());
    const auto write = [&](const std::vector<std::pair<std::string, std::string>>& precision) {
        fs::remove_all(folder_ / "out");
        fs::create_directories(folder_ / "out");
        return write_model(MergedModel(base, nullptr), folder_ / "out",
                           {.type = spec::WeightType::nf4, .precision = spec::PrecisionMap(precision)});
    };
    const auto stored = [&](const WeightFile& file, const std::string& module) {
        return spec::name_of(stored_type(*file.tensors.find(module + ".weight")));
    };
    const WrittenModel plain = write({});
    EXPECT_TRUE(plain.unknown_to_transformers.empty());
    EXPECT_FALSE(WeightFile::open((folder_ / "out").string()).quantization->llm_int8_skip_modules);

    const WrittenModel known = write({{"model.layers.0", "fp4"}, {"model.layers.1.mlp.up_proj", "fp32"}});
    EXPECT_TRUE(known.unknown_to_transformers.empty());
    const WeightFile file = WeightFile::open((folder_ / "out").string());
    EXPECT_STREQ(stored(file, "model.layers.0.self_attn.q_proj"), "fp4");
    EXPECT_STREQ(stored(file, "model.layers.1.mlp.up_proj"), "fp32");
    EXPECT_STREQ(stored(file, "model.layers.1.mlp.down_proj"), "nf4");
    EXPECT_EQ(file.quantization->llm_int8_skip_modules,
              (std::vector<std::string>{"model.layers.1.mlp.up_proj", "lm_head"}));

    const WrittenModel head = write({{"lm_head", "nf4"}});
    EXPECT_TRUE(head.unknown_to_transformers.empty());
    EXPECT_NE(read_file(folder_ / "out" / "config.json").find("\"llm_int8_skip_modules\": []"), std::string::npos);
    EXPECT_STREQ(stored(WeightFile::open((folder_ / "out").string()), "lm_head"), "nf4");

    const WrittenModel own = write({{"model.embed_tokens", "int8"}, {"model.layers.0", "int8"}});
    ASSERT_EQ(own.unknown_to_transformers.size(), 2U);
    EXPECT_NE(own.unknown_to_transformers[0].find("model.embed_tokens"), std::string::npos);
    EXPECT_NE(own.unknown_to_transformers[1].find("4-bit and 8-bit"), std::string::npos);
    EXPECT_STREQ(stored(WeightFile::open((folder_ / "out").string()), "model.embed_tokens"), "int8");
}

TEST_F(ChosenBase, RefusesValuesThatAreNotFiniteByTheTensorsName) {
    const std::string linear = "model.layers.1.mlp.up_proj.weight";
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()})
        for (const spec::WeightType type : {spec::WeightType::f32, spec::WeightType::bf16, spec::WeightType::nf4}) {
            write_base(linear, 321, bad);
            expect_error("checkpoint.not-finite", {linear, "not finite"}, [&] { write_as(type); });
            EXPECT_TRUE(fs::is_empty(folder_ / "out")) << "no file is half there";
        }
}

TEST_F(ChosenBase, RefusesValuesThatTheTypeCannotHold) {
    const std::string norm = "model.norm.weight";
    write_base(norm, 5, -65520.0F);
    expect_error("checkpoint.too-large-value", {norm, "65520", "float16", "--dtype bf16"},
                 [&] { write_as(spec::WeightType::f16); });
    write_as(spec::WeightType::bf16);
    write_base(norm, 5, 65519.0F);  // rounds to the largest half
    write_as(spec::WeightType::f16);
    write_base(norm, 5, 3.4e38F);
    expect_error("checkpoint.too-large-value", {norm, "bfloat16"}, [&] { write_as(spec::WeightType::bf16); });
    write_as(spec::WeightType::f32);
}

TEST(QuantizeNf4InPieces, GivesTheBytesOfTheWhole) {
    // Sizes where blocks straddle rows, where a group of rows has an odd number of blocks, and where the last block is
    // short.
    for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {5, 219}, {300, 219}, {64, 64}, {1000, 72}, {3000, 96}, {700, 1001}}) {
        const TensorBlob blob = random_blob({"w", spec::DType::f32, {rows, cols}}, 9);
        std::vector<float> w(static_cast<std::size_t>(rows * cols));
        std::memcpy(w.data(), blob.data.data(), blob.data.size());
        const auto whole = quant4_tensors("w", quantize_nf4(w.data(), rows, cols), spec::DType::bf16);
        const int64_t width = cols;
        const auto read = [&](int64_t begin, int64_t end, float* out) {
            std::copy(w.begin() + begin * width, w.begin() + end * width, out);
        };
        for (const int threads : {1, 3}) {
            const auto pieces =
                quant4_tensors("w", quantize_4bit(Quant4Type::nf4, rows, cols, read, threads), spec::DType::bf16);
            for (std::size_t i = 0; i < whole.size(); ++i)
                EXPECT_EQ(pieces[i].data, whole[i].data) << whole[i].decl.name << " " << rows << "x" << cols;
        }
    }
}

}  // namespace
}  // namespace unsloth::formats
