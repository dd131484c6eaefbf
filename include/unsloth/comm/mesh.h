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

/// How many ranks each of the communicators has that a Mesh of this shape and its group make, on one machine; of a
/// pipeline those of the rank that has most. `ring` as for Mesh.
std::vector<int> communicator_sizes(const MeshShape& shape, bool ring = false);

/// A rank's coordinate on each axis. Neighbours in rank are neighbours in tp, then in cp, then in dp, then in pp: what
/// talks most is nearest.
MeshShape coordinates(const MeshShape& shape, int rank);

/// What the ranks of a pipeline pass on, each way with a communicator of its own, so that neither waits for the other.
/// nullptr: there is no rank on that side.
struct PipelineLinks {
    Communicator *from_below = nullptr, *to_above = nullptr;  ///< activations
    Communicator *from_above = nullptr, *to_below = nullptr;  ///< their gradients
};

/// The communicators of the axes, each of the ranks that differ from this one in that coordinate alone. nullptr: this
/// one alone.
class Mesh {
  public:
    /// All ranks of `group`, which outlives the mesh, make it together. shape.size() is the group's size. `ring`: of a
    /// pipeline the last rank is below the first one, too.
    Mesh(Group& group, const MeshShape& shape, bool ring = false);

    const MeshShape& shape() const { return shape_; }
    const MeshShape& at() const { return at_; }  ///< this rank's coordinates
    Communicator* dp() const { return dp_; }
    Communicator* cp() const { return cp_; }
    Communicator* tp() const { return tp_; }
    Communicator* pp() const { return pp_; }
    /// Of this rank's machine those that differ in dp and cp alone: they compute with the same slices of the same
    /// layers, on tokens of their own.
    Communicator* copies_here() const { return copies_here_; }
    /// All ranks with this one's stage of the pipeline: without one, all. nullptr: this one alone.
    Communicator* stage() const { return stage_; }
    /// The first and the last rank of a pipeline; nullptr between them, and without one.
    Communicator* ends() const { return ends_; }
    const PipelineLinks& links() const { return links_; }

  private:
    std::vector<int> ranks_along(const std::vector<int MeshShape::*>& axes) const;
    Communicator* meet_copies(Group& group);
    Communicator* along(Group& group, const char* name, const std::vector<int MeshShape::*>& axes);
    Communicator* make(Group& group, const std::string& name, const std::vector<int>& members);
    void link(Group& group, bool ring);

    MeshShape shape_, at_;
    std::vector<std::unique_ptr<Communicator>> made_;
    Communicator *dp_ = nullptr, *cp_ = nullptr, *tp_ = nullptr, *pp_ = nullptr, *copies_here_ = nullptr;
    Communicator *stage_ = nullptr, *ends_ = nullptr;
    PipelineLinks links_;
};

}  // namespace unsloth::comm
