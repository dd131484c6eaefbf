// Cases of moving and summing rows, and of dropout.
#pragma once

#include <map>

#include "ops/op_cases.h"
#include "unsloth/core/philox.h"
#include "unsloth/ops/rows.h"

namespace unsloth::testing {

inline at::Tensor random_permutation(int64_t n) {
    return at::randperm(n, at::TensorOptions(at::kInt));
}

inline OpCase gather_case(int64_t vocabulary, int64_t columns, int64_t rows, at::ScalarType from, at::ScalarType to,
                          Layout layout) {
    OpCase c;
    c.name =
        "gather_rows " + case_name(vocabulary, columns, rows, c10::toString(from), c10::toString(to), name_of(layout));
    c.args = {{"table", slice_of(at::randn({vocabulary, columns}), from, layout)},
              {"index", at::randint(0, vocabulary, {rows}, at::kInt)},
              {"out", poisoned_slice({rows, columns}, to, layout), Role::output}};
    c.run = [](ops::Context& ctx, const Tensors& a) { ops::gather_rows(ctx, a[0], a[1], a[2]); };
    c.expected = [](const Tensors& a) { return Tensors{a[0].index_select(0, a[1])}; };
    return c;
}

inline OpCase scatter_case(int64_t tokens, int64_t columns, int64_t rows, at::ScalarType from, at::ScalarType to,
                           Layout layout) {
    OpCase c;
    c.name =
        "scatter_rows " + case_name(tokens, columns, rows, c10::toString(from), c10::toString(to), name_of(layout));
    // `out` keeps the rows that no index names: they must be bitwise what they were.
    c.args = {{"rows", slice_of(at::randn({rows, columns}), from, layout)},
              {"index", random_permutation(tokens).narrow(0, 0, rows).contiguous()},
              {"out", slice_of(at::randn({tokens, columns}), to, layout), Role::both}};
    c.run = [](ops::Context& ctx, const Tensors& a) { ops::scatter_rows(ctx, a[0], a[1], a[2]); };
    c.expected = [](const Tensors& a) { return Tensors{a[2].index_copy(0, a[1].to(at::kLong), a[0])}; };
    return c;
}

inline OpCase copy_case(int64_t rows, int64_t columns, at::ScalarType from, at::ScalarType to, Layout layout,
                        double scale) {
    OpCase c;
    c.name = "copy_2d " + case_name(rows, columns, c10::toString(from), c10::toString(to), name_of(layout), scale);
    c.args = {{"src", slice_of(at::randn({rows, columns}), from, layout)},
              {"out", poisoned_slice({rows, columns}, to, layout), Role::output}};
    c.run = [=](ops::Context& ctx, const Tensors& a) { ops::copy_2d(ctx, a[0], a[1], scale); };
    c.expected = [=](const Tensors& a) { return Tensors{a[0] * scale}; };
    return c;
}

inline OpCase zero_case(int64_t rows, int64_t columns, at::ScalarType dtype, Layout layout) {
    OpCase c;
    c.name = "zero_2d " + case_name(rows, columns, c10::toString(dtype), name_of(layout));
    c.args = {{"out", poisoned_slice({rows, columns}, dtype, layout), Role::output}};
    c.run = [](ops::Context& ctx, const Tensors& a) { ops::zero_2d(ctx, a[0]); };
    c.expected = [](const Tensors& a) { return Tensors{at::zeros_like(a[0])}; };
    return c;
}

inline OpCase zero_others_case(int64_t rows, int64_t columns, at::ScalarType dtype, Layout layout) {
    OpCase c;
    c.name = "zero_others " + case_name(rows, columns, c10::toString(dtype), name_of(layout));
    // One more owner of rows than of columns: some have none.
    c.args = {{"owner of rows", at::randint(-1, 3, {rows}, at::kInt)},
              {"owner of columns", at::randint(0, 3, {columns}, at::kInt)},
              {"x", slice_of(at::randn({rows, columns}), dtype, layout), Role::both}};
    c.run = [](ops::Context& ctx, const Tensors& a) { ops::zero_others(ctx, a[0], a[1], a[2]); };
    c.expected = [](const Tensors& a) { return Tensors{at::where(a[0].unsqueeze(1) == a[1], a[2], 0.0)}; };
    return c;
}

/// Rows in another order than their tokens, some tokens more than once.
inline OpCase zero_others_by_token_case(int64_t rows, int64_t tokens, int64_t columns, at::ScalarType dtype,
                                        Layout layout) {
    OpCase c = zero_others_case(rows, columns, dtype, layout);
    c.name = "zero_others by token" + case_name(rows, columns, c10::toString(dtype), name_of(layout));
    c.args[0] = {"owner of tokens", at::randint(-1, 3, {tokens}, at::kInt)};
    c.args.push_back({"tokens", at::randint(0, tokens, {rows}, at::kInt)});
    c.run = [](ops::Context& ctx, const Tensors& a) { ops::zero_others(ctx, a[0], a[1], a[2], a[3]); };
    c.expected = [](const Tensors& a) {
        const at::Tensor owner_n = a[0].index_select(0, a[3].to(at::kLong));
        return Tensors{at::where(owner_n.unsqueeze(1) == a[1], a[2], 0.0)};
    };
    return c;
}

inline OpCase embedding_backward_case(int64_t tokens, int64_t vocabulary, int64_t columns, at::ScalarType dtype,
                                      Layout layout) {
    const at::Tensor ids = at::randint(0, vocabulary, {tokens}, at::kInt);
    std::map<int32_t, std::vector<int32_t>> runs;
    for (int64_t t = 0; t < tokens; ++t) runs[ids[t].item<int32_t>()].push_back(static_cast<int32_t>(t));
    std::vector<int32_t> order, unique, starts = {0};
    for (const auto& [id, places] : runs) {
        unique.push_back(id);
        order.insert(order.end(), places.begin(), places.end());
        starts.push_back(static_cast<int32_t>(order.size()));
    }
    OpCase c;
    c.name = "embedding_backward " + case_name(tokens, vocabulary, columns, c10::toString(dtype), name_of(layout));
    c.args = {{"dy", slice_of(at::randn({tokens, columns}), dtype, layout)},
              {"order", at::tensor(order, at::kInt)},
              {"unique", at::tensor(unique, at::kInt)},
              {"starts", at::tensor(starts, at::kInt)},
              {"dtable", slice_of(at::randn({vocabulary, columns}), at::kFloat, layout), Role::both}};
    c.run = [](ops::Context& ctx, const Tensors& a) { ops::embedding_backward(ctx, a[0], a[1], a[2], a[3], a[4]); };
    c.expected = [=](const Tensors& a) { return Tensors{a[4].index_add(0, ids, a[0])}; };
    return c;
}

inline OpCase column_sums_case(int64_t rows, int64_t columns, at::ScalarType dtype, Layout layout) {
    OpCase c;
    c.name = "column_sums " + case_name(rows, columns, c10::toString(dtype), name_of(layout));
    c.args = {{"dy", slice_of(at::randn({rows, columns}) + 0.5, dtype, layout)},
              {"dbias", at::randn({columns}), Role::both}};
    c.run = [](ops::Context& ctx, const Tensors& a) { ops::column_sums(ctx, a[0], a[1]); };
    c.expected = [](const Tensors& a) { return Tensors{a[1] + a[0].sum(0)}; };
    return c;
}

/// One element at a time, straight from the definition in core/philox.h.
inline at::Tensor dropout_mask(const at::Tensor& row, const at::Tensor& offset, int64_t columns, double p,
                               const spec::StepScalars& scalars, ops::DropoutKey key) {
    const at::Tensor mask = at::empty({row.size(0), columns}, at::kDouble);
    auto value = mask.accessor<double, 2>();
    const uint32_t site = dropout_site(scalars.epoch, key.layer, key.projection);
    for (int64_t t = 0; t < row.size(0); ++t) {
        const auto row_id = static_cast<uint32_t>(row[t].item<int32_t>());
        const auto place = static_cast<uint32_t>(offset[t].item<int32_t>());
        for (int64_t c = 0; c < columns; ++c) {
            const auto channel = key.first_channel + static_cast<uint32_t>(c);
            const PhiloxWords words = philox4x32(scalars.seed_lo, scalars.seed_hi, row_id, place, site, channel / 4);
            value[t][c] = unit_float(words.w[channel % 4]) >= static_cast<float>(p) ? 1.0 / (1.0 - p) : 0.0;
        }
    }
    return mask;
}

enum class DropoutMode { separate, in_place, accumulate };

inline OpCase dropout_case(int64_t tokens, int64_t columns, at::ScalarType dtype, Layout layout, double p,
                           DropoutMode mode, uint32_t first_channel = 0) {
    OpCase c;
    c.name = "dropout " + case_name(tokens, columns, c10::toString(dtype), name_of(layout), p, static_cast<int>(mode),
                                    first_channel);
    c.scalars = test_scalars();
    const ops::DropoutKey key{31, 6, first_channel};
    const bool in_place = mode == DropoutMode::in_place, accumulate = mode == DropoutMode::accumulate;
    c.args = {{"row", at::randint(0, 100000, {tokens}, at::kInt)},
              {"offset", at::randint(0, 2048, {tokens}, at::kInt)},
              {"x", slice_of(at::randn({tokens, columns}), dtype, layout), in_place ? Role::both : Role::input}};
    if (accumulate) c.args.push_back({"out", slice_of(at::randn({tokens, columns}), dtype, layout), Role::both});
    if (mode == DropoutMode::separate)
        c.args.push_back({"out", poisoned_slice({tokens, columns}, dtype, layout), Role::output});
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::dropout(ctx, a[2], a[0], a[1], p, key, a.back(), accumulate);
    };
    const spec::StepScalars scalars = c.scalars;
    c.expected = [=](const Tensors& a) {
        const at::Tensor dropped = a[2] * dropout_mask(a[0], a[1], columns, p, scalars, key);
        return Tensors{accumulate ? a[3] + dropped : dropped};
    };
    return c;
}

