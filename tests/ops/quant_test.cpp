// 4-bit weights on the CPU: against bitsandbytes' files, against the definition, and at odd sizes.
#include "unsloth/ops/quant.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "ops/quant_cases.h"
#include "unsloth/core/error.h"
#include "unsloth/spec/quant4_host.h"

namespace unsloth {
namespace {

using golden::same_bits;
using golden::sha256;
using ops::Context;
using ops::Quant4Tensor;

class QuantTest : public ::testing::Test {
  protected:
    Context ctx{at::kCPU};
    at::Generator generator = at::detail::createCPUGenerator(11);
};

at::Tensor absmax_of(const spec::Quant4View& view) {
    at::Tensor absmax = at::empty({view.blocks()}, at::kFloat);
    for (int64_t block = 0; block < view.blocks(); ++block)
        absmax.data_ptr<float>()[block] = spec::block_absmax(view, block);
    return absmax;
}

/// Every 4-bit weight that `hashes` describes, in the checkpoint at `path`.
void expect_hashes(Context& ctx, const std::string& path, const nlohmann::json& hashes) {
    const formats::Checkpoint checkpoint = formats::Checkpoint::open(path);
    for (const auto& [name, expected] : hashes.items()) {
        SCOPED_TRACE(path + " " + name);
        const std::optional<formats::Quant4Weight> stored = formats::find_quant4(checkpoint, name);
        ASSERT_TRUE(stored);
        const Quant4Tensor weight = ops::upload(ctx, stored->view);
        EXPECT_EQ(sha256(weight.packed), expected["packed_sha256"].get<std::string>());
        EXPECT_EQ(sha256(absmax_of(weight.view())), expected["absmax_fp32_sha256"].get<std::string>());
        at::Tensor fp32 = at::empty({weight.rows, weight.cols}, at::kFloat);
        at::Tensor bf16 = at::empty({weight.rows, weight.cols}, at::kBFloat16);
        ops::dequantize_4bit(ctx, weight.view(), fp32);
        ops::dequantize_4bit(ctx, weight.view(), bf16);
        EXPECT_EQ(sha256(fp32), expected["weight_fp32_sha256"].get<std::string>());
        EXPECT_EQ(sha256(bf16), expected["weight_bf16_sha256"].get<std::string>());
    }
}

TEST_F(QuantTest, DequantisesBitsandbytesFilesExactly) {
    const auto hashes = nlohmann::json::parse(std::ifstream(test::golden("quant/hashes.json")));
    for (const char* kind : quant_cases::kinds)
        expect_hashes(ctx, test::golden(cat("quant/", kind, ".safetensors")), hashes[kind]);
}

TEST_F(QuantTest, DequantisesWholeCheckpointsExactly) {
    const char* folder = std::getenv("UNSLOTH_GOLDEN");
    if (folder == nullptr) GTEST_SKIP() << "set UNSLOTH_GOLDEN to an expanded copy of the reference data";
    for (const std::string kind : {"small_llama/nf4_dq", "small_llama/nf4", "small_llama/fp4",
                                   "small_llama/nf4_dq_bf16_storage", "tiny_llama/nf4_dq"})
        expect_hashes(ctx, cat(folder, "/", kind),
                      nlohmann::json::parse(std::ifstream(cat(folder, "/", kind, ".linears.json"))));
}

TEST_F(QuantTest, DequantisesAnyShapeIntoAStridedBuffer) {
    for (const auto& [rows, cols] : quant_cases::shapes) {
        for (const bool nested : {true, false}) {
            const Quant4Tensor weight = quant_cases::random_weight(rows, cols, nested, generator);
            const at::Tensor expected = quant_cases::reference(weight);
            for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
                for (const auto& [offset, margin] : {std::pair{0, 0}, std::pair{0, 16}, std::pair{3, 1}}) {
                    SCOPED_TRACE(
                        cat(rows, " x ", cols, " nested ", nested, " ", c10::toString(type), " offset ", offset));
                    EXPECT_TRUE(same_bits(quant_cases::dequantize_into_wider(ctx, weight, type, offset, margin),
                                          quant_cases::expected_wider(expected, type, offset, margin)));
                }
            }
        }
    }
}

TEST_F(QuantTest, ExpandsEightBitsAndGathersRows) {
    quant_cases::expect_quantised_rows(ctx, generator);
    const ops::Int8Tensor weight = quant_cases::random_int8(3, 8, generator);
    const at::Tensor out = at::empty({1, 8});
    EXPECT_THROW(ops::gather_rows(ctx, weight, at::full({1}, 3, at::kInt), out), CheckError);
}

TEST_F(QuantTest, DequantisesMxfp4) {
    quant_cases::expect_mxfp4(ctx, generator);
}

TEST_F(QuantTest, DequantisesSeveralWeightsAtOnce) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf})
        quant_cases::expect_several_at_once(ctx, type, generator);
}

