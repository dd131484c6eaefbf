#include "unsloth/train/parallel.h"

#include "unsloth/core/error.h"

namespace unsloth::train {

comm::MeshShape choose_mesh(const config::DistributedOptions& distributed, int processes) {
    const auto not_yet = [](const char* option, bool asked, const char* instead) {
        if (asked) throw usage_error(cat("distributed.", option, " does not work yet"), instead);
    };
    not_yet("cp_size above 1", distributed.cp_size > 1, "Leave it at 1.");
    not_yet("zero_stage above 1", distributed.zero_stage > 1, "Set it to 1, which shares the optimizer's states.");
    not_yet("zero_stage beside tp_size", distributed.zero_stage > 0 && distributed.tp_size > 1,
            "Leave one of them out.");
    not_yet("zero_stage beside pp_size", distributed.zero_stage > 0 && distributed.pp_size > 1,
            "Leave one of them out.");
    not_yet("offload_optimizer cpu", distributed.offload_optimizer != config::OptimizerPlace::device,
            "Leave it at none.");
    return comm::mesh_shape(processes, distributed.tp_size, distributed.pp_size, distributed.cp_size);
}

weights::Share optimizer_share(const config::DistributedOptions& distributed, const comm::Mesh* mesh) {
    if (distributed.zero_stage == 0 || mesh == nullptr || mesh->dp() == nullptr) return {};
    return {mesh->dp()->rank(), mesh->dp()->size()};
}

}  // namespace unsloth::train
