// Tensors of more than 2^31 elements: their last rows must come out as if they were alone.
#include <ATen/cuda/CUDAContext.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "gpu/gpu_testing.h"
#include "ops/attention_impl.h"
#include "unsloth/ops/attention.h"
#include "unsloth/ops/coded_rows.h"
#include "unsloth/ops/cross_entropy.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/gemm_coded.h"
#include "unsloth/ops/lora.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/rope.h"
#include "unsloth/ops/rows.h"
#include "unsloth/ops/swiglu.h"
#include "unsloth/spec/kernel_table.h"

namespace unsloth {
namespace {

class LargeTensorsGpu : public testing::GpuTest {
  protected:
    static constexpr int64_t tail = 3;
    static constexpr int64_t gibibyte = int64_t{1} << 30;

    void SetUp() override {
        GpuTest::SetUp();
        if (IsSkipped()) return;
        if (!has_memory(30)) GTEST_SKIP() << "needs a GPU of 30 GiB";
        at::manual_seed(std::random_device{}());
    }
    static bool has_memory(int64_t gib) {
        return static_cast<int64_t>(at::cuda::getCurrentDeviceProperties()->totalGlobalMem) >= gib * gibibyte;
    }
    static at::Tensor workspace(int64_t bytes) {
        return at::empty({bytes}, at::TensorOptions(at::kByte).device(at::kCUDA));
    }
    /// Products of other sizes may add in another order.
    static void expect_near(const at::Tensor& actual, const at::Tensor& expected, double within = 4e-3) {
        const at::Tensor x = actual.to(at::kDouble), y = expected.to(at::kDouble);
        EXPECT_GT(y.norm().item<double>(), 0);
        EXPECT_LT((x - y).norm().item<double>(), within * y.norm().item<double>());
    }

