// How a layer's linears are grouped and where their adapters sit in the grouped buffers.
//
// Projections that read the same input are one matrix: qkv, o, gate+up, down. So are those of a layer's experts, of
// which each has its gate's and up's rows, or its down's, in turn. A group with adapters is one buffer of
// (N+R) x (K+R), rows row_stride(K+R) apart:
//
//        K       R
//   N  [ W  |  s·B ]      forward   y = [x | x·Aᵀ] · [W | s·B]ᵀ
//   R  [ A  |   0  ]      backward  dx = [dy | dy·(s·B)] · [W ; A]
//
// Legend: N outputs, K inputs, R the group's total rank (each projection's padded to 8), r a projection's own rank.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <ranges>
#include <vector>

#include "unsloth/spec/lora_spec.h"
#include "unsloth/spec/model_spec.h"
#include "unsloth/spec/slice.h"
#include "unsloth/spec/stage.h"

namespace unsloth::weights {

/// cross_q and cross_kv are what a layer that crosses has in the place of qkv: its queries read tokens, its keys and
/// values image features. delta_in and delta_out are a gated delta net's, in the place of qkv and o.
enum class Group : uint8_t {
    qkv,
    o,
    gate_up,
    down,
    cross_q,
    cross_kv,
    delta_in,
    delta_out,
    experts_gate_up,
    experts_down
};
inline constexpr std::array<const char*, 10> group_names = {
    "qkv", "o", "gate_up", "down", "cross_q", "cross_kv", "delta_in", "delta_out", "experts_gate_up", "experts_down"};
constexpr bool is_of_delta(Group g) {
    return g == Group::delta_in || g == Group::delta_out;
}
constexpr bool is_of_crossing(Group g) {
    return g == Group::cross_q || g == Group::cross_kv;
}
/// Whether it is of a layer's experts: one matrix [E, n/E, k] of which each row is multiplied by a part.
constexpr bool is_of_experts(Group g) {
    return g >= Group::experts_gate_up;
}
constexpr const char* name_of(Group g) {
    return group_names[static_cast<std::size_t>(g)];
}

/// Elements from one row of a matrix of `columns` columns to the next: a multiple of 64, so that rows of 16-bit
/// elements start at multiples of 128 bytes. A GEMM reads its operands in pieces of that size, and takes 2 to 4 %
/// longer where each crosses a line boundary (docs/performance/operators.md).
constexpr int64_t row_stride(int64_t columns) {
    constexpr int64_t elements = 64;
    return (columns + elements - 1) / elements * elements;
}

/// A projection's place in its group.
struct Slice {
    spec::Projection projection;
    int64_t n_begin = 0, n = 0;  ///< rows of W
    int64_t r_begin = 0,
            r = 0;           ///< rows of A and columns of B that are reserved (padded to 8; the same in every layer)
    spec::MatrixSlice part;  ///< what of the model's W it is: B's rows, and A's columns, are cut alike
    int expert = -1;         ///< whose it is; -1: of no expert
    spec::LinearId id(int64_t layer) const { return {static_cast<int>(layer), projection, expert}; }
};

/// A group's shape, the same in every layer that has it: ranks are the largest of any layer, so that one scratch buffer
/// is enough for all.
struct MatrixGroup {
    Group group = Group::qkv;
    int64_t n = 0, k = 0, r = 0;
    std::vector<Slice> slices;
    /// E of a group of experts: each has the same number of rows of W, the margin's R columns next to them, and R rows
    /// of A. A layer whose own rank is smaller takes the first r of these for each in turn. 0: it is of none.
    int64_t experts = 0;
    int64_t a_rows() const { return std::max<int64_t>(1, experts) * r; }
    int64_t rows() const { return n + a_rows(); }
    int64_t inputs() const { return k + r; }  ///< what the forward product sums over
    int64_t leading() const { return row_stride(inputs()); }
    int64_t elements() const { return rows() * leading(); }
};

/// What a layer has of each of its groups.
template <class T>
using ByGroup = std::map<Group, T>;

struct LayerLayout {
    std::vector<MatrixGroup> groups;  ///< of the model's linears, in the order of a layer's forward pass
    bool dora = false;                ///< outputs are scaled after the product (weights/dora_norms.h)
    spec::TensorRank tp;              ///< whose slices of the model's matrices these are
    spec::Stage stage;                ///< which layers there are
    std::vector<bool> has_experts;    ///< by layer: whether its MLP is of experts; empty: no layer's is
    std::vector<bool> crosses;        ///< by layer: LayerSpec::crosses; empty: none does
    std::vector<bool> deltas;         ///< by layer: LayerSpec::delta; empty: none has one
    /// CheckError where the model has no such group.
    const MatrixGroup& operator[](Group g) const;
    /// Those that some layer has.
    auto all_groups() const { return std::views::transform(groups, &MatrixGroup::group); }
    /// Those of them that are of no experts: their products are single ones.
    auto single_groups() const {
        return all_groups() | std::views::filter([](Group g) { return !is_of_experts(g); });
    }
    /// Those of a layer.
    auto groups_of(int64_t layer) const {
        const bool experts = !has_experts.empty() && has_experts.at(static_cast<std::size_t>(layer)),
                   crosses = this->has_crossing(layer), delta = this->has_delta(layer);
        return groups | std::views::transform(&MatrixGroup::group) |
               std::views::filter([experts, crosses, delta](Group g) {
                   if (is_of_delta(g)) return delta;
                   if (delta && (g == Group::qkv || g == Group::o)) return false;
                   if (g == Group::qkv || is_of_crossing(g)) return crosses == is_of_crossing(g);
                   return experts ? g != Group::gate_up && g != Group::down : !is_of_experts(g);
               });
    }
    bool has_crossing(int64_t layer) const { return !crosses.empty() && crosses.at(static_cast<std::size_t>(layer)); }
    bool has_delta(int64_t layer) const { return !deltas.empty() && deltas.at(static_cast<std::size_t>(layer)); }
    /// The group that a layer's residual stream goes into first, and the one that comes back from its mixer.
    Group in_of(int64_t layer) const {
        return has_delta(layer) ? Group::delta_in : has_crossing(layer) ? Group::cross_q : Group::qkv;
    }
    Group out_of(int64_t layer) const { return has_delta(layer) ? Group::delta_out : Group::o; }
    /// The group of a layer's matrix.
    Group group_of(const spec::LinearId& id) const;
    bool has(Group g) const { return std::ranges::find(groups, g, &MatrixGroup::group) != groups.end(); }
    int64_t rank_of(Group g) const { return has(g) ? (*this)[g].r : 0; }  ///< R; 0 where no layer has the group
    int64_t elements() const;                                             ///< of one layer's buffers
    int64_t widest_rank() const;                                          ///< the largest group's r
};

/// A rank's slices of the layers of `spec`, which is the whole model. `lora` has one entry a layer, or is empty (no
/// adapters: R = 0).
LayerLayout make_layout(const spec::ModelSpec& spec, const std::vector<spec::LayerLora>& lora, spec::TensorRank tp = {},
                        spec::Stage stage = {});

Group group_of(spec::Projection p);
Group group_of(const spec::LinearId& id);
/// Whose adapter a group of experts has.
constexpr spec::Projection adapted_of(Group g) {
    return g == Group::experts_down ? spec::Projection::experts_down : spec::Projection::experts_gate_up;
}

/// Whether a group's products are cut by their inputs (Megatron's row parallel): what a rank's product gives are terms
/// of a sum over the ranks. For the other groups, the gradient of their input is such a sum.
constexpr bool is_cut_by_inputs(Group g) {
    return g == Group::o || g == Group::down || g == Group::delta_out || g == Group::experts_down;
}

}  // namespace unsloth::weights
