// How a layer's linears are grouped and where their adapters sit in the grouped buffers.
//
// Projections that read the same input are one matrix: qkv, o, gate+up, down. A group with adapters is one buffer of
// (N+R) x (K+R), leading dimension K+R:
//
//        K       R
//   N  [ W  |  s·B ]      forward   y = [x | x·Aᵀ] · [W | s·B]ᵀ
//   R  [ A  |   0  ]      backward  dx = [dy | dy·(s·B)] · [W ; A]
//
// Legend: N outputs, K inputs, R the group's total rank (each projection's padded to 8), r a projection's own rank.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "unsloth/spec/lora_spec.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::model {

enum class Group : uint8_t { qkv, o, gate_up, down };
inline constexpr int group_count = 4;
inline constexpr std::array<Group, group_count> all_groups = {Group::qkv, Group::o, Group::gate_up, Group::down};
constexpr const char* name_of(Group g) {
    constexpr const char* names[] = {"qkv", "o", "gate_up", "down"};
    return names[static_cast<int>(g)];
}

/// A projection's place in its group.
struct Slice {
    Projection projection;
    int64_t n_begin = 0, n = 0;  ///< rows of W
    int64_t r_begin = 0, r = 0;  ///< rows of A and columns of B that are reserved (padded to 8; the same in every layer)
};

/// A group's shape, the same in every layer: ranks are the largest of any layer, so that one scratch buffer serves all.
struct GroupLayout {
    int64_t n = 0, k = 0, r = 0;
    std::vector<Slice> slices;
    int64_t leading() const { return k + r; }
    int64_t elements() const { return (n + r) * (k + r); }
};

struct LayerLayout {
    std::array<GroupLayout, group_count> groups;
    const GroupLayout& operator[](Group g) const { return groups[static_cast<std::size_t>(g)]; }
    int64_t elements() const;   ///< of one layer's four buffers
    int64_t widest_rank() const;  ///< the largest group's r
};

/// `lora` has one entry a layer, or is empty (no adapters: R = 0).
LayerLayout make_layout(const ModelSpec& spec, const std::vector<LayerLora>& lora);

Group group_of(Projection p);

}  // namespace unsloth::model