    static at::Tensor bf16(at::IntArrayRef shape) {
        return at::empty(shape, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
    }
    static at::Tensor fp32(at::IntArrayRef shape) {
        return at::zeros(shape, at::TensorOptions(at::kFloat).device(at::kCUDA));
    }
    /// Zeros, and random last rows.
    static at::Tensor large(at::IntArrayRef shape) {
        const at::Tensor tensor = bf16(shape).zero_();
        EXPECT_GT(tensor.numel(), int64_t{1} << 31);
        last_rows(tensor).normal_();
        return tensor;
    }
    static at::Tensor last_rows(const at::Tensor& tensor) { return tensor.narrow(0, tensor.size(0) - tail, tail); }
};

TEST_F(LargeTensorsGpu, Swiglu) {
    ops::Context ctx(at::kCUDA);
    const at::Tensor gu = large({80000, 28672}), act = bf16({80000, 14336});
    const at::Tensor alone = last_rows(gu).clone(), alone_act = bf16({tail, 14336});
    ops::swiglu_forward(ctx, gu, act);
    ops::swiglu_forward(ctx, alone, alone_act);
    EXPECT_TRUE(at::equal(last_rows(act), alone_act));
    ops::swiglu_backward(ctx, act, gu);
    ops::swiglu_backward(ctx, alone_act, alone);
    EXPECT_TRUE(at::equal(last_rows(gu), alone));
    EXPECT_GT(alone.abs().max().item<float>(), 0);
}

TEST_F(LargeTensorsGpu, NormAndCopy) {
    ops::Context ctx(at::kCUDA);
    const at::Tensor x = large({540000, 4096}), y = bf16({540000, 4096}), rstd = fp32({540000}),
                     weight = bf16({4096}).fill_(1.5);
    const at::Tensor alone = last_rows(x).clone(), alone_y = bf16({tail, 4096}), alone_rstd = fp32({tail});
    ops::rms_norm_forward(ctx, x, weight, 1e-5, y, rstd);
    ops::rms_norm_forward(ctx, alone, weight, 1e-5, alone_y, alone_rstd);
    EXPECT_TRUE(at::equal(last_rows(y), alone_y));
    const at::Tensor dx = x.clone(), alone_dx = alone.clone();
    ops::rms_norm_backward(ctx, y, x, weight, rstd, dx, {});
    ops::rms_norm_backward(ctx, alone_y, alone, weight, alone_rstd, alone_dx, {});
    EXPECT_TRUE(at::equal(last_rows(dx), alone_dx));
    ops::copy_2d(ctx, dx, y, 0.5);
    EXPECT_TRUE(at::equal(last_rows(y), alone_dx * 0.5));
}

TEST_F(LargeTensorsGpu, Rope) {
    ops::Context ctx(at::kCUDA);
    const at::Tensor x = large({420000, 40, 128}), cos = fp32({420000, 64}).normal_(),
                     sin = fp32({420000, 64}).normal_();
    const at::Tensor alone = last_rows(x).clone(), before = alone.clone();
    ops::rope_apply(ctx, x, cos, sin, false);
    ops::rope_apply(ctx, alone, last_rows(cos).contiguous(), last_rows(sin).contiguous(), false);
    EXPECT_TRUE(at::equal(last_rows(x), alone));
    EXPECT_FALSE(at::equal(alone, before));
}

TEST_F(LargeTensorsGpu, CrossEntropy) {
    ops::Context ctx(at::kCUDA);
    const at::Tensor scalars = testing::bytes_on(testing::test_scalars(), ctx.device());
    ctx.scalars = static_cast<const spec::StepScalars*>(scalars.const_data_ptr());
    const at::Tensor logits = large({17000, 128256}), losses = fp32({17000}), alone_losses = fp32({tail});
    const at::Tensor targets = at::full({17000}, 128255, at::TensorOptions(at::kInt).device(at::kCUDA));
    const at::Tensor alone = last_rows(logits).clone();
    ops::cross_entropy(ctx, logits, targets, losses, true);
    ops::cross_entropy(ctx, alone, targets.narrow(0, 0, tail), alone_losses, true);
    EXPECT_TRUE(at::equal(last_rows(logits), alone));
    EXPECT_TRUE(at::equal(last_rows(losses), alone_losses));
    EXPECT_TRUE(alone_losses.isfinite().all().item<bool>());
}

/// Inputs of more elements, then results.
TEST_F(LargeTensorsGpu, Gemm) {
    ops::Context ctx(at::kCUDA);
    ctx.workspace = workspace(ops::gemm_workspace(ctx.device()));
    const at::Tensor x = large({540000, 4096}), w = bf16({256, 4096}).normal_(0, 0.02), y = bf16({540000, 256}),
                     alone = bf16({tail, 256});
    ops::gemm(ctx, {.a = x, .b = w, .out = y, .transpose_b = true});
    ops::gemm(ctx, {.a = last_rows(x), .b = w, .out = alone, .transpose_b = true});
    expect_near(last_rows(y), alone);
    const at::Tensor expected = bf16({tail, 4096});
    ops::gemm(ctx, {.a = y, .b = w, .out = x});
    ops::gemm(ctx, {.a = last_rows(y), .b = w, .out = expected});
    expect_near(last_rows(x), expected);
    EXPECT_EQ(x[0].abs().max().item<float>(), 0) << "the first rows of y are zeros";
}

TEST_F(LargeTensorsGpu, Lora) {
    ops::Context ctx(at::kCUDA);
    ctx.workspace = workspace(int64_t{256} << 20);
    const at::Tensor x = large({540000, 4096}), a = bf16({16, 4096}).normal_(0, 0.02),
                     b = bf16({4096, 16}).normal_(0, 0.02), u = bf16({540000, 16}), v = bf16({540000, 16});
    const at::Tensor alone = last_rows(x).clone(), alone_u = bf16({tail, 16}), alone_v = bf16({tail, 16});
    const auto slice = [] {
        return ops::LoraSlice{.n = 4096, .r = 16, .rank = 16, .da = fp32({16, 4096}), .db = fp32({4096, 16})};
    };
    const auto products = [&](const at::Tensor& rows, const at::Tensor& u_TR, const at::Tensor& v_TR,
                              const ops::LoraSlice& gradients) {
        ops::lora_u(ctx, {.x_TK = rows, .a_RK = a, .u_TR = u_TR});
        ops::lora_dy(ctx, {.dy_TN = rows, .b_NR = b, .u_TR = u_TR, .v_TR = v_TR, .slices = {gradients}});
        ops::lora_da(ctx, {.v_TR = v_TR, .x_TK = rows, .slices = {gradients}});
    };
    const ops::LoraSlice all = slice(), last = slice();
    products(x, u, v, all);
    products(alone, alone_u, alone_v, last);
    expect_near(last_rows(u), alone_u);
    expect_near(last_rows(v), alone_v);
    expect_near(all.da, last.da);  // all other rows are zeros
    expect_near(all.db, last.db);
}

TEST_F(LargeTensorsGpu, Fp8) {
    if (!ops::coded_available(at::Device(at::kCUDA, 0), spec::Codes::e4m3))
        GTEST_SKIP() << "this card has no such products";
    ops::Context ctx(at::kCUDA);
    ctx.workspace = workspace(ops::gemm_workspace(ctx.device()));
    const auto codes = [](int64_t rows, int64_t columns) {
        return ops::CodedMatrix{at::empty({rows, columns}, at::TensorOptions(at::kFloat8_e4m3fn).device(at::kCUDA)),
                                fp32({rows})};
    };
    const at::Tensor x = large({540000, 4096}), w = bf16({256, 4096}).normal_(0, 0.02), alone = last_rows(x).clone();
    const ops::CodedMatrix x8 = codes(540000, 4096), w8 = codes(256, 4096), alone8 = codes(tail, 4096);
    ops::quantize_rows(ctx, x, x8);
    ops::quantize_rows(ctx, w, w8);
    ops::quantize_rows(ctx, alone, alone8);
    EXPECT_TRUE(at::equal(last_rows(x8.codes).view(at::kByte), alone8.codes.view(at::kByte)));
    EXPECT_TRUE(at::equal(last_rows(x8.scales), alone8.scales));
    const at::Tensor y = bf16({540000, 256}), alone_y = bf16({tail, 256});
    ops::gemm_coded(ctx, {.x = x8, .w = w8, .out = y});
    ops::gemm_coded(ctx, {.x = alone8, .w = w8, .out = alone_y});
    expect_near(last_rows(y), alone_y);
    ops::dequantize_rows(ctx, x8, x);
    ops::dequantize_rows(ctx, alone8, alone);
    EXPECT_TRUE(at::equal(last_rows(x), alone));
}

/// All logits of 16,800 tokens of Llama 3: as lm_head's chunks have them, but at once.
TEST_F(LargeTensorsGpu, Fp8OfLogits) {
    ops::Context ctx(at::kCUDA);
    const auto codes = [](const at::Tensor& x) {
        return ops::CodedMatrix{at::empty(x.sizes(), x.options().dtype(at::kFloat8_e4m3fn)), fp32({x.size(0)})};
    };
    const at::Tensor x = large({16800, 128256}), alone = last_rows(x).clone();
    const ops::CodedMatrix x8 = codes(x), alone8 = codes(alone);
    ops::quantize_rows(ctx, x, x8);
    ops::quantize_rows(ctx, alone, alone8);
    EXPECT_TRUE(at::equal(last_rows(x8.codes).view(at::kByte), alone8.codes.view(at::kByte)));
    EXPECT_TRUE(at::equal(last_rows(x8.scales), alone8.scales));
    ops::dequantize_rows(ctx, x8, x);
    ops::dequantize_rows(ctx, alone8, alone);
    EXPECT_TRUE(at::equal(last_rows(x), alone));
}

/// By cuDNN's kernels and by our own: the last row of tokens as if it were alone.
TEST_F(LargeTensorsGpu, Attention) {
    if (!has_memory(60)) GTEST_SKIP() << "needs a GPU of 60 GiB";
    constexpr int64_t length = 2048, rows = 264, heads = 32, kv_heads = 8, d = 128;
    const ops::AttentionShape shape{heads, kv_heads, d, 0, 1 / std::sqrt(static_cast<double>(d))};
    const auto segments = [](int64_t count) {
        ops::Segments s{.uniform = true};
        const at::Tensor offsets = at::arange(count + 1, at::kInt) * length;
        s.q_offsets.assign(offsets.const_data_ptr<int32_t>(), offsets.const_data_ptr<int32_t>() + count + 1);
        s.k_offsets = s.q_offsets;
        s.q_offsets_device = s.k_offsets_device = offsets.to(at::kCUDA);
        s.max_q = s.max_k = length;
        return s;
    };
    const auto last = [](const at::Tensor& x) { return x.narrow(0, x.size(0) - length, length); };
    auto own = std::make_shared<spec::KernelTable>();
    for (const spec::ProductForm form : {spec::ProductForm::nt, spec::ProductForm::nn})
        own->choices.push_back(
            {.op = spec::KernelOperator::attention, .form = form, .kernel = spec::KernelSource::portable});
    struct Way {
        const char* name;
        bool deterministic, own;
    };
    for (const auto& [name, deterministic, by_own] :
         {Way{"cuDNN", false, false}, Way{"cuDNN, a few rows at a time", true, false},
          Way{"own kernels", false, true}}) {
        SCOPED_TRACE(name);
        ops::Context ctx = by_own ? ops::Context(at::kCUDA, own) : ops::Context(at::kCUDA);
        ctx.workspace = workspace(
            ops::attention_workspace(shape, at::kBFloat16, ctx.device(), deterministic, rows * length, rows, length));
        ctx.deterministic = deterministic;
        const auto gradients = [&](int64_t count, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
            const ops::Segments s = segments(count);
            const at::Tensor out = at::empty_like(q), dq = at::empty_like(q), dk = at::empty_like(k),
                             dv = at::empty_like(v), lse = fp32({heads * count * length});
            ops::attention_forward(ctx, shape, s, q, k, v, out, lse);
            ops::attention_backward(ctx, shape, s, q, q, k, v, out, lse, dq, dk, dv);
            return std::array{last(out).clone(), last(dq).clone(), last(dk).clone(), last(dv).clone()};
        };
        const at::Tensor q = bf16({rows * length, heads, d}).zero_(), k = bf16({rows * length, kv_heads, d}).zero_(),
                         v = bf16({rows * length, kv_heads, d}).zero_();
        ASSERT_GT(q.numel(), int64_t{1} << 31);
        for (const at::Tensor& x : {q, k, v}) last(x).normal_();
        const auto all = gradients(rows, q, k, v), alone = gradients(1, last(q), last(k), last(v));
        for (std::size_t i = 0; i < all.size(); ++i) expect_near(all[i], alone[i]);
    }
}

/// Rows so wide that their last tokens lie beyond 2^31 elements, as those of a million tokens do: as dense copies.
TEST_F(LargeTensorsGpu, AttentionOfWideRows) {
    if (!has_memory(60)) GTEST_SKIP() << "needs a GPU of 60 GiB";
    constexpr int64_t heads = 8, kv_heads = 2, d = 128, width = 65536, grown = heads + 2 * kv_heads;
    const ops::AttentionShape shape{heads, kv_heads, d, 0, 1 / std::sqrt(static_cast<double>(d))};
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>(17, 2048), std::vector<int32_t>{34816},
                                                std::vector<int32_t>{34800}, std::vector<int32_t>{30000, 1, 4800}}) {
        SCOPED_TRACE(lengths.front());
        ops::Segments s{.uniform =
                            std::all_of(lengths.begin(), lengths.end(), [&](int32_t l) { return l == lengths[0]; })};
        s.q_offsets = {0};
        for (const int32_t length : lengths) s.q_offsets.push_back(s.q_offsets.back() + length);
        s.k_offsets = s.q_offsets;
        s.q_offsets_device = s.k_offsets_device =
            at::tensor(at::ArrayRef<int32_t>(s.q_offsets), at::kInt).to(at::kCUDA);
        s.max_q = s.max_k = *std::max_element(lengths.begin(), lengths.end());
        const int64_t tokens = s.q_offsets.back(), rows = s.count();
        ops::Context ctx(at::kCUDA);
        ctx.workspace = workspace(ops::attention_workspace(shape, at::kBFloat16, ctx.device(), false, tokens, rows,
                                                           s.max_q, /*backward=*/true, 0, width));
        const auto parts = [&](const at::Tensor& fused) {
            const auto part = [&](int64_t first, int64_t count) {
                return fused.narrow(1, first * d, count * d).unflatten(1, {count, d});
            };
            return std::array{part(0, heads), part(heads, kv_heads), part(heads + kv_heads, kv_heads)};
        };
        const auto pass = [&](const at::Tensor& qkv, const at::Tensor& gradients) {
            const auto [q, k, v] = parts(qkv);
            const auto [dq, dk, dv] = parts(gradients);
            const at::Tensor out = bf16({tokens, heads, d}), dout = q.contiguous(), lse = fp32({heads * tokens});
            ops::attention_forward(ctx, shape, s, q, k, v, out, lse);
            ops::attention_backward(ctx, shape, s, dout, q, k, v, out, lse, dq, dk, dv);
            return out;
        };
        const at::Tensor dense = bf16({tokens, grown * d}).normal_(), dense_gradients = at::empty_like(dense);
        const at::Tensor wide = bf16({tokens, width}), wide_gradients = bf16({tokens, width});
        ASSERT_GT(wide.numel(), int64_t{1} << 31);
        wide.narrow(1, 0, grown * d).copy_(dense);
        const at::Tensor expected = pass(dense, dense_gradients), out = pass(wide, wide_gradients);
        expect_near(out, expected);
        const auto got = parts(wide_gradients), wanted = parts(dense_gradients);
        for (std::size_t i = 0; i < got.size(); ++i) expect_near(got[i], wanted[i]);
        EXPECT_EQ(ops::choose_backward(ctx, shape, s,
                                       {expected, parts(wide)[0], parts(wide)[1], parts(wide)[2], out,
                                        fp32({heads * tokens}), got[0], got[1], got[2]})
                      .by_heads,
                  true);
    }
}

/// A rank's queries over keys whose gradients of all heads are more than cuDNN reaches, or those of one kv head's.
TEST_F(LargeTensorsGpu, AttentionOfFewQueries) {
    if (!has_memory(60)) GTEST_SKIP() << "needs a GPU of 60 GiB";
    constexpr int64_t heads = 64, kv_heads = 2, d = 128, tokens = 1024, begin = 60000;
    const ops::AttentionShape shape{heads, kv_heads, d, 0, 1 / std::sqrt(static_cast<double>(d))};
    const at::Tensor q = bf16({tokens, heads, d}).normal_(), dout = bf16({tokens, heads, d}).normal_();
    for (const int32_t keys : {260000, 600000}) {
        SCOPED_TRACE(keys);
        const auto cudnns = keys == 260000 ? ops::CudaForm::packed : ops::CudaForm::portable;
        ops::Segments s;
        s.q_offsets = {0, 512, tokens}, s.k_offsets = {0, begin, keys};
        s.q_offsets_device = at::tensor(at::ArrayRef<int32_t>(s.q_offsets), at::kInt).to(at::kCUDA);
        s.k_offsets_device = at::tensor(at::ArrayRef<int32_t>(s.k_offsets), at::kInt).to(at::kCUDA);
        s.max_q = 512, s.max_k = keys - begin;
        ops::Context ctx(at::kCUDA);
        ctx.workspace = workspace(
            ops::attention_workspace(shape, at::kBFloat16, ctx.device(), false, tokens, 2, s.max_k, true, keys));
        const at::Tensor fused = bf16({keys, 2 * kv_heads, d}).normal_(), k = fused.narrow(1, 0, kv_heads),
                         v = fused.narrow(1, kv_heads, kv_heads);
        const auto pass = [&](bool deterministic) {
            ctx.deterministic = deterministic;  // our own kernels serve the backward pass
            const at::Tensor out = at::empty_like(q), dq = at::empty_like(q), dk = bf16({keys, kv_heads, d}),
                             dv = at::empty_like(dk), lse = fp32({heads * tokens});
            ops::attention_forward(ctx, shape, s, q, k, v, out, lse);
            const auto choice = ops::choose_backward(ctx, shape, s, {dout, q, k, v, out, lse, dq, dk, dv});
            EXPECT_EQ(choice.kernels, deterministic ? ops::CudaForm::portable : cudnns);
            EXPECT_EQ(choice.by_heads, choice.kernels == ops::CudaForm::packed);
            ops::attention_backward(ctx, shape, s, dout, q, k, v, out, lse, dq, dk, dv);
            return std::array{dq, dk, dv};
        };
        const auto got = pass(false), wanted = pass(true);
        for (std::size_t i = 0; i < got.size(); ++i) expect_near(got[i], wanted[i], 2e-2);  // other kernels
    }
}

}  // namespace
}  // namespace unsloth
