// 4-bit weights on the GPU: the same bits as on the CPU, which tests/ops compares with bitsandbytes.
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "ops/quant_cases.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/quant.h"

namespace unsloth {
namespace {

using golden::same_bits;
using ops::Context;
using ops::Quant4Tensor;

class QuantGpuTest : public ::testing::Test {
  protected:
    void SetUp() override {
        if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
        gpu = std::make_unique<Context>(at::Device(at::kCUDA, 0));
    }
    Context cpu{at::kCPU};
    std::unique_ptr<Context> gpu;
    at::Generator generator = at::detail::createCPUGenerator(11);
};

TEST_F(QuantGpuTest, DequantisesBitsandbytesFilesExactly) {
    const auto hashes = nlohmann::json::parse(std::ifstream(test::golden("quant/hashes.json")));
    for (const char* kind : quant_cases::kinds) {
        const formats::Checkpoint stored = formats::Checkpoint::open(test::golden(cat("quant/", kind, ".safetensors")));
        for (const char* name : quant_cases::weights) {
            SCOPED_TRACE(cat(kind, " ", name));
            const Quant4Tensor weight = ops::upload(*gpu, formats::find_quant4(stored, name)->view);
            at::Tensor fp32 = at::empty({weight.rows, weight.cols}, at::device(gpu->device()).dtype(at::kFloat));
            at::Tensor bf16 = at::empty({weight.rows, weight.cols}, at::device(gpu->device()).dtype(at::kBFloat16));
            ops::dequantize_4bit(*gpu, weight.view(), fp32);
            ops::dequantize_4bit(*gpu, weight.view(), bf16);
            EXPECT_EQ(golden::sha256(fp32), hashes[kind][name]["weight_fp32_sha256"].get<std::string>());
            EXPECT_EQ(golden::sha256(bf16), hashes[kind][name]["weight_bf16_sha256"].get<std::string>());
        }
    }
}

/// Offsets and margins choose between the vectorised kernel and the general one.
TEST_F(QuantGpuTest, DequantisesAnyShapeIntoAStridedBuffer) {
    for (const auto& [rows, cols] : quant_cases::shapes) {
        for (const bool nested : {true, false}) {
            const Quant4Tensor host = quant_cases::random_weight(rows, cols, nested, generator);
            const Quant4Tensor weight = ops::upload(*gpu, host.view());
            const at::Tensor expected = quant_cases::reference(host);
            for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
                for (const auto& [offset, margin] :
                     {std::pair{0, 0}, std::pair{0, 16}, std::pair{16, 8}, std::pair{3, 1}}) {
                    SCOPED_TRACE(
                        cat(rows, " x ", cols, " nested ", nested, " ", c10::toString(type), " offset ", offset));
                    EXPECT_TRUE(same_bits(quant_cases::dequantize_into_wider(*gpu, weight, type, offset, margin),
                                          quant_cases::expected_wider(expected, type, offset, margin)));
                }
            }
        }
    }
}

TEST_F(QuantGpuTest, DequantisesMxfp4) {
    quant_cases::expect_mxfp4(*gpu, generator);
}

TEST_F(QuantGpuTest, DequantisesSeveralWeightsAtOnce) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf})
        quant_cases::expect_several_at_once(*gpu, type, generator);
}

/// Rows shorter than a warp's 1024 elements, longer ones, and a last warp that is not full.
TEST_F(QuantGpuTest, LargeWeightsEqualTheCpu) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1000, 4104}, {2048, 1024}, {4099, 216}, {3, 14336}}) {
        const Quant4Tensor host = quant_cases::random_weight(rows, cols, true, generator);
        const Quant4Tensor weight = ops::upload(*gpu, host.view());
        EXPECT_TRUE(same_bits(quant_cases::dequantize_into_wider(*gpu, weight, at::kBFloat16, 0, 16),
                              quant_cases::dequantize_into_wider(cpu, host, at::kBFloat16, 0, 16)))
            << rows << " x " << cols;
    }
}

TEST_F(QuantGpuTest, UnalignedCodesTakeTheGeneralKernel) {
    const Quant4Tensor host = quant_cases::random_weight(64, 128, true, generator);
    Quant4Tensor weight = ops::upload(*gpu, host.view());
    at::Tensor shifted = at::zeros({host.packed.numel() + 1}, at::device(gpu->device()).dtype(at::kByte));
    shifted.slice(0, 1).copy_(host.packed);
    weight.packed = shifted.slice(0, 1);
    EXPECT_TRUE(same_bits(quant_cases::dequantize_into_wider(*gpu, weight, at::kBFloat16, 0, 0),
                          quant_cases::expected_wider(quant_cases::reference(host), at::kBFloat16, 0, 0)));
}

void expect_equal(const Quant4Tensor& a, const Quant4Tensor& b) {
    EXPECT_TRUE(same_bits(a.packed, b.packed));
    EXPECT_TRUE(same_bits(a.tables, b.tables));
    // the mean's order of summation (fp64) may move the offset by an ulp, and with it a code on a midpoint
    EXPECT_NEAR(a.nested_offset, b.nested_offset, 1e-6 * std::abs(b.nested_offset));
    EXPECT_TRUE(at::allclose(a.nested_absmax.cpu(), b.nested_absmax.cpu(), 1e-6, 1e-7));
    const at::Tensor steps = (a.absmax.cpu().to(at::kInt) - b.absmax.cpu().to(at::kInt)).abs();
    EXPECT_LE(steps.max().item<int>(), 1);
    EXPECT_LE(steps.sum().item<int>(), 1 + steps.numel() / 1000);
}

