#include "unsloth/placement/parallel.h"

#include <algorithm>

#include "unsloth/core/error.h"

namespace unsloth::placement {

comm::MeshShape choose_mesh(const config::DistributedOptions& distributed, int processes) {
    return comm::mesh_shape(processes, distributed.tp_size, distributed.pp_size, distributed.cp_size);
}

const char* asks_for_answers(const config::TrainingOptions& training) {
    if (training.sample_prompts) return "training.sample_prompts";
    return training.eval_metric == config::AnswerMetric::none ? nullptr : "training.eval_metric";
}

void require_shareable(const config::Config& config, const weights::ShardingPolicy& sharding) {
    const char* const answers = asks_for_answers(config.training);
    if (sharding.splits_values() && answers != nullptr)
        throw Error("parallel.unsupported",
                    cat(answers, " cannot be combined with distributed.zero_stage 3: a rank alone cannot answer"),
                    "Leave one of the two out.");
    const bool decides = config::learns_decisions(config.training.objective);
    if (decides && config.distributed.cp_size > 1)
        throw Error("parallel.unsupported",
                    cat("distributed.cp_size ", config.distributed.cp_size,
                        " cannot be combined with training.objective decision: rows are not cut"),
                    "Train data parallel.");
    if (config.distributed.tp_size == 1) return;
    const std::string size = cat("distributed.tp_size ", config.distributed.tp_size, " cannot be combined with ");
    if (answers != nullptr)
        throw Error("parallel.unsupported", cat(size, answers, ": a rank alone cannot answer"),
                    "Leave one of the two out.");
    if (config::traits_of(config.training.objective).has_teacher)
        throw Error("parallel.unsupported",
                    size + "training.objective distill: a rank's logits are a slice of the vocabulary",
                    "Train data parallel.");
    if (decides)
        throw Error("parallel.unsupported",
                    size + "training.objective decision: a rank's logits are a slice of the vocabulary",
                    "Train data parallel.");
    if (config.model.dtype == spec::DType::f16)
        throw Error("parallel.unsupported", size + "model.dtype float16: sums over ranks are in bf16 or fp32",
                    "Use bfloat16.");
}

weights::Share place_of(const comm::Communicator* ranks) {
    return ranks == nullptr ? weights::Share{} : weights::Share{ranks->rank(), ranks->size()};
}

weights::ShardingPolicy parameter_sharding(const config::DistributedOptions& distributed, weights::Share alike) {
    weights::ShardingPolicy sharding;
    if (distributed.offload_optimizer == config::OptimizerPlace::cpu) sharding.place = spec::Place::host;
    if (distributed.zero_stage > 0 || sharding.on_host()) sharding.share = alike;
    if (sharding.share.size > 1) sharding.level = static_cast<weights::Sharding>(distributed.zero_stage);
    if (sharding.on_host()) sharding.level = std::max(sharding.level, weights::Sharding::gradients);
    sharding.of_stage = distributed.pp_size > 1;
    return sharding;
}

bool writes_part(const comm::MeshShape& mesh, weights::Share share, int rank) {
    const comm::MeshShape at = comm::coordinates(mesh, rank);
    return share.size > 1 || (at.dp == 0 && at.cp == 0 && at.tp == 0);
}

}  // namespace unsloth::placement
