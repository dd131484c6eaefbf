#include "unsloth/formats/bnb4.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>

#include "formats/support.h"
#include "unsloth/core/half.h"
#include "unsloth/formats/load_plan.h"
#include "unsloth/spec/convert.h"

namespace unsloth::formats {
namespace {

using namespace test;

std::vector<float> dequantised(const spec::Quant4View& view) {
    std::vector<float> values(static_cast<std::size_t>(view.elements()));
    dequantize_rows(view, 0, view.rows, values.data());
    return values;
}

std::vector<uint16_t> rounded_to_bf16(const std::vector<float>& values) {
    std::vector<uint16_t> result;
    for (const float value : values) result.push_back(f32_to_bf16(value));
    return result;
}

/// Every weight of a checkpoint against the hashes of bitsandbytes' own dequantisation.
void expect_hashes(const fs::path& folder, const fs::path& hashes_file) {
    const Checkpoint checkpoint = Checkpoint::open(folder.string());
    const auto hashes = nlohmann::json::parse(read_file(hashes_file));
    ASSERT_FALSE(hashes.empty());
    for (const auto& [name, expected] : hashes.items()) {
        SCOPED_TRACE(cat(folder.string(), " ", name));
        const auto weight = find_quant4(checkpoint, name);
        ASSERT_TRUE(weight);
        EXPECT_EQ((std::vector<int64_t>{weight->view.rows, weight->view.cols}),
                  expected.at("shape").get<std::vector<int64_t>>());
        EXPECT_EQ(weight->view.blocks(), expected.at("blocks").get<int64_t>());
        EXPECT_EQ(sha256(weight->parts.front()->data), expected.at("packed_sha256").get<std::string>());
        std::vector<float> absmax(static_cast<std::size_t>(weight->view.blocks()));
        dequantize_absmax(weight->view, absmax.data());
        EXPECT_EQ(sha256(absmax), expected.at("absmax_fp32_sha256").get<std::string>());
        const auto values = dequantised(weight->view);
        EXPECT_EQ(sha256(values), expected.at("weight_fp32_sha256").get<std::string>());
        EXPECT_EQ(sha256(rounded_to_bf16(values)), expected.at("weight_bf16_sha256").get<std::string>());
    }
}

TEST(Sha256, KnowsTheStandardsExample) {
    EXPECT_EQ(sha256(std::vector<char>{'a', 'b', 'c'}),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Bnb4, DequantisesEveryKindBitForBit) {
    expect_hashes(golden("formats/small_llama/nf4_dq"), golden("formats/small_llama/nf4_dq.linears.json"));
    for (const char* const kind : {"nf4", "fp4", "nf4_dq_bf16_storage"})
        expect_hashes(golden(cat("formats/reduced/", kind)), golden(cat("formats/reduced/", kind, ".linears.json")));
}

TEST(Bnb4, DequantisesTheWholeSharedCollection) {
    const char* const shared = std::getenv("UNSLOTH_SHARED");
    if (shared == nullptr) GTEST_SKIP() << "UNSLOTH_SHARED names no folder with the full reference collection";
    const ScratchFolder folder;
    const std::string unpack = cat("'", shared, "/golden/unpack.sh' '", folder.path().string(), "/all' > /dev/null");
    ASSERT_EQ(std::system(unpack.c_str()), 0) << unpack;
    for (const char* const kind : {"small_llama/nf4_dq", "small_llama/nf4", "small_llama/fp4",
                                   "small_llama/nf4_dq_bf16_storage", "tiny_llama/nf4_dq"}) {
        expect_hashes(folder / cat("all/", kind), folder / cat("all/", kind, ".linears.json"));
        EXPECT_GT(WeightFile::open((folder / cat("all/", kind)).string()).tensors.quantised_linears(), 0);
    }
    const WeightFile sharded = WeightFile::open((folder / "all/tiny_llama/bf16").string());
    EXPECT_EQ(sharded.checkpoint.files().size(), 2U);
    EXPECT_EQ(sharded.tensors.quantised_linears(), 0);
}

TEST(Bnb4, ReadsWhatTheStateSays) {
    const Checkpoint checkpoint = Checkpoint::open(golden("formats/small_llama/nf4_dq").string());
    const auto weight = find_quant4(checkpoint, "model.layers.0.mlp.down_proj.weight");
    ASSERT_TRUE(weight);
    EXPECT_EQ(weight->type, Quant4Type::nf4);
    EXPECT_EQ(weight->dtype, spec::DType::bf16);
    EXPECT_TRUE(weight->view.nested());
    EXPECT_EQ(weight->stored_bytes(), 13824U + 432 + 8 + 1024 + 64 + 169);
    EXPECT_EQ(find_quant4(checkpoint, "lm_head.weight"), std::nullopt);
    const Checkpoint fp4 = Checkpoint::open(golden("formats/reduced/fp4").string());
    EXPECT_EQ(find_quant4(fp4, "model.layers.0.self_attn.k_proj.weight")->type, Quant4Type::fp4);
    EXPECT_FALSE(find_quant4(fp4, "model.layers.0.self_attn.k_proj.weight")->view.nested());
}

TEST(Bnb4, TellsCompanionsFromWeights) {
    std::string weight;
    EXPECT_TRUE(is_quant4_companion("a.weight.nested_quant_map", &weight));
    EXPECT_EQ(weight, "a.weight");
    EXPECT_TRUE(is_quant4_companion("a.weight.quant_state.bitsandbytes__fp4", &weight));
    EXPECT_EQ(weight, "a.weight");
    EXPECT_FALSE(is_quant4_companion("a.weight"));
    EXPECT_FALSE(is_quant4_companion("a.absmaxi"));
}

std::vector<float> random_weight(int64_t n, uint32_t seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0.0F, 0.02F);
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& value : values) value = normal(generator);
    return values;
}

TEST(Bnb4, AnyRangeOfRowsEqualsThatPartOfTheWhole) {
    for (const int64_t cols : {1, 7, 63, 64, 65, 216}) {  // odd counts: rows start in the middle of a byte
        const int64_t rows = 9;
        const Quant4Owned weight = quantize_nf4(random_weight(rows * cols, 1).data(), rows, cols);
        const auto whole = dequantised(weight.view());
        for (int64_t begin = 0; begin <= rows; ++begin)
            for (int64_t end = begin; end <= rows; ++end) {
                std::vector<float> part(static_cast<std::size_t>((end - begin) * cols) + 1, 77.0F);
                dequantize_rows(weight.view(), begin, end, part.data());
                EXPECT_EQ(part.back(), 77.0F) << "written beyond the end";
                part.pop_back();
                EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin * cols))
                    << cols << " columns, rows " << begin << " to " << end;
            }
    }
    const Quant4Owned weight = quantize_nf4(random_weight(128, 1).data(), 2, 64);
    float out = 0;
    EXPECT_THROW(dequantize_rows(weight.view(), 0, 3, &out), CheckError);
    EXPECT_THROW(dequantize_rows(weight.view(), 2, 1, &out), CheckError);
}