/// Rows of which some are gathered up to `each` times, and some not at all.
inline OpCase sum_rows_case(int64_t tokens, int64_t columns, int64_t rows, at::ScalarType dtype, Layout layout,
                            bool weighted, int64_t each = 2) {
    const at::Tensor index = at::randperm(each * tokens, at::TensorOptions(at::kLong)).narrow(0, 0, rows);
    const at::Tensor places = at::full({each * tokens}, -1, at::kInt);
    places.index_copy_(0, index, at::arange(rows, at::kInt));
    OpCase c;
    c.name = "sum_rows " + case_name(tokens, columns, rows, c10::toString(dtype), name_of(layout), weighted, each);
    c.args = {{"rows", slice_of(at::randn({rows, columns}), dtype, layout)},
              {"places", places.view({tokens, each})},
              {"out", poisoned_slice({tokens, columns}, dtype, layout), Role::output}};
    if (weighted) c.args.push_back({"weight", at::randn({rows})});
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::sum_rows(ctx, a[0], a[1], a[2], weighted ? a[3] : at::Tensor());
    };
    c.expected = [=](const Tensors& a) {
        const at::Tensor scaled = weighted ? a[0] * a[3].unsqueeze(1) : a[0];
        return Tensors{at::zeros({tokens, columns}, scaled.options())
                           .index_add(0, index.div(each, "floor").to(at::kLong), scaled)};
    };
    return c;
}

