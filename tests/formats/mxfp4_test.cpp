// MXFP4 on disk: every code and scale, rows that lie apart, what is refused, and whole folders.
#include "unsloth/formats/mxfp4.h"

#include "common/mxfp4_models.h"
#include "formats/model_support.h"
#include "unsloth/formats/base_mark.h"
#include "unsloth/formats/described_model.h"
#include "unsloth/formats/finite.h"
#include "unsloth/formats/inspect.h"
#include "unsloth/formats/merge.h"
#include "unsloth/formats/model_writer.h"

namespace unsloth::formats {
namespace {

using namespace test;

class Mxfp4 : public testing::Test {
  protected:
    /// Writes the parameter, and opens it as one matrix.
    Mxfp4Weight open(const Mxfp4Parameter& parameter) {
        write_safetensors(folder_ / "model.safetensors", {parameter.blocks, parameter.scales});
        checkpoint_.emplace(Checkpoint::open(folder_.path().string()));
        const auto found = find_mxfp4(*checkpoint_, "w");
        EXPECT_TRUE(found);
        return found.value_or(Mxfp4Weight{});
    }
    ScratchFolder folder_;
    std::optional<Checkpoint> checkpoint_;
};

/// A block with every code, twice.
void set_every_code(Mxfp4Parameter& parameter, std::size_t block) {
    for (std::size_t i = 0; i < 16; ++i)
        parameter.blocks.data[block * 16 + i] = static_cast<std::byte>(i % 8 * 2 + (i % 8 * 2 + 1) * 16);
}

TEST_F(Mxfp4, HasTheValueOfEachCodeWithEachScale) {
    Mxfp4Parameter parameter("w", 1, 253, 32);
    for (std::size_t scale = 0; scale < 253; ++scale) {
        set_every_code(parameter, scale);
        parameter.scales.data[scale] = static_cast<std::byte>(scale);
    }
    const Mxfp4Weight weight = open(parameter);
    std::vector<float> values(253 * 32);
    dequantize_rows(weight, 0, 253, values.data());
    for (int scale = 0; scale < 253; ++scale)
        for (int i = 0; i < 32; ++i) {
            const float value = values[static_cast<std::size_t>(scale * 32 + i)];
            ASSERT_EQ(value, mxfp4_value(i % 16, scale)) << scale << " " << i;
            ASSERT_EQ(std::signbit(value), i % 16 >= 8);
            uint16_t in_bf16 = 0;
            float back = 0;
            spec::convert_from_f32(spec::DType::bf16, &value, 1, reinterpret_cast<std::byte*>(&in_bf16));
            spec::convert_to_f32(spec::DType::bf16, reinterpret_cast<const std::byte*>(&in_bf16), 1, &back);
            ASSERT_EQ(back, value) << "bf16 holds it exactly";
        }
    EXPECT_FALSE(first_not_below(weight, std::numeric_limits<float>::infinity()));
    require_finite("w", weight, spec::DType::bf16);
}

TEST_F(Mxfp4, IsReadByRowsThatMayLieApart) {
    const Mxfp4Parameter parameter("w", 2, 6, 96);
    const Mxfp4Weight all = open(parameter);
    EXPECT_EQ(all.rows, 12);
    EXPECT_EQ(all.cols, 96);
    EXPECT_EQ(all.stored_bytes(), 12U * (48 + 3));
    Mxfp4Weight odd = all;  // every second row of the second expert
    odd.first_row = 7;
    odd.row_step = 2;
    odd.rows = 3;
    std::vector<float> values(2 * 96);
    dequantize_rows(odd, 1, 3, values.data());
    for (int row = 0; row < 2; ++row)
        for (int column = 0; column < 96; ++column)
            EXPECT_EQ(values[static_cast<std::size_t>(row * 96 + column)], parameter.value(9 + 2 * row, column));
    EXPECT_THROW(dequantize_rows(odd, 1, 4, values.data()), CheckError);
}

TEST_F(Mxfp4, RefusesWhatNoTypeHolds) {
    std::vector<float> values(4 * 64);
    const auto with = [&](int scale, int code) {
        Mxfp4Parameter parameter("w", 1, 4, 64);
        parameter.scales.data[5] = static_cast<std::byte>(scale);  // row 2, column 32
        std::fill_n(parameter.blocks.data.begin() + 5 * 16, 16, std::byte{0x10});
        parameter.blocks.data[5 * 16 + 3] = static_cast<std::byte>(code);
        return open(parameter);
    };
    const auto expect_refused = [&](int scale, int code) {
        const Mxfp4Weight weight = with(scale, code);
        expect_error("checkpoint.not-finite", {"'w_scales'", cat("scale ", scale), "row 2, column 32"},
                     [&] { dequantize_rows(weight, 0, 4, values.data()); });
        expect_error("checkpoint.not-finite", {"'w'", "row 2", "column 32"}, [&] { require_finite("w", weight); });
    };
    expect_refused(255, 0);
    expect_refused(254, 4);     // 2^128
    expect_refused(253, 0x70);  // 6 · 2^126
    for (const auto& [scale, code] : {std::pair{254, 3}, {253, 5}, {252, 0x77}}) {
        dequantize_rows(with(scale, code), 0, 4, values.data());
        EXPECT_EQ(values[2 * 64 + 32 + 6], mxfp4_value(code % 16, scale));
        require_finite("w", with(scale, code), spec::DType::bf16);
    }
    require_finite("w", with(127 + 13, 7), spec::DType::f16);  // 49152
    expect_error("checkpoint.too-large-value", {"'w'", "98304", "row 2", "float16"},
                 [&] { require_finite("w", with(127 + 14, 7), spec::DType::f16); });
}

class Mxfp4Folder : public testing::Test {
  protected:
    Mxfp4Folder() { write_mxfp4_models(spec_, packed_, plain_); }
    static std::vector<float> values_of(const TensorSource& source) {
        std::vector<float> values(static_cast<std::size_t>(source.rows() * source.cols()));
        source.read_f32(values.data());
        return values;
    }
    const spec::ModelSpec spec_ = mxfp4_spec();
    ScratchFolder folder_;
    const fs::path packed_ = folder_ / "packed", plain_ = folder_ / "plain";
};

TEST_F(Mxfp4Folder, HasTheValuesOfTheSameModelInBf16) {
    const WeightFile packed = WeightFile::open(packed_.string()), plain = WeightFile::open(plain_.string());
    EXPECT_EQ(packed.quantization->quant_method, "mxfp4");
    EXPECT_EQ(packed.tensors.quantised_linears(), 2 * 3 * 3);
    EXPECT_EQ(packed.tensors.parameters(), plain.tensors.parameters());
    EXPECT_EQ(packed.tensors.stored_bytes(), packed.checkpoint.total_bytes()) << "every byte belongs to a tensor";
    for (std::size_t i = 0; i < packed.tensors.all().size(); ++i) {
        const TensorSource &one = packed.tensors.all()[i], &other = plain.tensors.all()[i];
        EXPECT_EQ(values_of(one), values_of(other)) << one.rule.hf_name;
        EXPECT_EQ(one.mxfp4() != nullptr, one.rule.id.expert >= 0) << one.rule.hf_name;
        EXPECT_EQ(stored_type(one) == spec::WeightType::mxfp4, one.mxfp4() != nullptr);
    }
    require_finite(packed, spec::DType::bf16);
    // A mark says in which forms the weights lie: other forms do not mean another model.
    EXPECT_NE(base_mark(packed), base_mark(plain));
    EXPECT_TRUE(same_base(base_mark(packed), base_mark(plain))) << base_mark(packed);
}

TEST_F(Mxfp4Folder, IsInspected) {
    const Inspection found = inspect_path(packed_.string());
    EXPECT_TRUE(found.ok()) << found.problems.front();
    EXPECT_EQ(found.kinds.at("mxfp4"), 4);
    EXPECT_EQ(found.parameters, WeightFile::open(plain_.string()).tensors.parameters());
    const auto down = std::ranges::find(found.tensors, "model.layers.1.mlp.experts.down_proj", &InspectedTensor::name);
    ASSERT_NE(down, found.tensors.end());
    EXPECT_EQ(down->shape, (std::vector<int64_t>{3, 96, 32}));
    EXPECT_EQ(down->bytes, 3U * 96 * 17);
}

TEST_F(Mxfp4Folder, IsMergedAndQuantisedAsItsValues) {
    const WeightFile packed = WeightFile::open(packed_.string());
    fs::create_directory(folder_ / "written");
    write_model(MergedModel(packed, nullptr), folder_ / "written", {});
    const WeightFile written = WeightFile::open((folder_ / "written").string()),
                     plain = WeightFile::open(plain_.string());
    EXPECT_FALSE(written.quantization) << "bf16";
    for (std::size_t i = 0; i < plain.tensors.all().size(); ++i)
        EXPECT_EQ(values_of(written.tensors.all()[i]), values_of(plain.tensors.all()[i]));
}

/// What a plan without weights counts with.
TEST_F(Mxfp4Folder, IsDescribedByItsConfig) {
    const auto described = describe_model(spec_, read_quantization_config(packed_), packed_);
    const WeightFile packed = WeightFile::open(packed_.string());
    for (std::size_t i = 0; i < packed.tensors.all().size(); ++i)
        EXPECT_EQ(stored_type(described->tensors.all()[i]), stored_type(packed.tensors.all()[i]));
    EXPECT_EQ(described->tensors.quantised_linears(), packed.tensors.quantised_linears());
}

TEST_F(Mxfp4Folder, IsRefusedWhereItDoesNotFit) {
    const std::string name = "model.layers.1.mlp.experts.down_proj";
    const auto with = [&](auto change) {
        std::vector<TensorBlob> blobs = blobs_of(packed_ / "model.safetensors");
        std::erase_if(blobs, change);
        write_model_folder(folder_ / "changed", spec_, blobs);
        return WeightFile::open((folder_ / "changed").string());
    };
    expect_error("checkpoint.wrong-tensors", {"missing tensors", "experts.0.down_proj", name + "_blocks"},
                 [&] { with([&](const TensorBlob& blob) { return blob.decl.name == name + "_scales"; }); });
    expect_error("checkpoint.wrong-tensors", {name + "_scales: expected [3, 96, 1], found [3, 1, 96]"}, [&] {
        with([&](TensorBlob& blob) {
            if (blob.decl.name == name + "_scales") blob.decl.shape = {3, 1, 96};
            return false;
        });
    });
    expect_error("checkpoint.wrong-tensors", {name + "_blocks: expected U8, found I8"}, [&] {
        with([&](TensorBlob& blob) {
            if (blob.decl.name == name + "_blocks") blob.decl.dtype = spec::DType::i8;
            return false;
        });
    });
}

TEST(Mxfp4Config, IsForExpertsAlone) {
    const std::string text = R"({"quantization_config": {"quant_method": "mxfp4"}})";
    const auto config = parse_quantization_config(text, "config.json");
    ASSERT_TRUE(config);
    EXPECT_FALSE(config->load_in_4bit);
    check_quantization_config(config, mxfp4_spec(), "config.json");
    expect_error("model.unsupported", {"config.json", "mxfp4", "llama has no experts"},
                 [&] { check_quantization_config(config, tiny_spec(), "config.json"); });
}

}  // namespace
}  // namespace unsloth::formats