TEST_F(QuantTest, RangesOfAWeightJoin) {
    const Quant4Tensor weight = quant_cases::random_weight(9, 37, true, generator);
    const at::Tensor expected = quant_cases::reference(weight);
    for (const int64_t cut : {1, 2, 63, 64, 65, 127, 300, 333}) {
        at::Tensor joined = at::empty({9, 37}, at::kFloat);
        const auto keep = [](float x) { return x; };
        spec::dequantize_4bit_range(weight.view(), 0, cut, joined.data_ptr<float>(), keep);
        spec::dequantize_4bit_range(weight.view(), cut, 9 * 37, joined.data_ptr<float>() + cut, keep);
        EXPECT_TRUE(same_bits(joined, expected)) << cut;
    }
}

TEST_F(QuantTest, UploadSharesHostMemoryOnTheCpu) {
    const Quant4Tensor weight = quant_cases::random_weight(5, 100, true, generator);
    const Quant4Tensor shared = ops::upload(ctx, weight.view());
    EXPECT_EQ(shared.packed.data_ptr(), weight.packed.data_ptr());
    EXPECT_EQ(shared.absmax.data_ptr(), weight.absmax.data_ptr());
    EXPECT_EQ(shared.packed.numel(), 250);
    EXPECT_EQ(shared.nested_offset, weight.nested_offset);
    EXPECT_TRUE(same_bits(quant_cases::reference(shared), quant_cases::reference(weight)));
    const Quant4Tensor plain = quant_cases::random_weight(5, 100, false, generator);
    EXPECT_FALSE(ops::upload(ctx, plain.view()).view().nested());
    EXPECT_TRUE(same_bits(quant_cases::reference(ops::upload(ctx, plain.view())), quant_cases::reference(plain)));
}

TEST_F(QuantTest, RoundsMantissasToNearest) {
    const at::Tensor all = at::arange(-32768, 32768, at::kShort).view(at::kBFloat16);  // every bf16 there is
    const at::Tensor exact = all.to(at::kDouble);
    for (int bits = 1; bits <= 7; ++bits) {
        SCOPED_TRACE(bits);
        const at::Tensor buffer = all.clone().view({256, 256}), left = buffer.narrow(1, 0, 200);
        ops::round_mantissa(left, bits);
        EXPECT_TRUE(
            same_bits(buffer.narrow(1, 200, 56).contiguous(), all.view({256, 256}).narrow(1, 200, 56).contiguous()));
        const at::Tensor x = exact.view({256, 256}).narrow(1, 0, 200), finite = x.isfinite();
        const at::Tensor rounded = left.to(at::kDouble);
        // Halves of the step between neighbours; subnormal values have the smallest normal one's.
        const at::Tensor exponent = x.abs().clamp_min(std::ldexp(1.0, -126)).log2().floor(),
                         step = (exponent - bits).exp2();
        const at::Tensor expected = (x / step).round() * step;
        const at::Tensor in_reach = finite.logical_and(expected.abs() < 3.4e38);
        EXPECT_TRUE(at::equal(rounded.masked_select(in_reach), expected.masked_select(in_reach)));
        const at::Tensor others = finite.logical_not();
        EXPECT_TRUE(same_bits(left.view(at::kShort).masked_select(others),
                              all.view({256, 256}).narrow(1, 0, 200).view(at::kShort).masked_select(others)));
    }
    EXPECT_THROW(ops::round_mantissa(at::zeros({2, 2}, at::kFloat), 3), CheckError);
    EXPECT_THROW(ops::round_mantissa(at::zeros({2, 2}, at::kBFloat16), 8), CheckError);
}

