// What every function that makes rows and their codes must give, on any device: the plain operator's bits, and the
// codes that LibTorch's conversions give for them.
#pragma once

#include <cstring>

#include "ops/op_cases.h"
#include "unsloth/ops/coded_rows.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/rope.h"
#include "unsloth/ops/swiglu.h"

namespace unsloth::testing {

using spec::Codes;

struct ExpectedCodes {
    at::Tensor codes, scales;
};

/// The rule of ops/coded_rows.h in LibTorch's own operators, on the CPU; rows must be finite.
inline ExpectedCodes codes_oracle(const at::Tensor& x_TC, Codes kind, const at::Tensor& factors) {
    at::Tensor x = x_TC.cpu().to(at::kFloat).contiguous();
    if (factors.defined()) x = x * factors.cpu().to(at::kFloat);
    if (factors.defined() && x_TC.scalar_type() == at::kBFloat16) x = x.to(at::kBFloat16).to(at::kFloat);
    const int64_t rows = x.size(0), columns = x.size(1);
    const bool int8 = kind == Codes::int8;
    const int64_t block = int8 ? ops::int8_block : columns, blocks = (columns + block - 1) / block;
    if (x.numel() == 0) return {x.to(ops::type_of(kind)), int8 ? at::ones({blocks, rows}) : at::ones({rows})};
    const at::Tensor parts = at::constant_pad_nd(x, {0, blocks * block - columns}).view({rows, blocks, block});
    const at::Tensor largest = parts.abs().amax(2);
    const at::Tensor least = at::full_like(largest, std::numeric_limits<float>::min());
    const at::Tensor scales =
        at::where(largest == 0, at::ones_like(largest), at::maximum(largest / (int8 ? 127 : 448), least));
    const auto product = int8 ? at::kDouble : at::kFloat;  // there exact, and so rounded once
    at::Tensor codes =
        (parts.to(product) * (1 / scales).unsqueeze(2).to(product)).view({rows, blocks * block}).narrow(1, 0, columns);
    if (int8) codes = codes.round();
    return {codes.contiguous().to(ops::type_of(kind)), int8 ? scales.t() : scales.squeeze(1)};
}

/// A matrix of codes and scales that nothing has written yet, of x of a product; int8 with factors.
inline ops::CodedMatrix poisoned_codes(int64_t rows, int64_t columns, at::Device device, Codes kind) {
    const at::Tensor bytes = at::full({rows * columns}, 0x7F, at::TensorOptions(at::kByte).device(device)),
                     scales = at::full({ops::scales_of(kind, rows, columns)}, NAN,
                                       at::TensorOptions(at::kFloat).device(device));
    ops::CodedMatrix out = ops::coded_view({bytes, scales}, rows, columns, ops::type_of(kind));
    if (kind == Codes::int8) out.factors = (at::randn({columns}) * 3).round().exp2().to(at::kBFloat16).to(device);
    return out;
}
inline ops::CodedMatrix poisoned_fp8(int64_t rows, int64_t columns, at::Device device) {
    return poisoned_codes(rows, columns, device, Codes::e4m3);
}

inline void expect_codes_of(const at::Tensor& x_TC, const ops::CodedMatrix& made) {
    const ExpectedCodes expected = codes_oracle(x_TC, ops::is_int8(made) ? Codes::int8 : Codes::e4m3, made.factors);
    EXPECT_TRUE(at::equal(made.scales.cpu(), expected.scales));
    const at::Tensor differ = made.codes.cpu().view(at::kByte) != expected.codes.view(at::kByte);
    EXPECT_EQ(differ.sum().item<int64_t>(), 0) << "codes differ";
}

/// Rows from 2^-10 to 2^10 in size, one of zeros, one whose scale is not a normal number.
inline at::Tensor fp8_rows(int64_t rows, int64_t columns) {
    at::Tensor x = at::randn({rows, columns}) * (at::rand({rows, 1}) * 20 - 10).exp2();
    if (rows > 2) x[1].zero_();
    if (rows > 3) x[2] = at::randn({columns}) * 1e-38;
    return x;
}

struct CodedShape {
    int64_t rows, columns;
};

/// Slices in the layouts that a device takes.
inline std::vector<Layout> fp8_layouts(at::Device device) {
    if (device.is_cuda()) return {Layout::packed, Layout::wide};
    return {Layout::packed, Layout::wide, Layout::unaligned};
}

inline void check_quantize_rows_codes(at::Device device, at::ScalarType type, const std::vector<CodedShape>& shapes,
                                      Codes kind = Codes::e4m3) {
    ops::Context ctx(device);
    for (const CodedShape& shape : shapes)
        for (const Layout layout : fp8_layouts(device)) {
            SCOPED_TRACE(case_name("rows", shape.rows, shape.columns, c10::toString(type), name_of(layout)));
            const at::Tensor x = slice_of(fp8_rows(shape.rows, shape.columns), type, layout);
            const at::Tensor on_device = copy_with_storage(x, device);
            const ops::CodedMatrix out = poisoned_codes(shape.rows, shape.columns, device, kind);
            ops::quantize_rows(ctx, on_device, out);
            expect_codes_of(x, out);
            EXPECT_TRUE(same_bits(copy_with_storage(on_device, at::kCPU), x)) << "the input was changed";
            if (kind == Codes::int8) continue;
            const at::Tensor back = copy_with_storage(on_device, device);
            ops::dequantize_rows(ctx, out, back);
            const at::Tensor values = out.codes.to(at::kCPU).to(at::kFloat) * out.scales.to(at::kCPU).unsqueeze(1);
            EXPECT_TRUE(at::equal(at::nan_to_num(back.to(at::kCPU, at::kFloat)),
                                  at::nan_to_num(values.to(type).to(at::kFloat))));
        }
}

inline void check_quantize_columns_fp8(at::Device device, at::ScalarType type, const std::vector<CodedShape>& shapes) {
    ops::Context ctx(device);
    for (const CodedShape& shape : shapes)
        for (const Layout layout : fp8_layouts(device)) {
            SCOPED_TRACE(case_name("columns", shape.rows, shape.columns, c10::toString(type), name_of(layout)));
            const at::Tensor transpose = fp8_rows(shape.columns, shape.rows);
            const at::Tensor w = slice_of(transpose.t(), type, layout);
            const ops::CodedMatrix out = poisoned_fp8(shape.columns, shape.rows, device);
            ops::quantize_columns(ctx, copy_with_storage(w, device), out);
            expect_codes_of(w.t(), out);
        }
}

inline void check_rms_norm_codes(at::Device device, at::ScalarType type, const std::vector<CodedShape>& shapes,
                                 Codes kind = Codes::e4m3) {
    ops::Context ctx(device);
    for (const CodedShape& shape : shapes)
        for (const Layout layout : fp8_layouts(device))
            for (const at::ScalarType weight_type : {type, at::kFloat}) {
                SCOPED_TRACE(case_name("norm", shape.rows, shape.columns, c10::toString(type), name_of(layout)));
                const at::Tensor x =
                    copy_with_storage(slice_of(fp8_rows(shape.rows, shape.columns), type, layout), device);
                const at::Tensor weight = at::randn({shape.columns}).to(device, weight_type);
                const at::Tensor poison = poisoned_slice(x.sizes(), type, layout);
                const at::Tensor plain = copy_with_storage(poison, device), y = copy_with_storage(poison, device);
                const at::Tensor rstd = at::full({shape.rows}, NAN, x.options().dtype(at::kFloat)),
                                 rstd8 = rstd.clone();
                const ops::CodedMatrix out = poisoned_codes(shape.rows, shape.columns, device, kind),
                                       alone = poisoned_codes(shape.rows, shape.columns, device, kind);
                ops::rms_norm_forward(ctx, x, weight, 1e-5, plain, rstd);
                ops::rms_norm_forward_coded(ctx, x, weight, 1e-5, y, rstd8, out);
                EXPECT_TRUE(same_bits(y.cpu(), plain.cpu()));
                expect_untouched_outside(copy_with_storage(y, at::kCPU), poison, "y");
                EXPECT_TRUE(at::equal(rstd, rstd8));
                expect_codes_of(y, out);
                rstd8.fill_(NAN);
                ops::rms_norm_forward_coded(ctx, x, weight, 1e-5, {}, rstd8, alone);
                EXPECT_TRUE(at::equal(rstd, rstd8));
                expect_codes_of(plain, alone);
            }
}

inline void check_swiglu_codes(at::Device device, at::ScalarType type, const std::vector<CodedShape>& shapes,
                               Codes kind = Codes::e4m3) {
    ops::Context ctx(device);
    for (const CodedShape& shape : shapes)
        for (const Layout layout : fp8_layouts(device)) {
            SCOPED_TRACE(case_name("swiglu", shape.rows, shape.columns, c10::toString(type), name_of(layout)));
            const int64_t rows = shape.rows, columns = shape.columns;
            const at::Tensor gu = copy_with_storage(slice_of(at::randn({rows, 2 * columns}) * 4, type, layout), device);
            const at::Tensor dact = copy_with_storage(slice_of(fp8_rows(rows, columns), type, layout), device);
            const at::Tensor poison = copy_with_storage(poisoned_slice({rows, columns}, type, layout), device);
            const auto copy = [&](const at::Tensor& t) { return copy_with_storage(t, device); };

            const at::Tensor act = copy(poison), act8 = copy(poison);
            const ops::CodedMatrix out = poisoned_codes(rows, columns, device, kind),
                                   alone = poisoned_codes(rows, columns, device, kind);
            ops::swiglu_forward(ctx, gu, act);
            ops::swiglu_forward_coded(ctx, gu, act8, out);
            EXPECT_TRUE(same_bits(act8.cpu(), act.cpu()));
            expect_codes_of(act, out);
            ops::swiglu_forward_coded(ctx, gu, {}, alone);
            expect_codes_of(act, alone);

            // The activation beside dact, in its place, and not wanted.
            const at::Tensor plain = copy(gu);
            ops::swiglu_backward(ctx, dact, plain);
            const at::Tensor rebuilt = copy(poison), replaced = copy(dact), kept = copy(dact);
            for (const auto& [from, to] : {std::pair{kept, rebuilt}, {replaced, replaced}, {kept, at::Tensor()}}) {
                const at::Tensor gradient = copy(gu);
                const ops::CodedMatrix codes = poisoned_codes(rows, 2 * columns, device, kind);
                ops::swiglu_backward_coded(ctx, from, gradient, to, codes);
                EXPECT_TRUE(same_bits(gradient.cpu(), plain.cpu()));
                expect_codes_of(plain, codes);
                EXPECT_TRUE(!to.defined() || same_bits(to.cpu(), act.cpu()));
            }
            EXPECT_TRUE(same_bits(kept.cpu(), dact.cpu())) << "dact was changed";
        }
}

struct CodedHeads {
    int64_t rows, turned, kept, head_dim;
};

inline void check_rope_codes(at::Device device, at::ScalarType type, const std::vector<CodedHeads>& shapes,
                             Codes kind = Codes::e4m3) {
    ops::Context ctx(device);
    for (const CodedHeads& shape : shapes)
        for (const Layout layout : fp8_layouts(device))
            for (const bool backward : {false, true}) {
                const int64_t heads = shape.turned + shape.kept, columns = heads * shape.head_dim;
                SCOPED_TRACE(
                    case_name("rope", shape.rows, heads, shape.head_dim, c10::toString(type), name_of(layout)));
                const at::Tensor x = copy_with_storage(slice_of(fp8_rows(shape.rows, columns), type, layout), device);
                const at::Tensor plain = copy_with_storage(x, device);
                const at::Tensor angle = at::randn({shape.rows, shape.head_dim / 2}) * 9;
                const at::Tensor cos = angle.cos().to(device), sin = angle.sin().to(device);
                const at::Tensor turned =
                    plain.as_strided({shape.rows, shape.turned, shape.head_dim}, {plain.stride(0), shape.head_dim, 1},
                                     plain.storage_offset());
                ops::rope_apply(ctx, turned, cos, sin, backward);
                const ops::CodedMatrix out = poisoned_codes(shape.rows, columns, device, kind);
                ops::rope_apply_coded(ctx, x, shape.turned, cos, sin, backward, out);
                EXPECT_TRUE(same_bits(x.cpu(), plain.cpu()));
                expect_codes_of(plain, out);
            }
}

/// Rows of logits, longer than those that are made together with their codes: vocabularies, and lengths that leave
/// threads without a pack. By columns they are lm_head.
inline const std::vector<CodedShape> fp8_vocabularies = {{3, 65544}, {5, 73728}, {4, 128256}, {2, 151936}, {4, 200000}};
inline const std::vector<CodedShape> fp8_heads = {{65544, 8}, {128256, 72}, {151936, 16}};

/// A value that is not finite makes its row's scale not finite, and no other's; what follows a norm too.
inline void expect_codes_keep_what_is_not_finite(at::Device device, at::ScalarType type, int64_t columns = 64,
                                                 Codes kind = Codes::e4m3) {
    ops::Context ctx(device);
    const at::Tensor x = fp8_rows(7, columns).to(type);
    x[3][5] = INFINITY;
    x[4][columns - 1] = NAN;
    x[6][0] = -INFINITY;
    const ops::CodedMatrix out = poisoned_codes(7, columns, device, kind),
                           of_norm = poisoned_codes(7, columns, device, kind);
    ops::quantize_rows(ctx, x.to(device), out);
    std::vector<ops::CodedMatrix> all{out};
    const at::Tensor rstd = at::empty({7}, at::TensorOptions(at::kFloat).device(device));
    const at::Tensor weight = at::ones({columns}, at::TensorOptions(type).device(device));
    if (columns <= ops::coded_longest_row(device)) {
        ops::rms_norm_forward_coded(ctx, x.to(device), weight, 1e-5, {}, rstd, of_norm);
        all.push_back(of_norm);
    }
    for (const ops::CodedMatrix& made : all) {
        const at::Tensor scales = kind == Codes::int8 ? made.scales.cpu().sum(0) : made.scales.cpu(),
                         values = made.codes.cpu().to(at::kFloat) * scales.unsqueeze(1);
        const at::Tensor finite = values.isfinite().all(1);
        for (int64_t row = 0; row < 7; ++row)
            EXPECT_EQ(finite[row].item<bool>(), row != 3 && row != 4 && row != 6) << row;
    }
}

}  // namespace unsloth::testing
