// What both halves of a layer's passes use (decoder_layer.cpp, mlp.cpp).
#pragma once

#include <string>

#include "unsloth/core/error.h"
#include "unsloth/model/decoder_layer.h"
#include "unsloth/model/site.h"
#include "unsloth/ops/coded_rows.h"
#include "unsloth/ops/rows.h"

namespace unsloth::model {

/// Columns [begin, begin + heads * d) of a row-strided matrix as [T, heads, d].
inline at::Tensor heads_view(const at::Tensor& x_TN, int64_t begin, int64_t heads, int64_t d) {
    const at::Tensor part = x_TN.narrow(1, begin, heads * d);
    return part.as_strided({part.size(0), heads, d}, {part.stride(0), d, 1}, part.storage_offset());
}

/// The rows of tokens that are in segments; those after them only pad to what ranks can divide, and count as
/// zeros.
inline at::Tensor attended(const LayerContext& c, const at::Tensor& x_TN) {
    return c.group.tp.alone() ? x_TN : x_TN.narrow(0, 0, c.tokens.segments.q_offsets.back());
}
inline void zero_added(const LayerContext& c, const at::Tensor& x_TN) {
    const int64_t tokens = attended(c, x_TN).size(0), added = x_TN.size(0) - tokens;
    if (added > 0) ops::zero_2d(c.group.ctx, x_TN.narrow(0, tokens, added));
}

inline void observe(const LayerContext& c, const char* module, const at::Tensor& output) {
    if (c.group.observer != nullptr) (*c.group.observer)(cat("model.layers.", c.layer(), ".", module), output);
}

inline void observe_group(const LayerContext& c, Group g, const at::Tensor& y_TN) {
    if (c.group.observer == nullptr) return;
    for (const weights::Slice& slice : c.group.layout[g].slices)
        observe(c, c.spec.module_of(slice.id(c.layer())).c_str(), y_TN.narrow(1, slice.n_begin, slice.n));
}

/// Nothing is reported outside of a training run: scoring and generation have no step outcome.
inline ops::Site norm_site(const LayerContext& c, Place norm, Direction direction) {
    if (c.group.ctx.outcome == nullptr) return {};
    return {code_of({norm, c.layer(), direction}, static_cast<int>(c.spec.num_layers))};
}

/// All codes of a layer are in one scratch buffer: those of one product are dead when the next are made.
inline Activation input_of(const LayerContext& c, Group g, const weights::LayerWeights& w, const at::Tensor& x_full,
                           const at::Tensor& u_TR) {
    return input_activation(c.group, g, w[g], x_full, u_TR, c.scratch.codes);
}
inline Activation gradient_of(const LayerContext& c, Group g, const weights::LayerWeights& w, const at::Tensor& dy_full,
                              const at::Tensor& u_TR) {
    return gradient_activation(c.group, g, w[g], dy_full, u_TR, c.scratch.codes);
}
/// The codes of rows whose maker makes none.
inline void encode(const LayerContext& c, const Activation& activation, int64_t columns) {
    ops::quantize_rows(c.group.ctx, activation.full.narrow(1, 0, columns), activation.codes);
}

/// The gradient buffer of a trained norm; undefined when it is frozen.
inline at::Tensor norm_gradient(const LayerContext& c, spec::TensorRole role) {
    if (!c.group.trains_base) return {};
    const weights::Parameter* p = c.group.parameters->table().find(role, {c.layer()}, weights::Parameter::Kind::base);
    return c.group.parameters->gradient(*p);
}

}  // namespace unsloth::model