TEST_F(QuantTest, RefusesWhatDoesNotFit) {
    const Quant4Tensor weight = quant_cases::random_weight(4, 64, true, generator);
    EXPECT_THROW(ops::dequantize_4bit(ctx, weight.view(), at::empty({4, 63}, at::kFloat)), CheckError);
    EXPECT_THROW(ops::dequantize_4bit(ctx, weight.view(), at::empty({4, 64}, at::kDouble)), CheckError);
    EXPECT_THROW(ops::dequantize_4bit(ctx, weight.view(), at::empty({64, 4}, at::kFloat).t()), CheckError);
    spec::Quant4View broken = weight.view();
    broken.nested_absmax = nullptr;
    EXPECT_THROW(ops::dequantize_4bit(ctx, broken, at::empty({4, 64}, at::kFloat)), CheckError);
    EXPECT_THROW(ops::quantize_nf4(ctx, at::zeros({8, 8}, at::kFloat).t().slice(0, 0, 4)), CheckError);
    ops::dequantize_4bit(ctx, spec::Quant4View{}, at::empty({0, 0}, at::kFloat));  // nothing to do
}

TEST_F(QuantTest, QuantisesAsBitsandbytesDoes) {
    const formats::SafetensorsFile originals(test::golden("quant/bf16.safetensors"));
    const formats::Checkpoint stored = formats::Checkpoint::open(test::golden("quant/nf4_dq.safetensors"));
    for (const char* name : quant_cases::weights) {
        SCOPED_TRACE(name);
        const Quant4Tensor expected = ops::upload(ctx, formats::find_quant4(stored, name)->view);
        for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {  // the originals are exact in both
            const Quant4Tensor got = ops::quantize_nf4(ctx, golden::tensor(originals, name).to(type));
            EXPECT_TRUE(same_bits(got.packed, expected.packed));
            EXPECT_LE((got.absmax.to(at::kInt) - expected.absmax.to(at::kInt)).abs().max().item<int>(), 1);
            EXPECT_NEAR(got.nested_offset, expected.nested_offset, 1e-6 * std::abs(expected.nested_offset));
            EXPECT_TRUE(at::allclose(got.nested_absmax, expected.nested_absmax, 1e-6, 0));
            EXPECT_TRUE(same_bits(got.tables, expected.tables));
        }
    }
}

TEST_F(QuantTest, QuantisesAnyShapeToTheNearestCodes) {
    for (const auto& [rows, cols] : quant_cases::shapes) {
        SCOPED_TRACE(cat(rows, " x ", cols));
        const at::Tensor w = at::randn({rows, cols}, generator);
        const Quant4Tensor got = ops::quantize_nf4(ctx, w);
        const int64_t elements = rows * cols;
        for (int64_t i = 0; i < elements; ++i) {
            const at::Tensor block = w.view({-1}).slice(0, i / 64 * 64, std::min(elements, i / 64 * 64 + 64));
            const float x = w.data_ptr<float>()[i] / block.abs().max().item<float>();
            const uint8_t byte = got.packed.data_ptr<uint8_t>()[i / 2];
            const float chosen = spec::nf4_code[i % 2 == 0 ? byte >> 4 : byte & 15];
            float best = 10;
            for (const float entry : spec::nf4_code) best = std::min(best, std::abs(x - entry));
            ASSERT_LE(std::abs(x - chosen), best + 1e-6F) << i;  // thresholds are midpoints but for rounding
            if (i > 2000) break;
        }
        if (elements % 2 == 1) {
            EXPECT_EQ(got.packed[-1].item<int>() & 15, 7) << "the half byte left over holds a zero";
        }
    }
}

