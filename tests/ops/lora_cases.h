// Cases of LoRA's thin products, with u and v in the columns beside x and dy.
#pragma once

#include "ops/coded_testing.h"
#include "ops/op_cases.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/coded_rows.h"
#include "unsloth/ops/lora.h"

namespace unsloth::testing {

/// fp32 sums of products in the order of a GPU's tensor cores, which truncate.
inline Tolerance product_tolerance(at::ScalarType dtype) {
    Tolerance t = tolerance_of(dtype);
    t.relative += 1e-5, t.absolute += 3e-5, t.floor += 1e-6;
    return t;
}

/// A projection: outputs and rank; columns are reserved in multiples of 8.
struct LoraModuleShape {
    int64_t n, rank;
};
using LoraModules = std::vector<LoraModuleShape>;

inline std::vector<ops::LoraSlice> lora_slices(const LoraModules& modules) {
    std::vector<ops::LoraSlice> slices;
    int64_t n = 0, r = 0;
    for (const LoraModuleShape& module : modules) {
        ops::LoraSlice slice;
        slice.n_begin = n, slice.n = module.n, slice.r_begin = r,
        slice.r = (std::max<int64_t>(module.rank, 1) + 7) / 8 * 8;
        slice.rank = module.rank, slice.scale = 0.5 + static_cast<double>(slices.size());
        n += slice.n, r += slice.r;
        slices.push_back(slice);
    }
    return slices;
}
inline int64_t outputs_of(const std::vector<ops::LoraSlice>& slices) {
    return slices.back().n_begin + slices.back().n;
}
inline int64_t ranks_of(const std::vector<ops::LoraSlice>& slices) {
    return slices.back().r_begin + slices.back().r;
}

inline OpCase lora_u_case(int64_t tokens, int64_t k, int64_t r, at::ScalarType dtype, Layout layout, bool copy,
                          ops::LoraChoice choice) {
    OpCase c;
    c.name = "lora_u " + case_name(tokens, k, r, c10::toString(dtype), name_of(layout), copy);
    const at::Tensor x = at::cat({at::randn({tokens, k}), at::full({tokens, r}, 3.0)}, 1);
    c.args = {{"A", slice_of(at::randn({r, k}) * 0.1, dtype, layout)}, {"x", slice_of(x, dtype, layout), Role::both}};
    if (copy)
        c.args.push_back({"copy",
                          poisoned_slice({tokens, r}, dtype, layout == Layout::unaligned ? layout : Layout::packed),
                          Role::output});
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::lora_u(ctx, {.x_TK = a[1].narrow(1, 0, k),
                          .a_RK = a[0],
                          .u_TR = a[1].narrow(1, k, r),
                          .copy_TR = copy ? a[2] : at::Tensor(),
                          .choice = choice});
    };
    c.expected = [=](const Tensors& a) {
        const at::Tensor in = a[1].narrow(1, 0, k), u = at::mm(in, a[0].t());
        Tensors out = {at::cat({in, u}, 1)};
        if (copy) out.push_back(u);
        return out;
    };
    c.tolerance = product_tolerance(dtype);
    return c;
}

inline OpCase lora_dy_case(int64_t tokens, const LoraModules& modules, at::ScalarType dtype, Layout layout,
                           ops::LoraChoice choice, int64_t workspace = int64_t{8} << 20) {
    const std::vector<ops::LoraSlice> slices = lora_slices(modules);
    const int64_t n = outputs_of(slices), r = ranks_of(slices);
    OpCase c;
    c.name = "lora_dy " + case_name(tokens, n, r, modules[0].rank, c10::toString(dtype), name_of(layout), workspace);
    const at::Tensor b = at::zeros({n, r});
    for (const ops::LoraSlice& s : slices)
        if (s.rank > 0) b.narrow(0, s.n_begin, s.n).narrow(1, s.r_begin, s.rank).copy_(at::randn({s.n, s.rank}) * 0.1);
    const at::Tensor dy = at::cat({at::randn({tokens, n}), at::full({tokens, r}, 3.0)}, 1);
    c.args = {{"sB", slice_of(b, dtype, layout)},
              {"u", slice_of(at::randn({tokens, r}), dtype, layout == Layout::unaligned ? layout : Layout::packed)},
              {"dy", slice_of(dy, dtype, layout), Role::both}};
    for (const ops::LoraSlice& s : slices)
        if (s.rank > 0) c.args.push_back({"dB", at::randn({s.n, s.rank}), Role::both});
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::LoraDy args{.dy_TN = a[2].narrow(1, 0, n),
                         .b_NR = a[0],
                         .u_TR = a[1],
                         .v_TR = a[2].narrow(1, n, r),
                         .slices = slices,
                         .choice = choice};
        std::size_t next = 3;
        for (ops::LoraSlice& s : args.slices)
            if (s.rank > 0) s.db = a[next++];
        ops::lora_dy(ctx, args);
    };
    c.expected = [=](const Tensors& a) {
        const at::Tensor in = a[2].narrow(1, 0, n);
        Tensors out = {at::cat({in, at::mm(in, a[0])}, 1)};
        std::size_t next = 3;
        for (const ops::LoraSlice& s : slices)
            if (s.rank > 0)
                out.push_back(a[next++] +
                              s.scale * at::mm(in.narrow(1, s.n_begin, s.n).t(), a[1].narrow(1, s.r_begin, s.rank)));
        return out;
    };
    c.workspace = [=](at::Device device) { return device.is_cuda() ? workspace : 0; };
    c.tolerance = product_tolerance(dtype);
    return c;
}

