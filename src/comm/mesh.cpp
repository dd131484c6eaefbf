#include "unsloth/comm/mesh.h"

#include <algorithm>

#include "unsloth/core/error.h"

namespace unsloth::comm {

MeshShape mesh_shape(int processes, int64_t tp, int64_t pp, int64_t cp) {
    const int64_t model = tp * pp * cp;
    if (processes % model != 0) {
        const int64_t below = processes / model * model, above = below + model;
        throw Error("parallel.wrong-rank-count",
                    cat("distributed.tp_size ", tp, " x pp_size ", pp, " x cp_size ", cp, " is ", model,
                        " ranks for each copy of the model, but there ",
                        processes == 1 ? "is 1 process" : cat("are ", processes, " processes")),
                    below > 0 ? cat("Start ", below, " or ", above, " processes, or change the sizes.")
                              : cat("Start ", above, " processes (unsloth-train launch --nproc_per_node ", above,
                                    " …) or a multiple of it, or change the sizes."));
    }
    return {.dp = static_cast<int>(processes / model),
            .cp = static_cast<int>(cp),
            .tp = static_cast<int>(tp),
            .pp = static_cast<int>(pp)};
}

std::vector<int> communicator_sizes(const MeshShape& shape, bool ring) {
    std::vector<int> sizes = {shape.size()};
    const auto add = [&](int size) {
        if (size > 1 && size < shape.size()) sizes.push_back(size);
    };
    for (const int along : {shape.dp, shape.cp, shape.tp, shape.pp}) add(along);
    if (shape.tp * shape.pp > 1 && shape.dp > 1 && shape.cp > 1) add(shape.dp * shape.cp);
    if (shape.pp == 1) return sizes;
    if (const int stage = shape.size() / shape.pp; stage > 1) sizes.push_back(stage);
    const bool middle = shape.pp > 2;  // it has neighbours on both sides, and is no end
    const int pairs = ring || middle ? 2 : 1;
    sizes.insert(sizes.end(), static_cast<std::size_t>(2 * pairs + (ring || !middle ? 1 : 0)), 2);
    return sizes;
}

MeshShape coordinates(const MeshShape& shape, int rank) {
    MeshShape at;
    for (int MeshShape::* const axis : {&MeshShape::tp, &MeshShape::cp, &MeshShape::dp, &MeshShape::pp}) {
        at.*axis = rank % shape.*axis;
        rank /= shape.*axis;
    }
    return at;
}

Mesh::Mesh(Group& group, const MeshShape& shape, bool ring) : shape_(shape), at_(coordinates(shape, group.rank())) {
    UNSLOTH_CHECK(shape.size() == group.size(), "a mesh of ", shape.size(), " ranks for ", group.size());
    dp_ = along(group, "dp", {&MeshShape::dp});
    cp_ = along(group, "cp", {&MeshShape::cp});
    tp_ = along(group, "tp", {&MeshShape::tp});
    pp_ = along(group, "pp", {&MeshShape::pp});
    copies_here_ = meet_copies(group);
    if (shape.pp > 1)
        link(group, ring);
    else
        stage_ = &group.all();
}

Communicator* Mesh::make(Group& group, const std::string& name, const std::vector<int>& members) {
    made_.push_back(group.make_communicator(members, name));
    return members.size() == 1 ? nullptr : made_.back().get();
}

/// Machines may have different numbers of ranks: where there are several all take part, those without a copy alone.
Communicator* Mesh::meet_copies(Group& group) {
    const std::vector<int>& here = group.ranks_here();
    if (shape_.tp * shape_.pp == 1) return here.size() == 1 ? nullptr : &group.here();
    const std::vector<int MeshShape::*> axes = {&MeshShape::dp, &MeshShape::cp};
    if (static_cast<int>(here.size()) == group.size())
        return shape_.cp == 1 ? dp_ : shape_.dp == 1 ? cp_ : along(group, "dp and cp", axes);
    std::vector<int> members = ranks_along(axes);
    std::erase_if(members, [&](int rank) { return !std::binary_search(here.begin(), here.end(), rank); });
    return make(group, "copies of a machine", members);
}

/// All ranks take part in the making of each, those without a neighbour alone.
void Mesh::link(Group& group, bool ring) {
    const int each = group.size() / shape_.pp, own = group.rank(), last = shape_.pp - 1;
    std::vector<int> alike;
    for (int rank = at_.pp * each; rank < (at_.pp + 1) * each; ++rank) alike.push_back(rank);
    stage_ = make(group, "stage", alike);
    const int first_rank = own - at_.pp * each, last_rank = own + (last - at_.pp) * each;
    const bool end = at_.pp == 0 || at_.pp == last;
    ends_ = make(group, "ends", end ? std::vector{first_rank, last_rank} : std::vector{own});
    // Neighbours in disjoint pairs, all pairs of a round at once.
    const int pairs = ring ? shape_.pp : last;
    const auto round_of = [&](int below) { return below == last && last % 2 == 0 ? 2 : below % 2; };
    for (int round = 0; round < 3; ++round) {
        std::vector<int> pair{own};
        bool sends = false, met = false;
        for (int below = 0; below < pairs; ++below) {
            if (round_of(below) != round) continue;
            met = true;
            const int above = (below + 1) % shape_.pp;
            if (at_.pp == below) sends = true, pair.push_back(own + (above - below) * each);
            if (at_.pp == above) pair.push_back(own + (below - above) * each);
        }
        if (!met) continue;
        std::sort(pair.begin(), pair.end());
        Communicator* const up = make(group, cat("pipeline ", round, " up"), pair);
        Communicator* const down = make(group, cat("pipeline ", round, " down"), pair);
        if (up == nullptr) continue;
        if (sends)
            links_.to_above = up, links_.from_above = down;
        else
            links_.from_below = up, links_.to_below = down;
    }
}

/// The ranks that differ from this one in these coordinates alone.
std::vector<int> Mesh::ranks_along(const std::vector<int MeshShape::*>& axes) const {
    std::vector<int> members;
    for (int rank = 0; rank < shape_.size(); ++rank) {
        MeshShape other = coordinates(shape_, rank);
        for (int MeshShape::* const axis : axes) other.*axis = at_.*axis;
        if (other == at_) members.push_back(rank);
    }
    return members;
}

Communicator* Mesh::along(Group& group, const char* name, const std::vector<int MeshShape::*>& axes) {
    const std::vector<int> members = ranks_along(axes);
    const auto size = static_cast<int>(members.size());
    if (size == 1 || size == group.size()) return size == 1 ? nullptr : &group.all();
    made_.push_back(group.make_communicator(members, name));
    return made_.back().get();
}

}  // namespace unsloth::comm