TEST_F(QuantTest, AbsmaxCodesAreTheNearest) {
    const at::Tensor w = at::randn({300, 64}, generator) * at::rand({300, 1}, generator);
    const Quant4Tensor got = ops::quantize_nf4(ctx, w);
    const at::Tensor absmax = w.abs().amax(1);
    EXPECT_NEAR(got.nested_offset, absmax.to(at::kDouble).mean().item<double>(), 1e-7);
    const at::Tensor centred = absmax - got.nested_offset;
    EXPECT_EQ(got.nested_absmax.numel(), 2);
    EXPECT_EQ(got.nested_absmax[0].item<float>(), centred.slice(0, 0, 256).abs().max().item<float>());
    EXPECT_EQ(got.nested_absmax[1].item<float>(), centred.slice(0, 256).abs().max().item<float>());
    const std::array<float, 256>& map = spec::dynamic_map_256(true);
    for (int64_t block = 0; block < 300; ++block) {
        const float x = centred[block].item<float>() / got.nested_absmax[block / 256].item<float>();
        float best = 10;
        for (const float entry : map) best = std::min(best, std::abs(x - entry));
        EXPECT_LE(std::abs(x - map[got.absmax[block].item<uint8_t>()]), best + 1e-7F) << block;
    }
}

TEST_F(QuantTest, ZerosStayZeros) {
    at::Tensor w = at::randn({4, 128}, generator);
    w.slice(0, 1, 2).zero_();
    w[3][0] = 1e-42F;  // 1 / absmax overflows in the block that holds nothing else
    w[3].slice(0, 1, 64).zero_();
    for (const at::Tensor& weight : {w, at::zeros({3, 70}), at::full({1, 64}, 0.25)}) {
        const Quant4Tensor got = ops::quantize_nf4(ctx, weight);
        at::Tensor back = at::empty_like(weight);
        ops::dequantize_4bit(ctx, got.view(), back);
        EXPECT_TRUE(at::isfinite(back).all().item<bool>());
        EXPECT_TRUE(back.masked_select(weight == 0).eq(0).all().item<bool>());
        EXPECT_EQ(back.masked_select(weight.abs() < 1e-30).abs().sum().item<float>(), 0);
    }
}

TEST_F(QuantTest, RefusesWeightsThatAreNotFinite) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
        at::Tensor w = at::randn({8, 64}, generator);
        w[5][17] = bad;
        EXPECT_THROW(ops::quantize_nf4(ctx, w), Error);
        EXPECT_THROW(ops::quantize_nf4(ctx, w.to(at::kBFloat16)), Error);
    }
}

TEST_F(QuantTest, ThreadsDoNotChangeTheResult) {
    const at::Tensor w = at::randn({300, 1000}, generator);  // several tasks
    const Quant4Tensor whole = ops::quantize_nf4(ctx, w);
    std::vector<uint8_t> packed(150000), codes(4688);
    std::vector<float> absmax(4688), nested(19);
    spec::quantize_4bit_blocks(spec::Quant4Type::nf4, w.data_ptr<float>(), w.numel(), 0, 4688, packed.data(),
                               absmax.data());
    const float offset = spec::quantize_absmax(absmax.data(), 4688, codes.data(), nested.data());
    EXPECT_EQ(offset, whole.nested_offset);
    EXPECT_TRUE(std::equal(packed.begin(), packed.end(), whole.packed.data_ptr<uint8_t>()));
    EXPECT_TRUE(std::equal(codes.begin(), codes.end(), whole.absmax.data_ptr<uint8_t>()));
}

}  // namespace
}  // namespace unsloth