inline OpCase lora_da_case(int64_t tokens, int64_t k, const LoraModules& modules, at::ScalarType dtype, Layout layout) {
    const std::vector<ops::LoraSlice> slices = lora_slices(modules);
    const int64_t r = ranks_of(slices);
    OpCase c;
    c.name = "lora_da " + case_name(tokens, k, r, modules[0].rank, c10::toString(dtype), name_of(layout));
    c.args = {{"v", slice_of(at::randn({tokens, r}), dtype, layout)},
              {"x", slice_of(at::randn({tokens, k}), dtype, layout)}};
    for (const ops::LoraSlice& s : slices)
        if (s.rank > 0) c.args.push_back({"dA", at::randn({s.rank, k}), Role::both});
    c.run = [=](ops::Context& ctx, const Tensors& a) {
        ops::LoraDa args{.v_TR = a[0], .x_TK = a[1], .slices = slices};
        std::size_t next = 2;
        for (ops::LoraSlice& s : args.slices)
            if (s.rank > 0) s.da = a[next++];
        ops::lora_da(ctx, args);
    };
    c.expected = [=](const Tensors& a) {
        Tensors out;
        for (const ops::LoraSlice& s : slices)
            if (s.rank > 0) out.push_back(a[2 + out.size()] + at::mm(a[0].narrow(1, s.r_begin, s.rank).t(), a[1]));
        return out;
    };
    c.tolerance = product_tolerance(dtype);
    return c;
}

/// Any dtype and layout: what the kernels do not take goes to library products.
inline std::vector<OpCase> lora_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    constexpr auto choice = ops::LoraChoice::measured;
    for (const at::ScalarType dtype : compute_dtypes) {
        for (const Layout layout : all_layouts) {
            cases.push_back(lora_u_case(5, 24, 8, dtype, layout, false, choice));
            cases.push_back(lora_u_case(33, 104, 48, dtype, layout, true, choice));
            cases.push_back(lora_dy_case(7, {{40, 8}, {16, 3}, {16, 0}}, dtype, layout, choice));
            cases.push_back(lora_da_case(9, 40, {{16, 8}, {16, 4}, {16, 0}}, dtype, layout));
            cases.push_back(lora_da_case(9, 40, {{16, 8}, {16, 8}}, dtype, layout));
        }
    }
    cases.push_back(lora_u_case(0, 24, 8, at::kBFloat16, Layout::packed, true, choice));
    cases.push_back(lora_dy_case(0, {{16, 8}}, at::kBFloat16, Layout::packed, choice));
    cases.push_back(lora_da_case(0, 24, {{16, 8}}, at::kBFloat16, Layout::packed));
    return cases;
}

/// What the kernels take: partial tiles, unused columns, every padded rank, several splits of the tokens, and a
/// workspace that makes several runs of them.
inline std::vector<OpCase> lora_kernel_cases(uint64_t seed) {
    at::manual_seed(seed);
    std::vector<OpCase> cases;
    constexpr auto choice = ops::LoraChoice::kernel;
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
        for (const Layout layout : {Layout::packed, Layout::wide}) {
            for (const int64_t r : {8, 16, 24, 40, 64})
                cases.push_back(lora_u_case(35, 200, r, dtype, layout, r > 16, choice));
            cases.push_back(lora_u_case(1, 8, 8, dtype, layout, true, choice));
            cases.push_back(lora_u_case(7, 4104, 48, dtype, layout, true, choice));
            cases.push_back(lora_u_case(8, 2056, 16, dtype, layout, false, choice));
            cases.push_back(lora_u_case(700, 1032, 48, dtype, layout, true, choice));
            for (const int64_t r : {1, 8, 13, 16, 24, 30, 32}) {
                cases.push_back(lora_dy_case(35, {{264, r}, {40, 8}, {136, 0}}, dtype, layout, choice));
            }
            cases.push_back(lora_dy_case(1, {{8, 8}}, dtype, layout, choice));
        }
    }
    cases.push_back(lora_dy_case(1500, {{2048, 16}, {512, 16}, {512, 16}}, at::kBFloat16, Layout::wide, choice));
    cases.push_back(lora_dy_case(1500, {{2048, 16}}, at::kBFloat16, Layout::wide, choice,
                                 (int64_t{4} << 20) + (int64_t{64} << 10)));
    cases.push_back(lora_dy_case(3001, {{1416, 8}, {1416, 8}}, at::kHalf, Layout::wide, choice));
    return cases;
}

