// Cases of the 4-bit operators, run on the CPU (tests/ops) and on the GPU (tests/gpu).
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ops/golden_files.h"
#include "unsloth/core/error.h"
#include "unsloth/formats/bnb4.h"
#include "unsloth/ops/quant.h"
#include "unsloth/spec/dynamic_map.h"

namespace unsloth::quant_cases {

inline const std::vector<const char*> kinds = {"nf4_dq", "nf4", "fp4"};
inline const std::vector<const char*> weights = {"model.layers.0.mlp.down_proj.weight",
                                                 "model.layers.1.self_attn.k_proj.weight"};

/// Shapes whose columns are and are no multiple of 64, of 8, of 2; with a partial last block; with several
/// nested blocks.
inline const std::vector<std::pair<int64_t, int64_t>> shapes = {{1, 1},    {1, 63}, {2, 65},     {3, 5},    {5, 64},
                                                                {3, 216},  {7, 9},  {16, 24},    {33, 40},  {129, 72},
                                                                {67, 128}, {40, 8}, {128, 1024}, {257, 513}};

/// A random 4-bit weight in host memory, every code and absmax code possible.
inline ops::Quant4Tensor random_weight(int64_t rows, int64_t cols, bool nested, at::Generator generator) {
    const int64_t elements = rows * cols, blocks = (elements + 63) / 64;
    ops::Quant4Tensor weight;
    weight.rows = rows;
    weight.cols = cols;
    weight.packed = at::randint(256, {(elements + 1) / 2}, generator, at::kByte);
    weight.tables = at::empty({272}, at::kFloat);
    std::copy(std::begin(spec::nf4_code), std::end(spec::nf4_code), weight.tables.data_ptr<float>());
    std::copy(spec::dynamic_map_256(true).begin(), spec::dynamic_map_256(true).end(),
              weight.tables.data_ptr<float>() + 16);
    if (nested) {
        weight.absmax = at::randint(256, {blocks}, generator, at::kByte);
        weight.nested_absmax = at::rand({(blocks + 255) / 256}, generator) * 0.03;
        weight.nested_offset = 0.0731F;
    } else {
        weight.absmax = at::rand({blocks}, generator) * 0.1;
    }
    return weight;
}

/// The same of MXFP4, whose columns are whole blocks of 32.
inline ops::Quant4Tensor random_mxfp4(int64_t rows, int64_t cols, at::Generator generator) {
    ops::Quant4Tensor weight;
    weight.rows = rows;
    weight.cols = cols;
    weight.packed = at::randint(256, {rows * cols / 2}, generator, at::kByte);
    weight.absmax = at::randint(255, {rows * cols / 32}, generator, at::kByte);
    weight.tables = at::zeros({272}, at::kFloat);
    std::copy(std::begin(spec::mxfp4_code), std::end(spec::mxfp4_code), weight.tables.data_ptr<float>());
    return weight;
}

/// Each exponent a row, with every code twice.
inline ops::Quant4Tensor every_mxfp4_value() {
    ops::Quant4Tensor weight = random_mxfp4(255, 32, at::detail::createCPUGenerator(1));
    for (int row = 0; row < 255; ++row) {
        weight.absmax[row] = row;
        for (int pair = 0; pair < 16; ++pair) weight.packed[row * 16 + pair] = pair % 8 * 2 * 16 + pair % 8 * 2 + 1;
    }
    return weight;
}

/// The definition, element by element, in fp32: written apart from the product's code.
inline at::Tensor reference(const ops::Quant4Tensor& weight) {
    const int64_t elements = weight.rows * weight.cols;
    at::Tensor result = at::empty({elements}, at::kFloat);
    for (int64_t i = 0; i < elements; ++i) {
        const uint8_t byte = weight.packed.data_ptr<uint8_t>()[i / 2];
        const int code = i % 2 == 0 ? byte / 16 : byte % 16;
        volatile float scale = 0;  // volatile: each operation is rounded
        if (weight.is_mxfp4()) {
            scale = static_cast<float>(std::pow(2.0, weight.absmax.data_ptr<uint8_t>()[i / 32] - 127));
        } else if (weight.nested_absmax.defined()) {
            scale = weight.tables.data_ptr<float>()[16 + weight.absmax.data_ptr<uint8_t>()[i / 64]];
            scale = scale * weight.nested_absmax.data_ptr<float>()[i / 64 / 256];
            scale = scale + weight.nested_offset;
        } else {
            scale = weight.absmax.data_ptr<float>()[i / 64];
        }
        result.data_ptr<float>()[i] = weight.tables.data_ptr<float>()[code] * scale;
    }
    return result.view({weight.rows, weight.cols});
}

/// A random 8-bit weight in host memory, and its values in fp32: each product rounded.
inline ops::Int8Tensor random_int8(int64_t rows, int64_t cols, at::Generator generator) {
    return {at::randint(-127, 128, {rows, cols}, generator, at::kChar), at::rand({rows}, generator)};
}
inline at::Tensor reference(const ops::Int8Tensor& weight) {
    const at::Tensor product = weight.codes.to(at::kFloat) * weight.maxima.unsqueeze(1);
    return product * 7.874015718698502e-3F;
}

/// Expands 8-bit weights and gathers rows of 4 and 8-bit tables, into strided buffers, on the context's device.
inline void expect_quantised_rows(ops::Context& ctx, at::Generator generator) {
    for (const auto& [rows, cols] : shapes)
        for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf})
            for (const int64_t margin : {0, 8, 3}) {
                SCOPED_TRACE(cat(rows, " x ", cols, " ", c10::toString(type), " margin ", margin));
                const auto there = [&](const at::Tensor& tensor) { return tensor.to(ctx.device()); };
                const auto buffer = [&](int64_t count) {
                    return at::full({count, cols + margin}, 7, at::device(ctx.device()).dtype(type));
                };
                const auto expect = [&](const at::Tensor& got, const at::Tensor& values) {
                    EXPECT_TRUE(golden::same_bits(got.narrow(1, 0, cols).cpu().contiguous(), values.to(type)));
                    EXPECT_TRUE((got.narrow(1, cols, margin) == 7).all().item<bool>());
                };
                const ops::Int8Tensor int8 = random_int8(rows, cols, generator);
                const ops::Int8Tensor int8_there{there(int8.codes), there(int8.maxima)};
                at::Tensor out = buffer(rows);
                ops::dequantize_int8(ctx, int8_there, out.narrow(1, 0, cols));
                expect(out, reference(int8));
                const at::Tensor index = at::randint(rows, {37}, generator, at::kInt);
                out = buffer(37);
                ops::gather_rows(ctx, int8_there, there(index), out.narrow(1, 0, cols));
                expect(out, reference(int8).index_select(0, index));
                for (const bool nested : {false, true}) {
                    const ops::Quant4Tensor table = random_weight(rows, cols, nested, generator);
                    out = buffer(37);
                    const ops::Quant4Tensor table_there = ops::upload(ctx, table.view());
                    ops::gather_rows(ctx, table_there.view(), there(index), out.narrow(1, 0, cols));
                    expect(out, reference(table).index_select(0, index));
                }
            }
}