/// One element at a time, straight from the definition in core/philox.h.
inline OpCase noise_case(int64_t tokens, int64_t columns, at::ScalarType dtype, Layout layout) {
    OpCase c;
    c.name = "add_noise " + case_name(tokens, columns, c10::toString(dtype), name_of(layout));
    c.scalars = test_scalars();
    c.args = {{"row", at::randint(0, 100000, {tokens}, at::kInt)},
              {"offset", at::randint(0, 2048, {tokens}, at::kInt)},
              {"magnitude", at::rand({tokens})},
              {"x", slice_of(at::randn({tokens, columns}), dtype, layout), Role::both}};
    c.run = [](ops::Context& ctx, const Tensors& a) { ops::add_noise(ctx, a[3], a[0], a[1], a[2]); };
    const spec::StepScalars scalars = c.scalars;
    c.expected = [=](const Tensors& a) {
        const at::Tensor noise = at::empty({tokens, columns}, at::kDouble);
        for (int64_t t = 0; t < tokens; ++t)
            for (int64_t k = 0; k < columns; ++k) {
                const PhiloxWords words =
                    philox4x32(scalars.seed_lo, scalars.seed_hi, static_cast<uint32_t>(a[0][t].item<int32_t>()),
                               static_cast<uint32_t>(a[1][t].item<int32_t>()), scalars.epoch << 16 | 7,
                               static_cast<uint32_t>(k / 4));
                noise[t][k] = 2.0 * unit_float(words.w[k % 4]) - 1.0;
            }
        return Tensors{a[3] + a[2].unsqueeze(1) * noise};
    };
    return c;
}