/// Rows of random codes on a device, int8 ones with factors.
inline ops::CodedMatrix random_codes(int64_t rows, int64_t columns, at::Device device, spec::Codes codes) {
    if (codes == spec::Codes::e4m3) return ops::random_fp8(rows, columns, device, 0.01);
    ops::CodedMatrix x = ops::random_int8(rows, columns, device, 0.01, /*of_x=*/true);
    x.factors = (at::rand({columns}) * 8 - 4).round().exp2().to(at::kBFloat16).to(device);
    return x;
}
inline at::Tensor fp64_with_factors(const ops::CodedMatrix& x) {
    const at::Tensor values = ops::fp64_of(x);
    return x.factors.defined() ? values / ops::fp64_of(x.factors) : values;
}

/// u of codes: its columns beside others, and a copy.
inline void check_lora_u_of_codes(ops::Context& ctx, spec::Codes codes, int64_t tokens, int64_t k, int64_t r) {
    SCOPED_TRACE(unsloth::cat("u of ", codes == spec::Codes::int8 ? "int8" : "e4m3", ": ", case_name(tokens, k, r)));
    const at::Device device = ctx.device();
    const auto options = at::TensorOptions(at::kBFloat16).device(device);
    const at::Tensor wide = at::full({tokens, k + r + 8}, NAN, options), copy = at::full({tokens, r}, NAN, options);
    ops::LoraU args{.a_RK = (at::randn({r, k}) * 0.1).to(options), .u_TR = wide.narrow(1, k, r), .copy_TR = copy};
    args.codes = random_codes(tokens, k, device, codes);
    ASSERT_TRUE(ops::reads_codes(ctx, args));
    ops::lora_u(ctx, args);
    const at::Tensor expected = at::mm(fp64_with_factors(args.codes), ops::fp64_of(args.a_RK).t());
    EXPECT_LT(ops::relative_error(args.u_TR, expected), 3e-3);
    EXPECT_TRUE(at::equal(copy, args.u_TR));
    EXPECT_TRUE(wide.narrow(1, k + r, 8).isnan().all().item<bool>()) << "columns beside u";
}

/// u of tokens and columns with owners, of which some have nothing of the other.
inline void check_lora_u_of_owners(ops::Context& ctx, int64_t tokens, int64_t k, int64_t r, ops::LoraChoice choice) {
    SCOPED_TRACE(unsloth::cat("u of owners: ", case_name(tokens, k, r)));
    const auto options = at::TensorOptions(at::kBFloat16).device(ctx.device());
    const at::Tensor wide = at::full({tokens, k + r + 8}, NAN, options), x = wide.narrow(1, 0, k);
    x.normal_();
    const at::Tensor a = (at::randn({r, k}) * 0.1).to(options), owner_T = at::randint(-1, 3, {tokens}, at::kInt),
                     owner_R = at::randint(0, 4, {r}, at::kInt);
    const at::Tensor u = wide.narrow(1, k, r), copy = at::full({tokens, r}, NAN, options);
    ops::lora_u(ctx, {.x_TK = x,
                      .a_RK = a,
                      .u_TR = u,
                      .copy_TR = copy,
                      .owner_T = owner_T.to(ctx.device()),
                      .owner_R = owner_R.to(ctx.device()),
                      .choice = choice});
    const at::Tensor all = at::mm(ops::fp64_of(x), ops::fp64_of(a).t()),
                     expected = all.masked_fill(owner_T.unsqueeze(1) != owner_R, 0);
    const double scale = std::sqrt(at::mean(all.square()).item<double>());
    EXPECT_LT((ops::fp64_of(u) - expected).abs().max().item<double>(), 2e-2 * scale);
    EXPECT_TRUE(at::equal(copy, u));
    EXPECT_TRUE(u.cpu().masked_select(owner_T.unsqueeze(1) != owner_R).eq(0).all().item<bool>()) << "others";
    EXPECT_TRUE(wide.narrow(1, k + r, 8).isnan().all().item<bool>()) << "columns beside u";
}
inline void check_lora_u_of_owners(ops::Context& ctx, ops::LoraChoice choice) {
    for (const int64_t tokens : {1, 3, 8, 9, 40, 300})
        for (const int64_t r : {8, 48, 96, 144, 264}) check_lora_u_of_owners(ctx, tokens, 192, r, choice);
}

