#include "unsloth/comm/mesh.h"

#include "unsloth/core/error.h"

namespace unsloth::comm {

MeshShape mesh_shape(int processes, int64_t tp, int64_t pp, int64_t cp) {
    const int64_t model = tp * pp * cp;
    if (processes % model != 0) {
        const int64_t below = processes / model * model, above = below + model;
        throw usage_error(cat("distributed.tp_size ", tp, " x pp_size ", pp, " x cp_size ", cp, " is ", model,
                              " ranks for each copy of the model, but there ",
                              processes == 1 ? "is 1 process" : cat("are ", processes, " processes")),
                          below > 0 ? cat("Start ", below, " or ", above, " processes, or change the sizes.")
                                    : cat("Start ", above, " processes, or a multiple of it, or change the sizes."));
    }
    return {.dp = static_cast<int>(processes / model),
            .cp = static_cast<int>(cp),
            .tp = static_cast<int>(tp),
            .pp = static_cast<int>(pp)};
}

MeshShape coordinates(const MeshShape& shape, int rank) {
    MeshShape at;
    for (int MeshShape::* const axis : {&MeshShape::tp, &MeshShape::cp, &MeshShape::dp, &MeshShape::pp}) {
        at.*axis = rank % shape.*axis;
        rank /= shape.*axis;
    }
    return at;
}

Mesh::Mesh(Group& group, const MeshShape& shape) : shape_(shape), at_(coordinates(shape, group.rank())) {
    UNSLOTH_CHECK(shape.size() == group.size(), "a mesh of ", shape.size(), " ranks for ", group.size());
    dp_ = along(group, "dp", &MeshShape::dp);
    cp_ = along(group, "cp", &MeshShape::cp);
    tp_ = along(group, "tp", &MeshShape::tp);
    pp_ = along(group, "pp", &MeshShape::pp);
}

Communicator* Mesh::along(Group& group, const char* name, int MeshShape::* axis) {
    if (shape_.*axis == 1) return nullptr;
    if (shape_.*axis == group.size()) return &group.all();
    std::vector<int> members;
    for (int rank = 0; rank < group.size(); ++rank) {
        MeshShape other = coordinates(shape_, rank);
        other.*axis = at_.*axis;
        if (other == at_) members.push_back(rank);
    }
    made_.push_back(group.make_communicator(members, name));
    return made_.back().get();
}

}  // namespace unsloth::comm
