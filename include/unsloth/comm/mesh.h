// The processes of a run as a grid: which share the rows, a row's tokens, each product, the layers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "unsloth/comm/group.h"

namespace unsloth::comm {

/// Ranks along each axis; their product is the number of processes.
struct MeshShape {
    int dp = 1, cp = 1, tp = 1, pp = 1;
    int size() const { return dp * cp * tp * pp; }
    bool operator==(const MeshShape&) const = default;
};

/// What tp, pp and cp leave of `processes` is data parallel. usage Error when it is no whole number, with the numbers
/// of processes nearby that would do.
MeshShape mesh_shape(int processes, int64_t tp, int64_t pp, int64_t cp);

/// Where a rank stands on each axis. Neighbours in rank are neighbours in tp, then in cp, then in dp, then in pp: what
/// talks most is nearest.
MeshShape coordinates(const MeshShape& shape, int rank);

/// The communicators of the axes, each of the ranks that differ from this one in that coordinate alone. nullptr: the
/// axis has one rank.
class Mesh {
  public:
    /// All ranks of `group`, which outlives the mesh, make it together. shape.size() is the group's size.
    Mesh(Group& group, const MeshShape& shape);

    const MeshShape& shape() const { return shape_; }
    const MeshShape& at() const { return at_; }  ///< this rank's coordinates
    Communicator* dp() const { return dp_; }
    Communicator* cp() const { return cp_; }
    Communicator* tp() const { return tp_; }
    Communicator* pp() const { return pp_; }

  private:
    Communicator* along(Group& group, const char* name, int MeshShape::* axis);

    MeshShape shape_, at_;
    std::vector<std::unique_ptr<Communicator>> made_;
    Communicator *dp_ = nullptr, *cp_ = nullptr, *tp_ = nullptr, *pp_ = nullptr;
};

}  // namespace unsloth::comm