/// Dequantises into columns [offset, offset + K) of a wider buffer full of 7 and returns the whole buffer.
inline at::Tensor dequantize_into_wider(ops::Context& ctx, const ops::Quant4Tensor& weight, at::ScalarType type,
                                        int64_t offset, int64_t margin) {
    at::Tensor wide =
        at::full({weight.rows, offset + weight.cols + margin}, 7.0, at::TensorOptions(ctx.device()).dtype(type));
    ops::dequantize_4bit(ctx, weight.view(), wide.slice(1, offset, offset + weight.cols));
    return wide;
}

/// What dequantize_into_wider must give.
inline at::Tensor expected_wider(const at::Tensor& weight_NK, at::ScalarType type, int64_t offset, int64_t margin) {
    at::Tensor wide = at::full({weight_NK.size(0), offset + weight_NK.size(1) + margin}, 7.0, at::dtype(type));
    wide.slice(1, offset, offset + weight_NK.size(1)).copy_(weight_NK.to(type));
    return wide;
}

/// MXFP4 in every type, at several places of a wider buffer, beside a weight with other blocks, and by rows.
inline void expect_mxfp4(ops::Context& ctx, at::Generator generator) {
    constexpr float magnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};  // of the specification
    const ops::Quant4Tensor every = every_mxfp4_value();
    const at::Tensor values = reference(every);
    for (int row = 0; row < 255; ++row)
        for (int code = 0; code < 16; ++code) {
            const float value = values[row][code].item<float>();
            ASSERT_EQ(std::abs(value), std::ldexp(magnitudes[code % 8], row - 127))
                << "code " << code << " row " << row;
            ASSERT_EQ(std::signbit(value), code >= 8);
        }
    std::vector<ops::Quant4Tensor> weights = {every};
    for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 32}, {3, 96}, {5, 64}, {33, 224}, {129, 160}, {128, 1024}, {65, 2880}})
        weights.push_back(random_mxfp4(rows, cols, generator));
    for (const ops::Quant4Tensor& host : weights) {
        const ops::Quant4Tensor weight = ops::upload(ctx, host.view()), other = random_weight(3, 64, true, generator);
        const at::Tensor expected = reference(host), index = at::randint(host.rows, {37}, generator, at::kInt);
        const ops::Quant4Tensor other_there = ops::upload(ctx, other.view());
        for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
            SCOPED_TRACE(cat(host.rows, " x ", host.cols, " ", c10::toString(type)));
            for (const auto& [offset, margin] : {std::pair{0, 0}, std::pair{16, 8}, std::pair{3, 1}})
                EXPECT_TRUE(golden::same_bits(dequantize_into_wider(ctx, weight, type, offset, margin),
                                              expected_wider(expected, type, offset, margin)));
            const auto options = at::device(ctx.device()).dtype(type);
            const std::vector<at::Tensor> outs = {at::empty({3, 64}, options), at::empty(expected.sizes(), options),
                                                  at::empty({3, 64}, options)};
            const std::vector<spec::Quant4View> views = {other_there.view(), weight.view(), other_there.view()};
            ops::dequantize_4bit(ctx, views, outs);
            for (const std::size_t i : {0, 2}) EXPECT_TRUE(golden::same_bits(outs[i], reference(other).to(type)));
            EXPECT_TRUE(golden::same_bits(outs[1], expected.to(type)));
            const at::Tensor rows = at::empty({37, host.cols}, options);
            ops::gather_rows(ctx, weight.view(), index.to(ctx.device()), rows);
            EXPECT_TRUE(golden::same_bits(rows, expected.index_select(0, index).to(type)));
        }
    }
    spec::Quant4View half_a_block = every.view();
    half_a_block.cols = 16;
    EXPECT_THROW(ops::upload(ctx, half_a_block), CheckError);
}

