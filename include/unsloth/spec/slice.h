// Tensor parallel: what of a model's matrices each of the ranks has that compute a layer together (Megatron-LM, arXiv
// 1909.08053). q, k, v, gate and up are cut by outputs, o and down by inputs, each expert's too, lm_head by the
// vocabulary; norms, routers and the embeddings are everyone's. Gated delta nets are cut by key heads.
#pragma once

#include <cstdint>
#include <vector>

#include "unsloth/spec/model_spec.h"

namespace unsloth::spec {

/// One of `size` ranks that share each layer's matrices.
struct TensorRank {
    int rank = 0, size = 1;
    bool alone() const { return size == 1; }
    /// Of what is the same on all of them, one rank's counts.
    bool first() const { return rank == 0; }
    bool operator==(const TensorRank&) const = default;
};

/// Elements [begin, begin + size).
struct Range {
    int64_t begin = 0, size = 0;
    bool operator==(const Range&) const = default;
};

struct MatrixSlice {
    Range rows, columns;
    std::vector<Range> more_rows = {};  ///< of a matrix whose rows are of several projections: what follows `rows`
    int64_t row_count() const;
    bool operator==(const MatrixSlice&) const = default;
};

/// Whether a projection's products are cut by their inputs: a rank's outputs are then terms of a sum.
constexpr bool is_cut_by_inputs(Projection p) {
    return p == Projection::o || p == Projection::down || p == Projection::delta_out;
}

/// The model whose layers are a rank's slices of the model's: fewer heads, a part of the intermediate size; everything
/// else as it is, the vocabulary too. Where there are fewer key/value heads than ranks, neighbours have the same one.
/// usage Error that says which size does not divide.
ModelSpec slice(const ModelSpec& model, TensorRank tp);

/// A rank's part of a projection's matrix [N, K] in the model; `model` is the whole one.
MatrixSlice slice_of(const ModelSpec& model, Projection p, TensorRank tp);
/// The same of a matrix that may be an expert's; those of all experts are cut alike.
MatrixSlice slice_of(const ModelSpec& model, const LinearId& id, TensorRank tp);

/// A rank's rows of lm_head: borders are multiples of 8, so that slices may differ in size. usage Error where the
/// vocabulary has fewer rows than that for each rank.
Range vocabulary_slice(int64_t vocab_size, TensorRank tp);

}  // namespace unsloth::spec
