// Cases of whole gated delta nets.
#pragma once

#include "ops/gated_delta_cases.h"

namespace unsloth::testing {

/// A net's tensors for some tokens of two sequences or more, which have places of their own, the last ones first, and
/// kept something before.
struct NetResult {
    at::Tensor y_THv, inputs, states;
};
struct NetCase {
    ops::DeltaShape shape;
    at::Tensor columns_TN, taps_Cw, norm_v, a_log_H, dt_bias_H, inputs_NwC, states_NHkv;

    NetCase(const ops::DeltaShape& shape, int64_t tokens, at::ScalarType dtype, at::Device device) : shape(shape) {
        const auto floats = at::TensorOptions(device).dtype(at::kFloat);
        const int64_t channels = shape.channels(), heads = shape.value_heads;
        const int64_t columns = channels + shape.values() + 2 * heads;
        columns_TN = at::randn({tokens, (columns + 7) / 8 * 8}, floats).to(dtype);  // rows aligned to 16 bytes
        taps_Cw = at::randn({channels, 4}, floats);
        norm_v = at::randn({shape.value_dim}, floats);
        a_log_H = at::full({heads}, -2.0, floats);
        dt_bias_H = at::randn({heads}, floats);
        inputs_NwC = at::randn({tokens + 2, 3, channels}, floats).to(dtype);
        states_NHkv = at::randn({tokens + 2, heads, shape.key_dim, shape.value_dim}, floats);
    }

    /// The first segment has the place that is nobody's.
    ops::DeltaNet net(const ops::Segments& segments) const {
        const int64_t channels = shape.channels(), values = shape.values(), heads = shape.value_heads;
        std::vector<int32_t> rows;
        for (int64_t s = 0; s < segments.count(); ++s)
            rows.push_back(static_cast<int32_t>(states_NHkv.size(0) - 1 - s));
        const at::Tensor rows_S = at::tensor(rows, at::kInt).to(columns_TN.device());
        return {.shape = shape,
                .in = {columns_TN.narrow(1, 0, channels), columns_TN.narrow(1, channels + values, heads),
                       columns_TN.narrow(1, channels + values + heads, heads), a_log_H, dt_bias_H},
                .taps_Cw = taps_Cw,
                .norm_v = norm_v,
                .z_THv = columns_TN.narrow(1, channels, values).unflatten(1, {heads, shape.value_dim}),
                .eps = 1e-6,
                .inputs = {inputs_NwC.clone(), rows, rows_S},
                .states = {states_NHkv.clone(), rows, rows_S}};
    }
    at::Tensor values() const {
        return at::empty({columns_TN.size(0), shape.value_heads, shape.value_dim}, columns_TN.options());
    }
    NetResult by_parts(ops::Context& ctx, const ops::Segments& segments) const {
        ops::DeltaNet parts = net(segments);
        const at::Tensor convolved = at::empty(parts.in.mixed_TC.sizes(), columns_TN.options()), y_THv = values();
        ops::short_conv_forward(ctx, segments, parts.in.mixed_TC, taps_Cw, convolved, parts.inputs);
        parts.in.mixed_TC = convolved;
        ops::delta_rule_forward(ctx, shape, segments, parts.in, y_THv, parts.states);
        ops::gated_norm_forward(ctx, y_THv, parts.z_THv, norm_v, parts.eps, y_THv);
        return {y_THv, parts.inputs.data, parts.states.data};
    }
    NetResult whole(ops::Context& ctx, const ops::Segments& segments) const {
        const ops::DeltaNet all = net(segments);
        const at::Tensor convolved = at::empty(all.in.mixed_TC.sizes(), columns_TN.options()), y_THv = values();
        ops::delta_net_forward(ctx, segments, all, convolved, values(), y_THv);
        return {y_THv, all.inputs.data, all.states.data};
    }
};

}  // namespace unsloth::testing