/// v and dB of codes.
inline void check_lora_dy_of_codes(ops::Context& ctx, spec::Codes codes, int64_t tokens, const LoraModules& modules) {
    std::vector<ops::LoraSlice> slices = lora_slices(modules);
    const int64_t n = outputs_of(slices), r = ranks_of(slices);
    SCOPED_TRACE(unsloth::cat("dy of ", codes == spec::Codes::int8 ? "int8" : "e4m3", ": ", case_name(tokens, n, r)));
    const at::Device device = ctx.device();
    const auto options = at::TensorOptions(at::kBFloat16).device(device);
    const at::Tensor b = at::zeros({n, r}), wide = at::full({tokens, n + r}, NAN, options);
    std::vector<at::Tensor> before;
    for (ops::LoraSlice& s : slices) {
        if (s.rank == 0) continue;
        b.narrow(0, s.n_begin, s.n).narrow(1, s.r_begin, s.rank).copy_(at::randn({s.n, s.rank}) * 0.1);
        before.push_back(at::randn({s.n, s.rank}));
        s.db = before.back().to(device, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    }
    ops::LoraDy args{.b_NR = b.to(options),
                     .u_TR = at::randn({tokens, r}).to(options),
                     .v_TR = wide.narrow(1, n, r),
                     .slices = slices};
    args.codes = random_codes(tokens, n, device, codes);
    ASSERT_TRUE(ops::reads_codes(ctx, args));
    ops::lora_dy(ctx, args);
    const at::Tensor dy = fp64_with_factors(args.codes), u = ops::fp64_of(args.u_TR);
    EXPECT_LT(ops::relative_error(args.v_TR, at::mm(dy, ops::fp64_of(args.b_NR))), 3e-3);
    std::size_t next = 0;
    for (const ops::LoraSlice& s : slices) {
        if (s.rank == 0) continue;
        const at::Tensor added = s.scale * at::mm(dy.narrow(1, s.n_begin, s.n).t(), u.narrow(1, s.r_begin, s.rank));
        EXPECT_LT(ops::relative_error(ops::fp64_of(s.db) - ops::fp64_of(before[next++]), added), 3e-3);
    }
}

/// Partial tiles, strips and blocks of scales, every padded rank and tile, several splits of the tokens.
inline void check_lora_of_codes(ops::Context& ctx) {
    at::manual_seed(11);
    for (const spec::Codes codes : {spec::Codes::int8, spec::Codes::e4m3}) {
        for (const int64_t r : {8, 16, 24, 40, 64}) check_lora_u_of_codes(ctx, codes, 35, 208, r);
        check_lora_u_of_codes(ctx, codes, 1, 16, 8);
        check_lora_u_of_codes(ctx, codes, 7, 4112, 48);
        check_lora_u_of_codes(ctx, codes, 700, 1040, 48);
        check_lora_u_of_codes(ctx, codes, 2100, 528, 16);
        check_lora_u_of_codes(ctx, codes, 2100, 528, 32);
        check_lora_u_of_codes(ctx, codes, 2100, 528, 48);
        check_lora_u_of_codes(ctx, codes, 2100, 272, 64);
        for (const int64_t r : {1, 8, 13, 16, 24, 32})
            check_lora_dy_of_codes(ctx, codes, 35, {{256, r}, {768, 8}, {512, 0}, {144, r}});
        check_lora_dy_of_codes(ctx, codes, 1, {{16, 8}});
        check_lora_dy_of_codes(ctx, codes, 16, {{272, 16}});
        check_lora_dy_of_codes(ctx, codes, 700, {{1024, 16}, {528, 16}});
        check_lora_dy_of_codes(ctx, codes, 1500, {{2048, 16}, {512, 16}, {512, 16}});
        check_lora_dy_of_codes(ctx, codes, 1501, {{2304, 32}, {1040, 32}});
        const at::Tensor workspace = ctx.workspace;
        if (ctx.is_cuda()) ctx.workspace = workspace.narrow(0, 0, (int64_t{4} << 20) + (int64_t{64} << 10));
        check_lora_dy_of_codes(ctx, codes, 1501, {{2048, 16}});  // several runs of the tokens
        ctx.workspace = workspace;
    }
}

}  // namespace unsloth::testing