/// More weights than a launch takes, of which some need the general kernel, into rows of one wide buffer; an
/// empty one too.
inline void expect_several_at_once(ops::Context& ctx, at::ScalarType type, at::Generator generator) {
    const std::vector<std::pair<int64_t, int64_t>> shapes = {{64, 64}, {16, 64}, {7, 63}, {0, 64}, {33, 40}, {128, 64},
                                                             {5, 8},   {40, 64}, {1, 64}, {3, 56}, {67, 64}, {2, 32}};
    constexpr int64_t width = 64, margin = 16;
    int64_t rows = 0;
    for (const auto& shape : shapes) rows += shape.first;
    const at::Tensor got = at::full({rows, width + margin}, 7.0, at::TensorOptions(ctx.device()).dtype(type));
    const at::Tensor expected = at::full({rows, width + margin}, 7.0, at::dtype(type));
    std::vector<ops::Quant4Tensor> host, weights;
    std::vector<spec::Quant4View> views;
    std::vector<at::Tensor> outs;
    int64_t row = 0;
    for (const auto& [n, k] : shapes) {
        host.push_back(random_weight(n, k, views.size() % 2 == 0, generator));
        weights.push_back(ops::upload(ctx, host.back().view()));
        views.push_back(weights.back().view());
        outs.push_back(got.narrow(0, row, n).narrow(1, 0, k));
        expected.narrow(0, row, n).narrow(1, 0, k).copy_(reference(host.back()).to(type));
        row += n;
    }
    ops::dequantize_4bit(ctx, views, outs);
    EXPECT_TRUE(golden::same_bits(got, expected));
    ops::dequantize_4bit(ctx, std::span<const spec::Quant4View>(), std::span<const at::Tensor>());
    outs.pop_back();
    EXPECT_THROW(ops::dequantize_4bit(ctx, views, outs), CheckError);
    outs.push_back(at::empty({2, 32}, got.options().dtype(type == at::kHalf ? at::kFloat : at::kHalf)));
    EXPECT_THROW(ops::dequantize_4bit(ctx, views, outs), CheckError);
}

}  // namespace unsloth::quant_cases
