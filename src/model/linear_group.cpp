#include "unsloth/model/linear_group.h"

#include <array>
#include <string>

#include "unsloth/core/error.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/lora.h"
#include "unsloth/ops/rows.h"
#include "unsloth/weights/part.h"

namespace unsloth::model {

using weights::columns_of;
using weights::row_runs;

namespace {

/// What a profile calls a group's products: by kind and group.
enum class Product : uint8_t { forward, dx, u, v, dA, dB, dW, dy };
using Labels = std::array<std::string, 8>;  ///< by Product
Labels labels_of(Group g) {
    const char* const group = name_of(g);
    return {cat("gemm ", group),    cat("gemm dx ", group), cat("lora xA ", group), cat("lora dyB ", group),
            cat("lora dA ", group), cat("lora dB ", group), cat("gemm dW ", group), cat("lora dyB+dB ", group)};
}
const char* label(Product product, Group g) {
    static const auto labels = [] {
        std::array<Labels, weights::group_names.size()> all;
        for (std::size_t i = 0; i < all.size(); ++i) all[i] = labels_of(static_cast<Group>(i));
        return all;
    }();
    return labels[static_cast<std::size_t>(g)][static_cast<std::size_t>(product)].c_str();
}

/// Which of a layer's masks a projection has. Those of a gated delta net have the ones of the attention in whose place
/// they are: dropout_site has room for seven.
spec::Projection mask_of(spec::Projection p) {
    switch (p) {
        case spec::Projection::delta_qkv:
            return spec::Projection::q;
        case spec::Projection::delta_z:
            return spec::Projection::k;
        case spec::Projection::delta_out:
            return spec::Projection::o;
        default:
            return spec::first_part(p);
    }
}

ops::DropoutKey dropout_key(const GroupContext& c, const weights::Slice& slice) {
    return {static_cast<uint32_t>(c.layer), static_cast<uint32_t>(mask_of(slice.projection)),
            static_cast<uint32_t>(slice.part.columns.begin)};
}

at::Tensor dropped_like(const GroupContext& c, const at::Tensor& x_TK) {
    return c.dropped.narrow(0, 0, x_TK.numel()).view(x_TK.sizes());
}

/// The input as a projection's adapter sees it: dropped out into the scratch buffer.
at::Tensor dropped_input(const GroupContext& c, const weights::Slice& slice, const at::Tensor& x_TK) {
    const at::Tensor out = dropped_like(c, x_TK);
    ops::dropout(c.ctx, x_TK, c.row_T, c.offset_T, c.dropout, dropout_key(c, slice), out);
    return out;
}

bool has_adapter(const GroupContext& c, const weights::Slice& slice) {
    return c.adapters != nullptr && c.adapters->lora(c.layer)[slice.projection].r > 0;
}

/// A group's adapter as the LoRA GEMMs take it, without gradients.
ops::LoraSlice lora_slice(const GroupContext& c, const weights::Slice& slice) {
    ops::LoraSlice s{slice.n_begin, slice.n, slice.r_begin, slice.r};
    if (!has_adapter(c, slice)) return s;
    const spec::LoraModule& module = c.adapters->lora(c.layer)[slice.projection];
    s.rank = module.r;
    s.scale = module.scale;
    return s;
}

/// The group's adapters with the gradients of their A.
std::vector<ops::LoraSlice> a_slices(const GroupContext& c, Group g) {
    std::vector<ops::LoraSlice> slices;
    for (const weights::Slice& slice : c.layout[g].slices) {
        if (slice.r == 0) continue;
        ops::LoraSlice& s = slices.emplace_back(lora_slice(c, slice));
        if (s.rank > 0)
            s.da = columns_of(c.parameters->gradient(*c.adapters->a({c.layer, slice.projection})), slice.part);
    }
    return slices;
}

/// With those of their B: of each run of rows one.
std::vector<ops::LoraSlice> b_slices(const GroupContext& c, Group g) {
    std::vector<ops::LoraSlice> slices;
    for (const weights::Slice& slice : c.layout[g].slices) {
        if (slice.r == 0) continue;
        for (const weights::RowRun& run : row_runs(slice.part)) {
            ops::LoraSlice& s = slices.emplace_back(lora_slice(c, slice));
            s.n_begin += run.own;
            s.n = run.rows;
            if (s.rank > 0)
                s.db =
                    c.parameters->gradient(*c.adapters->b({c.layer, slice.projection})).narrow(0, run.whole, run.rows);
        }
    }
    return slices;
}

const weights::Parameter* base_parameter(const GroupContext& c, const weights::Slice& slice, spec::TensorRole role) {
    return c.parameters->table().find(role, {c.layer, slice.projection}, weights::Parameter::Kind::base);
}

void bias_gradients(const GroupContext& c, Group g, const at::Tensor& dy_TN) {
    if (is_cut_by_inputs(g) && !c.tp.first()) return;  // dy is the same on all ranks
    for (const weights::Slice& slice : c.layout[g].slices)
        if (const weights::Parameter* bias = base_parameter(c, slice, spec::TensorRole::bias))
            for (const weights::RowRun& run : row_runs(slice.part))
                ops::column_sums(c.ctx, dy_TN.narrow(1, slice.n_begin + run.own, run.rows),
                                 c.parameters->gradient(*bias).narrow(0, run.whole, run.rows));
}

/// dx += mask_p ∘ (v_p · A_p) for every projection: the adapters' share when each has its own mask.
void add_masked_adapter_terms(const GroupContext& c, Group g, const weights::Operand& w, const at::Tensor& v_TR,
                              const at::Tensor& dx_TK) {
    const at::Tensor term = dropped_like(c, dx_TK);
    for (const weights::Slice& slice : c.layout[g].slices) {
        if (!has_adapter(c, slice)) continue;
        ops::gemm(
            c.ctx,
            {.a = v_TR.narrow(1, slice.r_begin, slice.r), .b = w.a_RK.narrow(0, slice.r_begin, slice.r), .out = term});
        ops::dropout(c.ctx, term, c.row_T, c.offset_T, c.dropout, dropout_key(c, slice), dx_TK,
                     /*accumulate=*/true);
    }
}

ops::LoraU thin_forward(const GroupContext& c, Group g, const weights::Operand& w, const Activation& x,
                        const at::Tensor& u_TR) {
    const weights::MatrixGroup& layout = c.layout[g];
    return {.x_TK = x.full.narrow(1, 0, layout.k),
            .a_RK = w.a_RK,
            .u_TR = x.full.narrow(1, layout.k, layout.r),
            .copy_TR = u_TR,
            .codes = x.codes_alone ? x.codes : ops::CodedMatrix{},
            .owner_T = c.adapter_T,
            .owner_R = c.adapter_T.defined() ? c.owners->at(g) : at::Tensor(),
            .label = label(Product::u, g)};
}

ops::LoraDy thin_backward(const GroupContext& c, Group g, const weights::Operand& w, const Activation& dy,
                          const at::Tensor& u_TR) {
    const weights::MatrixGroup& layout = c.layout[g];
    return {.dy_TN = dy.full.narrow(1, 0, layout.n),
            .b_NR = w.b_NR,
            .u_TR = u_TR,
            .v_TR = dy.full.narrow(1, layout.n, layout.r),
            .slices = b_slices(c, g),
            .codes = dy.codes_alone ? dy.codes : ops::CodedMatrix{},
            .label = label(Product::dy, g),
            .label_v = label(Product::v, g),
            .label_db = label(Product::dB, g)};
}

}  // namespace

bool adapted(const GroupContext& c, Group g) {
    return c.layout[g].r > 0 && c.adapters != nullptr;
}

Activation input_activation(const GroupContext& c, Group g, const weights::Operand& w, const at::Tensor& x_full,
                            const at::Tensor& u_TR, const ops::CodedMatrix& scratch) {
    Activation x{x_full, w.input_codes(scratch, x_full.size(0), c.layout[g].k), /*codes_alone=*/true};
    x.codes_alone = x.codes.codes.defined() && !c.trains_base && c.observer == nullptr && c.tp.alone() &&
                    (!adapted(c, g) || (c.dropout == 0.0 && !c.adapter_T.defined() &&
                                        ops::reads_codes(c.ctx, thin_forward(c, g, w, x, u_TR))));
    return x;
}

Activation gradient_activation(const GroupContext& c, Group g, const weights::Operand& w, const at::Tensor& dy_full,
                               const at::Tensor& u_TR, const ops::CodedMatrix& scratch) {
    Activation dy{dy_full, w.gradient_codes(scratch, dy_full.size(0), c.layout[g].n), /*codes_alone=*/true};
    dy.codes_alone = dy.codes.codes.defined() && !c.trains_base && w.reads_codes() &&
                     (!adapted(c, g) || ops::reads_codes(c.ctx, thin_backward(c, g, w, dy, u_TR)));
    return dy;
}

void fill_adapter_columns(const GroupContext& c, Group g, const weights::Operand& w, const Activation& x,
                          const at::Tensor& u_TR) {
    const weights::MatrixGroup& layout = c.layout[g];
    if (!adapted(c, g)) return;
    const at::Tensor tail_TR = x.full.narrow(1, layout.k, layout.r);
    if (c.dropout > 0.0) {
        const at::Tensor x_TK = x.full.narrow(1, 0, layout.k);
        for (const weights::Slice& slice : layout.slices) {
            if (slice.r == 0) continue;
            const at::Tensor tail = tail_TR.narrow(1, slice.r_begin, slice.r);
            if (!has_adapter(c, slice)) {
                ops::zero_2d(c.ctx, tail);
                continue;
            }
            ops::gemm(c.ctx, {.a = dropped_input(c, slice, x_TK),
                              .b = w.a_RK.narrow(0, slice.r_begin, slice.r),
                              .out = tail,
                              .transpose_b = true,
                              .label = label(Product::u, g)});
        }
        if (u_TR.defined()) ops::copy_2d(c.ctx, tail_TR, u_TR);
    } else {
        ops::lora_u(c.ctx, thin_forward(c, g, w, x, u_TR));
    }
}

GroupContext own_rows(const GroupContext& c) {
    GroupContext own = c;
    own.row_T = c.tp.own(c.row_T);
    own.offset_T = c.tp.own(c.offset_T);
    return own;
}

bool scales_outputs(const GroupContext& c) {
    return c.layout.dora && c.adapters != nullptr;
}

void linear_forward(const GroupContext& c, Group g, const weights::Operand& w, const Activation& x,
                    const Outputs& out) {
    const bool scaled = scales_outputs(c), summed = is_cut_by_inputs(g) && !c.tp.alone();
    const at::Tensor& result = scaled ? out.z_TN : out.y_TN;
    weights::multiply_forward(c.ctx, w,
                              {.input = x.full,
                               .codes = x.codes,
                               .adapters = adapted(c, g),
                               .out = summed ? out.terms_TN : result,
                               .bias = !scaled && (!summed || c.tp.first()),  // among the terms it is one rank's
                               .residual = !scaled && !summed ? out.residual_TN : at::Tensor(),
                               .label = label(Product::forward, g)});
    if (summed) c.tp.reduce_scatter(c.ctx, out.terms_TN, result, label(Product::forward, g));
    if (scaled) {
        if (!out.z_TN.is_same(out.y_TN)) ops::dora_forward(c.ctx, out.z_TN, w.scale, out.residual_TN, out.y_TN);
    } else if (summed && out.residual_TN.defined()) {
        result.add_(out.residual_TN);
    }
}

std::vector<ops::MagnitudeGradient> magnitude_gradients(const GroupContext& c, Group g) {
    std::vector<ops::MagnitudeGradient> gradients;
    for (const weights::Slice& slice : c.layout[g].slices)
        if (const weights::Parameter* const magnitude = c.adapters->magnitude({c.layer, slice.projection}))
            for (const weights::RowRun& run : row_runs(slice.part))
                gradients.push_back(
                    {slice.n_begin + run.own, c.parameters->gradient(*magnitude).narrow(0, run.whole, run.rows)});
    return gradients;
}

void input_backward(const GroupContext& c, Group g, const weights::Operand& w, const Activation& dy,
                    const at::Tensor& u_TR, const at::Tensor& dx_TK, bool adds) {
    const weights::MatrixGroup& layout = c.layout[g];
    const at::Tensor dy_TN = dy.full.narrow(1, 0, layout.n);
    const bool has_adapters = adapted(c, g);
    at::Tensor v_TR;
    if (has_adapters) {
        v_TR = dy.full.narrow(1, layout.n, layout.r);
        ops::lora_dy(c.ctx, thin_backward(c, g, w, dy, u_TR));
    }
    if (c.trains_base) bias_gradients(c, g, dy_TN);
    if (!dx_TK.defined()) return;
    const bool masked = has_adapters && c.dropout > 0.0;
    weights::multiply_backward(c.ctx, w,
                               {.input = dy.full,
                                .codes = dy.codes,
                                .adapters = has_adapters && !masked,
                                .out = dx_TK,
                                .residual = adds ? dx_TK : at::Tensor(),
                                .label = label(Product::dx, g)});
    if (masked) add_masked_adapter_terms(c, g, w, v_TR, dx_TK);
}

void adapter_backward(const GroupContext& c, Group g, const at::Tensor& v_TR, const at::Tensor& x_TK) {
    if (!adapted(c, g)) return;
    if (c.dropout == 0.0) {
        ops::lora_da(c.ctx, {.v_TR = v_TR, .x_TK = x_TK, .slices = a_slices(c, g), .label = label(Product::dA, g)});
        return;
    }
    for (const weights::Slice& slice : c.layout[g].slices) {  // each projection's adapter saw its own x
        if (!has_adapter(c, slice)) continue;
        const weights::Parameter& a = *c.adapters->a({c.layer, slice.projection});
        ops::gemm(c.ctx, {.a = v_TR.narrow(1, slice.r_begin, a.shape[0]),
                          .b = dropped_input(c, slice, x_TK),
                          .out = columns_of(c.parameters->gradient(a), slice.part),
                          .transpose_a = true,
                          .beta = 1.0,
                          .label = label(Product::dA, g)});
    }
}

void matrix_backward(const GroupContext& c, Group g, const at::Tensor& dy_TN, const at::Tensor& x_TK) {
    if (!c.trains_base) return;
    for (const weights::Slice& slice : c.layout[g].slices) {
        const at::Tensor whole_NK = c.parameters->gradient(*base_parameter(c, slice, spec::TensorRole::linear));
        for (const weights::RowRun& run : row_runs(slice.part))
            ops::gemm(c.ctx, {.a = dy_TN.narrow(1, slice.n_begin + run.own, run.rows),
                              .b = x_TK,
                              .out = columns_of(whole_NK.narrow(0, run.whole, run.rows), slice.part),
                              .transpose_a = true,
                              .beta = 1.0,
                              .label = label(Product::dW, g)});
    }
}

void weight_backward(const GroupContext& c, Group g, const at::Tensor& dy_full, const at::Tensor& x_TK) {
    const weights::MatrixGroup& layout = c.layout[g];
    adapter_backward(c, g, dy_full.narrow(1, layout.n, layout.r), x_TK);
    matrix_backward(c, g, dy_full.narrow(1, 0, layout.n), x_TK);
}

}  // namespace unsloth::model