TEST(Bnb4, FollowsTheFormulaElementByElement) {
    const Quant4Owned owned = quantize_nf4(random_weight(33 * 217, 5).data(), 33, 217);
    const spec::Quant4View view = owned.view();
    const auto values = dequantised(view);
    for (int64_t i = 0; i < view.elements(); ++i) {
        const int code = view.packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15;
        const int64_t block = i / 64;
        volatile float absmax = view.nested_map[view.absmax_u8[block]] * view.nested_absmax[block / 256];
        absmax = absmax + view.nested_offset;
        ASSERT_EQ(values[static_cast<std::size_t>(i)], view.code[code] * absmax) << i;
    }
}

/// The bounds of the golden files' README: packed codes exact, absmax codes within 1, the two scales to 1e-6.
TEST(QuantizeNf4, AgreesWithBitsandbytes) {
    const SafetensorsFile originals(golden("formats/reduced/bf16/model.safetensors"));
    const Checkpoint checkpoint = Checkpoint::open(golden("formats/small_llama/nf4_dq").string());
    const auto hashes = golden_json("formats/small_llama/nf4_dq.linears.json");
    ASSERT_EQ(originals.tensors().size(), 2U);
    for (const TensorView& original : originals.tensors()) {
        SCOPED_TRACE(original.name);
        std::vector<float> w(static_cast<std::size_t>(original.elements()));
        spec::convert_to_f32(original.dtype, original.data.data(), original.elements(), w.data());
        const Quant4Owned ours = quantize_nf4(w.data(), original.shape[0], original.shape[1]);
        const auto theirs = find_quant4(checkpoint, original.name);
        ASSERT_TRUE(theirs);
        EXPECT_EQ(sha256(ours.packed), hashes.at(original.name).at("packed_sha256").get<std::string>());
        EXPECT_NEAR(ours.nested_offset, theirs->view.nested_offset, 1e-6F * theirs->view.nested_offset);
        for (std::size_t i = 0; i < ours.nested_absmax.size(); ++i)
            EXPECT_NEAR(ours.nested_absmax[i], theirs->view.nested_absmax[i], 1e-6F * ours.nested_absmax[i]);
        EXPECT_EQ(std::memcmp(ours.tables.data(), theirs->view.code, 16 * sizeof(float)), 0);
        EXPECT_EQ(std::memcmp(ours.tables.data() + 16, theirs->view.nested_map, 256 * sizeof(float)), 0);
        int different = 0;
        for (std::size_t i = 0; i < ours.absmax.size(); ++i) {
            const int distance = std::abs(ours.absmax[i] - theirs->view.absmax_u8[i]);
            EXPECT_LE(distance, 1) << "block " << i;
            different += distance != 0;
        }
        EXPECT_EQ(different, hashes.at(original.name).at("absmax_codes_not_nearest").get<int>())
            << "ours are the nearest";
    }
}

