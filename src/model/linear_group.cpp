#include "unsloth/model/linear_group.h"

#include "unsloth/ops/gemm.h"
#include "unsloth/ops/rows.h"

namespace unsloth::model {
namespace {

/// What a profile calls a group's products: by kind and group.
enum class Product { forward, dx, u, v, dA, dB, dW };
const char* label(Product product, Group g) {
    constexpr const char* names[][group_count] = {
        {"gemm qkv", "gemm o", "gemm gate_up", "gemm down"},
        {"gemm dx qkv", "gemm dx o", "gemm dx gate_up", "gemm dx down"},
        {"lora xA qkv", "lora xA o", "lora xA gate_up", "lora xA down"},
        {"lora dyB qkv", "lora dyB o", "lora dyB gate_up", "lora dyB down"},
        {"lora dA qkv", "lora dA o", "lora dA gate_up", "lora dA down"},
        {"lora dB qkv", "lora dB o", "lora dB gate_up", "lora dB down"},
        {"gemm dW qkv", "gemm dW o", "gemm dW gate_up", "gemm dW down"}};
    return names[static_cast<int>(product)][static_cast<int>(g)];
}

ops::DropoutKey dropout_key(const GroupContext& c, Projection p) {
    return {static_cast<uint32_t>(c.layer), static_cast<uint32_t>(p)};
}

/// The input as a projection's adapter sees it: dropped out into the scratch buffer.
at::Tensor dropped_input(const GroupContext& c, Projection p, const at::Tensor& x_TK) {
    const at::Tensor out = c.dropped.narrow(1, 0, x_TK.size(1));
    ops::dropout(c.ctx, x_TK, c.row_T, c.offset_T, c.dropout, dropout_key(c, p), out);
    return out;
}

bool has_adapter(const GroupContext& c, const Slice& slice) {
    return c.adapters != nullptr && c.adapters->lora(c.layer)[static_cast<std::size_t>(slice.projection)].r > 0;
}

int64_t rank(const GroupContext& c, const Slice& slice) {
    return c.adapters->lora(c.layer)[static_cast<std::size_t>(slice.projection)].r;
}

/// The A gradients of a group as one [R, K] matrix when they lie one after another without padding; undefined otherwise.
at::Tensor stacked_a_gradient(const GroupContext& c, const GroupLayout& layout) {
    const Parameter* first = nullptr;
    int64_t expected = 0;
    for (const Slice& slice : layout.slices) {
        if (slice.r == 0) continue;
        const Parameter* a = c.adapters->a(c.layer, slice.projection);
        if (a == nullptr || a->shape[0] != slice.r) return {};
        if (first == nullptr) {
            first = a;
            expected = a->offset;
        }
        if (a->offset != expected) return {};
        expected += a->elements();
    }
    if (first == nullptr) return {};
    return c.parameters->state().grads_P.narrow(0, first->offset, layout.r * layout.k).view({layout.r, layout.k});
}

void adapter_a_gradients(const GroupContext& c, Group g, const at::Tensor& v_TR, const at::Tensor& x_TK) {
    const GroupLayout& layout = c.layout[g];
    if (c.dropout == 0.0) {
        if (const at::Tensor stacked = stacked_a_gradient(c, layout); stacked.defined()) {
            ops::gemm(c.ctx, {.a = v_TR, .b = x_TK, .out = stacked, .transpose_a = true, .beta = 1.0, .label = label(Product::dA, g)});
            return;
        }
    }
    for (const Slice& slice : layout.slices) {
        if (!has_adapter(c, slice)) continue;
        const at::Tensor x = c.dropout > 0.0 ? dropped_input(c, slice.projection, x_TK) : x_TK;
        ops::gemm(c.ctx, {.a = v_TR.narrow(1, slice.r_begin, rank(c, slice)), .b = x,
                          .out = c.parameters->gradient(*c.adapters->a(c.layer, slice.projection)), .transpose_a = true, .beta = 1.0,
                          .label = label(Product::dA, g)});
    }
}

void adapter_b_gradients(const GroupContext& c, Group g, const at::Tensor& dy_TN, const at::Tensor& u_TR) {
    for (const Slice& slice : c.layout[g].slices) {
        if (!has_adapter(c, slice)) continue;
        const double scale = c.adapters->lora(c.layer)[static_cast<std::size_t>(slice.projection)].scale;
        ops::gemm(c.ctx, {.a = dy_TN.narrow(1, slice.n_begin, slice.n), .b = u_TR.narrow(1, slice.r_begin, rank(c, slice)),
                          .out = c.parameters->gradient(*c.adapters->b(c.layer, slice.projection)), .transpose_a = true,
                          .alpha = scale, .beta = 1.0, .label = label(Product::dB, g)});
    }
}

void base_gradients(const GroupContext& c, Group g, const at::Tensor& dy_TN, const at::Tensor& x_TK) {
    for (const Slice& slice : c.layout[g].slices) {
        const at::Tensor dy = dy_TN.narrow(1, slice.n_begin, slice.n);
        const auto find = [&](TensorRole role) {
            return c.parameters->table().find(role, c.layer, slice.projection, Parameter::Kind::base);
        };
        ops::gemm(c.ctx, {.a = dy, .b = x_TK, .out = c.parameters->gradient(*find(TensorRole::linear)), .transpose_a = true, .beta = 1.0,
                          .label = label(Product::dW, g)});
        if (const Parameter* bias = find(TensorRole::bias)) ops::column_sums(c.ctx, dy, c.parameters->gradient(*bias));
    }
}

/// dx += mask_p ∘ (v_p · A_p) for every projection: the adapters' share when each has its own mask.
void add_masked_adapter_terms(const GroupContext& c, Group g, const GroupWeights& w, const at::Tensor& v_TR, const at::Tensor& dx_TK) {
    const at::Tensor term = c.dropped.narrow(1, 0, dx_TK.size(1));
    for (const Slice& slice : c.layout[g].slices) {
        if (!has_adapter(c, slice)) continue;
        ops::gemm(c.ctx, {.a = v_TR.narrow(1, slice.r_begin, slice.r), .b = w.a_RK.narrow(0, slice.r_begin, slice.r), .out = term});
        ops::dropout(c.ctx, term, c.row_T, c.offset_T, c.dropout, dropout_key(c, slice.projection), dx_TK, /*accumulate=*/true);
    }
}

}  // namespace

void fill_adapter_columns(const GroupContext& c, Group g, const GroupWeights& w, const at::Tensor& x_full, const at::Tensor& u_TR) {
    const GroupLayout& layout = c.layout[g];
    if (layout.r == 0 || c.adapters == nullptr) return;
    const at::Tensor x_TK = x_full.narrow(1, 0, layout.k), tail_TR = x_full.narrow(1, layout.k, layout.r);
    if (c.dropout > 0.0) {
        for (const Slice& slice : layout.slices) {
            if (slice.r == 0) continue;
            const at::Tensor tail = tail_TR.narrow(1, slice.r_begin, slice.r);
            if (!has_adapter(c, slice)) {
                ops::zero_2d(c.ctx, tail);
                continue;
            }
            ops::gemm(c.ctx, {.a = dropped_input(c, slice.projection, x_TK), .b = w.a_RK.narrow(0, slice.r_begin, slice.r),
                              .out = tail, .transpose_b = true, .label = label(Product::u, g)});
        }
    } else {
        ops::gemm(c.ctx, {.a = x_TK, .b = w.a_RK, .out = tail_TR, .transpose_b = true, .label = label(Product::u, g)});
    }
    if (u_TR.defined()) ops::copy_2d(c.ctx, tail_TR, u_TR);
}

void multiply_forward(const GroupContext& c, Group g, const GroupWeights& w, const at::Tensor& x_full, const at::Tensor& y_TN,
                      const at::Tensor& residual_TN) {
    const GroupLayout& layout = c.layout[g];
    const bool folded = layout.r > 0 && c.adapters != nullptr;
    ops::Gemm product{.a = x_full.narrow(1, 0, folded ? layout.leading() : layout.k), .b = folded ? w.forward_NKR : w.w_NK,
                      .out = y_TN, .transpose_b = true, .label = label(Product::forward, g)};
    if (residual_TN.defined()) {
        product.beta = 1.0;
        product.c = residual_TN;
    }
    if (w.bias_N.defined()) product.bias = w.bias_N;
    ops::gemm(c.ctx, product);
}

void group_backward(const GroupContext& c, Group g, const GroupWeights& w, const at::Tensor& dy_full, const at::Tensor& x_TK,
                    const at::Tensor& u_TR, const at::Tensor& dx_TK) {
    const GroupLayout& layout = c.layout[g];
    const at::Tensor dy_TN = dy_full.narrow(1, 0, layout.n);
    const bool adapted = layout.r > 0 && c.adapters != nullptr;
    at::Tensor v_TR;
    if (adapted) {
        v_TR = dy_full.narrow(1, layout.n, layout.r);
        ops::gemm(c.ctx, {.a = dy_TN, .b = w.b_NR, .out = v_TR, .label = label(Product::v, g)});
        adapter_a_gradients(c, g, v_TR, x_TK);
        adapter_b_gradients(c, g, dy_TN, u_TR);
    }
    if (c.trains_base) base_gradients(c, g, dy_TN, x_TK);
    if (!dx_TK.defined()) return;
    if (adapted && c.dropout > 0.0) {
        ops::gemm(c.ctx, {.a = dy_TN, .b = w.w_NK, .out = dx_TK, .label = label(Product::dx, g)});
        add_masked_adapter_terms(c, g, w, v_TR, dx_TK);
    } else if (adapted) {
        ops::gemm(c.ctx, {.a = dy_full.narrow(1, 0, layout.n + layout.r), .b = w.backward_NRK, .out = dx_TK, .label = label(Product::dx, g)});
    } else {
        ops::gemm(c.ctx, {.a = dy_TN, .b = w.w_NK, .out = dx_TK, .label = label(Product::dx, g)});
    }
}

}  // namespace unsloth::model