TEST_F(QuantGpuTest, ExpandsEightBitsAndGathersRows) {
    quant_cases::expect_quantised_rows(*gpu, generator);
}

TEST_F(QuantGpuTest, QuantisesAsTheCpuDoes) {
    std::vector<std::pair<int64_t, int64_t>> shapes = quant_cases::shapes;
    shapes.emplace_back(1000, 1001);
    for (const auto& [rows, cols] : shapes) {
        for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
            SCOPED_TRACE(cat(rows, " x ", cols, " ", c10::toString(type)));
            const at::Tensor w = at::randn({rows, cols}, generator).to(type);
            const Quant4Tensor got = ops::quantize_nf4(*gpu, w.to(gpu->device()));
            expect_equal(got, ops::quantize_nf4(cpu, w));
            const Quant4Tensor again = ops::quantize_nf4(*gpu, w.to(gpu->device()));
            EXPECT_TRUE(same_bits(got.absmax, again.absmax) && same_bits(got.nested_absmax, again.nested_absmax));
            EXPECT_EQ(got.nested_offset, again.nested_offset);
        }
    }
}

TEST_F(QuantGpuTest, QuantisesAsBitsandbytesDoes) {
    const formats::SafetensorsFile originals(test::golden("quant/bf16.safetensors"));
    const formats::Checkpoint stored = formats::Checkpoint::open(test::golden("quant/nf4_dq.safetensors"));
    for (const char* name : quant_cases::weights) {
        const Quant4Tensor expected = ops::upload(cpu, formats::find_quant4(stored, name)->view);
        const Quant4Tensor got = ops::quantize_nf4(*gpu, golden::tensor(originals, name).to(gpu->device()));
        EXPECT_TRUE(same_bits(got.packed, expected.packed));
        EXPECT_LE((got.absmax.cpu().to(at::kInt) - expected.absmax.to(at::kInt)).abs().max().item<int>(), 1);
        EXPECT_NEAR(got.nested_offset, expected.nested_offset, 1e-6 * std::abs(expected.nested_offset));
    }
}

TEST_F(QuantGpuTest, ZerosStayZerosAndNotFiniteIsRefused) {
    at::Tensor w = at::randn({4, 128}, generator);
    w.slice(0, 1, 2).zero_();
    expect_equal(ops::quantize_nf4(*gpu, w.to(gpu->device())), ops::quantize_nf4(cpu, w));
    const Quant4Tensor zeros = ops::quantize_nf4(*gpu, at::zeros({3, 70}, at::device(gpu->device())));
    at::Tensor back = at::empty({3, 70}, at::device(gpu->device()).dtype(at::kFloat));
    ops::dequantize_4bit(*gpu, zeros.view(), back);
    EXPECT_EQ(back.abs().sum().item<float>(), 0);
    w[2][100] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_THROW(ops::quantize_nf4(*gpu, w.to(gpu->device())), Error);
}

class Stopwatch {
  public:
    explicit Stopwatch(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {
        cudaEventCreate(&begin_);
        cudaEventCreate(&end_);
        cudaEventRecord(begin_, stream_);
    }
    ~Stopwatch() {
        cudaEventDestroy(begin_);
        cudaEventDestroy(end_);
    }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;
    double microseconds() {
        float milliseconds = 0;
        cudaEventRecord(end_, stream_);
        cudaEventSynchronize(end_);
        cudaEventElapsedTime(&milliseconds, begin_, end_);
        return 1e3 * milliseconds;
    }

  private:
    cudaStream_t stream_;
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// Microseconds a call, over `count` different weights in turn.
double time_dequantise(Context& ctx, bool mxfp4, int64_t rows, int64_t cols, int64_t count, at::Generator generator) {
    std::vector<Quant4Tensor> weights;
    std::vector<at::Tensor> outs;
    for (int64_t i = 0; i < count; ++i) {
        const Quant4Tensor host = mxfp4 ? quant_cases::random_mxfp4(rows, cols, generator)
                                        : quant_cases::random_weight(rows, cols, true, generator);
        weights.push_back(ops::upload(ctx, host.view()));
        outs.push_back(at::empty({rows, cols + 16}, at::device(ctx.device()).dtype(at::kBFloat16)).slice(1, 0, cols));
    }
    const auto once = [&](int64_t i) {
        const auto k = static_cast<std::size_t>(i % count);
        ops::dequantize_4bit(ctx, weights[k].view(), outs[k]);
    };
    for (int64_t i = 0; i < 100; ++i) once(i);
    constexpr int64_t calls = 400;
    Stopwatch watch(ctx.stream());
    for (int64_t i = 0; i < calls; ++i) once(i);
    return watch.microseconds() / calls;
}

TEST_F(QuantGpuTest, DISABLED_Speed) {
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{4096, 4096}, {1024, 4096}, {14336, 4096}, {4096, 14336}, {2880, 2880}})
        for (const bool mxfp4 : {false, true}) {
            const double elements = static_cast<double>(rows) * static_cast<double>(cols);
            const double bytes = elements * (0.5 + 1.0 / (mxfp4 ? 32 : 64) + 2);
            const auto rotation = static_cast<int64_t>(400e6 / bytes) + 1;  // more than any L2 holds
            for (const int64_t count : {int64_t{1}, rotation}) {
                const double us = time_dequantise(*gpu, mxfp4, rows, cols, count, generator);
                std::printf("dequantise %s %5ld x %5ld, row stride K + 16, %3ld weights in turn: %7.2f us %7.0f GB/s\n",
                            mxfp4 ? "mxfp4" : "nf4  ", rows, cols, count, us, bytes / us * 1e-3);
            }
        }
}

}  // namespace
}  // namespace unsloth