TEST(QuantizeFp4, AgreesWithBitsandbytes) {
    const SafetensorsFile originals(golden("quant/bf16.safetensors"));
    const Checkpoint checkpoint = Checkpoint::open(golden("quant/fp4.safetensors").string());
    int compared = 0;
    for (const TensorView& original : originals.tensors()) {
        const auto theirs = find_quant4(checkpoint, original.name);
        if (!theirs) continue;
        SCOPED_TRACE(original.name);
        ++compared;
        const int64_t rows = original.shape[0], cols = original.shape[1];
        const auto read = [&](int64_t begin, int64_t end, float* out) {
            spec::convert_to_f32(original.dtype, original.data.data() + begin * cols * 2, (end - begin) * cols, out);
        };
        const Quant4Owned ours = quantize_4bit(Quant4Type::fp4, rows, cols, read);
        EXPECT_EQ(std::memcmp(ours.packed.data(), theirs->view.packed, ours.packed.size()), 0);
        EXPECT_EQ(std::memcmp(ours.tables.data(), theirs->view.code, 16 * sizeof(float)), 0);
        EXPECT_EQ(quant4_tensors("w", ours, spec::DType::bf16).back().decl.name, "w.quant_state.bitsandbytes__fp4");
    }
    EXPECT_EQ(compared, 2);
}

TEST(QuantizeNf4, DoesNotDependOnTheThreads) {
    const int64_t rows = 1031, cols = 2050;  // over two million elements: several threads
    const auto w = random_weight(rows * cols, 2);
    const Quant4Owned one = quantize_nf4(w.data(), rows, cols, 1);
    const Quant4Owned many = quantize_nf4(w.data(), rows, cols, 5);
    EXPECT_EQ(one.packed, many.packed);
    EXPECT_EQ(one.absmax, many.absmax);
    EXPECT_EQ(one.nested_absmax, many.nested_absmax);
    EXPECT_EQ(one.nested_offset, many.nested_offset);
}

TEST(QuantizeNf4, TakesTheUpperCodeStrictlyAboveAThreshold) {
    std::vector<float> w(64, 0.0F);
    w[63] = 1.0F;  // absmax 1: the others are taken as they are
    for (std::size_t k = 0; k < 15; ++k) {
        w[2 * k] = spec::nf4_threshold[k];
        w[2 * k + 1] = std::nextafter(spec::nf4_threshold[k], 2.0F);
    }
    const Quant4Owned weight = quantize_nf4(w.data(), 1, 64);
    for (std::size_t k = 0; k < 15; ++k) {
        EXPECT_EQ(weight.packed[k] >> 4, static_cast<int>(k)) << "on threshold " << k;
        EXPECT_EQ(weight.packed[k] & 15, static_cast<int>(k) + 1) << "above threshold " << k;
    }
}