inline std::vector<OpCase> rows_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    for (const Layout layout : all_layouts) {
        for (const at::ScalarType from : compute_dtypes) {
            for (const at::ScalarType to : compute_dtypes) {
                cases.push_back(gather_case(11, 48, 23, from, to, layout));
                cases.push_back(gather_case(5, 13, 7, from, to, layout));
                cases.push_back(scatter_case(19, 40, 8, from, to, layout));
                cases.push_back(scatter_case(6, 3, 6, from, to, layout));
                cases.push_back(copy_case(1, 1, from, to, layout, 1.0));
                cases.push_back(copy_case(37, 16, from, to, layout, 0.5));
                cases.push_back(copy_case(3, 1029, from, to, layout, 1.7));
                cases.push_back(copy_case(5, 4096, from, to, layout, 1.0));
            }
            cases.push_back(sum_rows_case(19, 40, 25, from, layout, true));
            cases.push_back(sum_rows_case(19, 40, 12, from, layout, false));
            cases.push_back(sum_rows_case(6, 3, 12, from, layout, true));
            cases.push_back(sum_rows_case(7, 40, 30, from, layout, true, 5));
            cases.push_back(sum_rows_case(7, 24, 30, from, layout, false, 8));
            cases.push_back(noise_case(3, 1, from, layout));
            cases.push_back(noise_case(9, 23, from, layout));
            cases.push_back(noise_case(5, 64, from, layout));
            cases.push_back(zero_case(7, 24, from, layout));
            cases.push_back(zero_case(1, 5, from, layout));
            cases.push_back(zero_others_case(7, 24, from, layout));
            cases.push_back(zero_others_case(70, 48, from, layout));
            cases.push_back(zero_others_case(3, 5, from, layout));
            cases.push_back(zero_others_by_token_case(70, 9, 48, from, layout));
            cases.push_back(zero_others_by_token_case(6, 2, 5, from, layout));
            cases.push_back(embedding_backward_case(40, 9, 37, from, layout));
            cases.push_back(embedding_backward_case(1, 3, 8, from, layout));
            cases.push_back(column_sums_case(1, 1, from, layout));
            cases.push_back(column_sums_case(100, 37, from, layout));
            cases.push_back(column_sums_case(33, 600, from, layout));
            for (const DropoutMode mode : {DropoutMode::separate, DropoutMode::in_place, DropoutMode::accumulate}) {
                cases.push_back(dropout_case(3, 1, from, layout, 0.5, mode));
                cases.push_back(dropout_case(9, 23, from, layout, 0.1, mode));
                cases.push_back(dropout_case(5, 64, from, layout, 0.5, mode));
                cases.push_back(dropout_case(2, 64, from, layout, 0.0, mode));
                cases.push_back(dropout_case(3, 24, from, layout, 0.5, mode, /*first_channel=*/8));
                cases.push_back(dropout_case(3, 23, from, layout, 0.5, mode, /*first_channel=*/1020));
            }
        }
    }
    cases.push_back(gather_case(50, 1032, 600, at::kBFloat16, at::kBFloat16, Layout::packed));
    cases.push_back(embedding_backward_case(300, 4, 200, at::kBFloat16, Layout::packed));
    cases.push_back(copy_case(0, 16, at::kFloat, at::kBFloat16, Layout::packed, 1.0));
    cases.push_back(column_sums_case(0, 16, at::kFloat, Layout::packed));
    return cases;
}

}  // namespace unsloth::testing