TEST(QuantizeNf4, SurvivesZerosAndEqualMaxima) {
    const Quant4Owned zeros = quantize_nf4(std::vector<float>(128, 0.0F).data(), 2, 64);
    for (const float value : dequantised(zeros.view())) EXPECT_EQ(value, 0.0F);
    std::vector<float> constant(128, 0.5F);
    for (const float value : dequantised(quantize_nf4(constant.data(), 2, 64).view())) EXPECT_EQ(value, 0.5F);
}

TEST(QuantizeNf4, RefusesValuesThatAreNotFinite) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
        auto w = random_weight(3 * 65, 3);
        w[100] = bad;
        expect_error("checkpoint.not-finite", {"[3, 65]", "not finite"}, [&] { quantize_nf4(w.data(), 3, 65); });
    }
}

TEST(Quant4Tensors, AreReadBackTheSame) {
    const ScratchFolder folder;
    for (const int64_t rows : {5, 300}) {
        const int64_t cols = 219;
        const Quant4Owned weight = quantize_nf4(random_weight(rows * cols, 4).data(), rows, cols);
        const auto blobs = quant4_tensors("m.weight", weight, spec::DType::f16);
        const auto declared = quant4_declarations("m.weight", rows, cols, spec::DType::f16);
        ASSERT_EQ(blobs.size(), declared.size());
        for (std::size_t i = 0; i < blobs.size(); ++i) {
            EXPECT_EQ(blobs[i].decl.name, declared[i].name);
            EXPECT_EQ(blobs[i].decl.shape, declared[i].shape);
        }
        write_safetensors(folder / "model.safetensors", blobs);
        const Checkpoint checkpoint = Checkpoint::open(folder.path().string());
        const auto read = find_quant4(checkpoint, "m.weight");
        ASSERT_TRUE(read);
        EXPECT_EQ(read->dtype, spec::DType::f16);
        EXPECT_EQ(read->view.nested_offset, weight.nested_offset);
        EXPECT_EQ(dequantised(read->view), dequantised(weight.view()));
    }
}

/// A small valid weight whose parts a test may break.
class BrokenWeight : public testing::Test {
  protected:
    BrokenWeight()
        : blobs_(
              quant4_tensors("m.weight", quantize_nf4(random_weight(20 * 70, 6).data(), 20, 70), spec::DType::bf16)) {}

    TensorBlob& blob(const std::string& suffix) {
        for (TensorBlob& blob : blobs_)
            if (blob.decl.name == "m.weight" + suffix) return blob;
        throw std::logic_error(suffix);
    }
    void set_state(const nlohmann::json& changes) {
        TensorBlob& state = blob(".quant_state.bitsandbytes__nf4");
        auto json =
            nlohmann::json::parse(std::string(reinterpret_cast<const char*>(state.data.data()), state.data.size()));
        for (const auto& [key, value] : changes.items()) json[key] = value;
        const std::string text = json.dump();
        const auto bytes = std::as_bytes(std::span(text));
        state = {{state.decl.name, spec::DType::u8, {static_cast<int64_t>(text.size())}}, {bytes.begin(), bytes.end()}};
    }
    void expect_refused(const std::vector<std::string>& words) {
        write_safetensors(folder_ / "model.safetensors", blobs_);
        const Checkpoint checkpoint = Checkpoint::open(folder_.path().string());
        expect_input_error(words, [&] { find_quant4(checkpoint, "m.weight"); });
    }

    ScratchFolder folder_;
    std::vector<TensorBlob> blobs_;
};

TEST_F(BrokenWeight, MissingCompanion) {
    blobs_.erase(blobs_.begin() + 2);
    expect_refused({"m.weight.nested_absmax", "missing"});
}

TEST_F(BrokenWeight, ShortPackedCodes) {
    blob("").data.pop_back();
    blob("").decl.shape[0] -= 1;
    expect_refused({"'m.weight'", "[20, 70]", "700 bytes"});
}

TEST_F(BrokenWeight, PackedCodesOfAnIntegerType) {
    blob("").decl.dtype = spec::DType::i8;
    expect_refused({"'m.weight'", "I8"});
}

TEST_F(BrokenWeight, AbsmaxOfAnotherLength) {
    blob(".absmax").data.push_back(std::byte{0});
    blob(".absmax").decl.shape[0] += 1;
    expect_refused({"m.weight.absmax", "U8 [22]", "U8 [23]"});
}

TEST_F(BrokenWeight, AbsmaxOfAnotherType) {
    set_state({{"nested_offset", nullptr}, {"nested_blocksize", nullptr}, {"nested_dtype", nullptr}});
    expect_refused({"m.weight.absmax", "F32 [22]", "U8 [22]"});
}

TEST_F(BrokenWeight, ShortMap) {
    blob(".nested_quant_map").data.resize(1020);
    blob(".nested_quant_map").decl.shape = {255};
    expect_refused({"nested_quant_map", "[256]", "[255]"});
}

TEST_F(BrokenWeight, MapThatIsNotFinite) {
    const float nan = NAN;
    std::memcpy(blob(".quant_map").data.data() + 12, &nan, sizeof nan);
    expect_refused({"m.weight.quant_map", "not finite"});
}

TEST_F(BrokenWeight, StatesThatCannotBe) {
    const auto intact = blobs_;
    const std::vector<std::pair<nlohmann::json, std::string>> cases = {
        {{{"quant_type", "fp4"}}, "quant_type"},
        {{{"blocksize", 128}}, "blocksize"},
        {{{"shape", {20, 71}}}, "[20, 71]"},
        {{{"shape", {20}}}, "shape"},
        {{{"shape", {-20, 70}}}, "shape"},
        {{{"shape", {int64_t{1} << 40, 1}}}, "shape"},
        {{{"shape", "20x70"}}, "shape"},
        {{{"dtype", "int8"}}, "dtype"},
        {{{"nested_blocksize", 64}}, "nested_blocksize"},
        {{{"nested_dtype", "float16"}}, "nested_dtype"},
        {{{"nested_offset", "x"}}, "nested_offset"},
        {{{"nested_offset", 1e300}}, "nested_offset"},
        {{{"nested_offset", nullptr}}, "nested_offset"},
    };
    for (const auto& [changes, word] : cases) {
        blobs_ = intact;
        set_state(changes);
        expect_refused({word, "m.weight"});
    }
    blobs_ = intact;
    blob(".quant_state.bitsandbytes__nf4").data[0] = std::byte{'x'};
    expect_refused({"m.weight.quant_state", "not valid JSON"});
    blobs_ = intact;
    TensorBlob second = blob(".quant_state.bitsandbytes__nf4");
    second.decl.name = "m.weight.quant_state.bitsandbytes__fp4";
    blobs_.push_back(second);
    expect_refused({"both"});
}

TEST_F(BrokenWeight, UnalignedCompanionsAreCopied) {
    // Laid out by hand so that every float starts at an odd address: other writers need not align.
    write_safetensors(folder_ / "model.safetensors", blobs_);
    const Checkpoint aligned = Checkpoint::open((folder_ / "model.safetensors").string());
    const auto expected = dequantised(find_quant4(aligned, "m.weight")->view);
    nlohmann::ordered_json header = {{"pad", {{"dtype", "U8"}, {"shape", {1}}, {"data_offsets", {0, 1}}}}};
    std::string data = "x";
    for (const TensorBlob& blob : blobs_) {
        header[blob.decl.name] = {{"dtype", safetensors_name(blob.decl.dtype)},
                                  {"shape", blob.decl.shape},
                                  {"data_offsets", {data.size(), data.size() + blob.data.size()}}};
        data.append(reinterpret_cast<const char*>(blob.data.data()), blob.data.size());
    }
    std::string text = header.dump();
    while (text.size() % 8 != 0) text += ' ';
    write_raw(folder_ / "odd.safetensors", text, data);
    const Checkpoint odd = Checkpoint::open((folder_ / "odd.safetensors").string());
    EXPECT_FALSE(odd.at("m.weight.quant_map").is_aligned(4));
    std::optional<Quant4Weight> weight = find_quant4(odd, "m.weight");
    const Quant4Weight copy = *weight;
    weight.reset();
    EXPECT_EQ(dequantised(copy.view), expected);
}

}  // namespace
}  // namespace unsloth::formats
