#include "bench/model.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "unsloth/core/philox.h"
#include "unsloth/data/context_slice.h"
#include "unsloth/placement/loading.h"
#include "unsloth/placement/memory_use.h"
#include "unsloth/placement/recipe.h"
#include "unsloth/placement/stages.h"
#include "unsloth/train/learning_rate.h"

namespace unsloth::bench {
namespace {

using Clock = std::chrono::steady_clock;

train::StepSettings settings_of(const config::Config& config, comm::Group* group) {
    const config::TrainingOptions& t = config.training;
    return {.adamw = train::adamw_settings(config),
            .max_grad_norm = t.max_grad_norm,
            .seed = 1,
            .loss_scaling = config.model.dtype == spec::DType::f16,
            .group = group,
            .bucket_bytes = placement::bucket_bytes(config, group)};
}

}  // namespace

data::StepBatch random_step(const spec::ModelSpec& spec, const std::vector<int64_t>& lengths, uint32_t rank,
                            int64_t ranks, int64_t micro_batches) {
    const std::size_t rows = lengths.size();
    std::vector<data::Sample> samples(rows * static_cast<std::size_t>(micro_batches));
    for (std::size_t row = 0; row < samples.size(); ++row) {
        data::Sample& sample = samples[row];
        for (int32_t t = 0; t < static_cast<int32_t>(lengths[row % rows]); ++t) {
            const uint32_t word = philox4x32(1, 2, static_cast<uint32_t>(t), static_cast<uint32_t>(row), rank, 0).w[0];
            sample.ids.push_back(static_cast<int32_t>(word % static_cast<uint32_t>(spec.vocab_size)));
            sample.positions.push_back(t);
        }
        sample.labels = sample.ids;
        sample.row = static_cast<int64_t>(row);
    }
    data::StepBatch result;
    for (std::size_t first = 0; first < samples.size(); first += rows) {
        const data::Batch& micro = result.micro.emplace_back(data::make_batch(std::span(samples).subspan(first, rows)));
        result.labels += ranks * micro.labels;
        result.tokens += ranks * micro.tokens();
    }
    return result;
}

BenchedModel::BenchedModel(const config::LoadedConfig& loaded, at::Device device, const std::vector<int64_t>& lengths,
                           comm::Group* group, int64_t micro_batches, const comm::Mesh* mesh)
    : opened_(session::open_model(loaded.config)) {
    model::LoadRequest load = placement::make_request(loaded, opened_.file->spec,
                                                      {.work = placement::Work::bench,
                                                       .device = device,
                                                       .held = placement::held_memory(*opened_.file, device),
                                                       .ranks = placement::ranks_of(group, mesh)});
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    placement::fit_to(load, opened_.file->spec,
                      data::slice_limits({.tokens = tokens,
                                          .segments = static_cast<int64_t>(lengths.size()),
                                          .longest = *std::max_element(lengths.begin(), lengths.end()),
                                          .labels = tokens},
                                         load.cp.place()));
    plan_ = std::make_unique<model::ModelPlan>(opened_.file, load);
    if (mesh != nullptr && mesh->pp() != nullptr) {
        placement::require_pipelined(loaded.config, device, plan_->spec().num_layers);
        load.pp = placement::plan_pipeline(loaded.config, *plan_, *mesh, *group, micro_batches);
        plan_ = std::make_unique<model::ModelPlan>(opened_.file, load);
    }
    placement::choose_memory_use(loaded.config, *plan_, micro_batches);
    placement::require_memory(*plan_, placement::memory_budget(loaded.config, device));
    ctx_ = placement::make_context(loaded.config, *plan_);
    model_ = std::make_unique<model::Model>(*ctx_, plan_->load(*ctx_, placement::load_share(group, *plan_)));
}

StepTimer::StepTimer(BenchedModel& benched, const config::Config& config, const std::vector<int64_t>& lengths,
                     comm::Group* group, int64_t micro_batches, const comm::Mesh* mesh)
    : model_(benched.model()),
      learning_rate_(config.training.learning_rate.value_or(config::TrainingOptions().learning_rate.value())),
      batch_(random_step(benched.spec(), lengths,
                         mesh    ? static_cast<uint32_t>(mesh->at().dp)
                         : group ? static_cast<uint32_t>(group->rank())
                                 : 0,
                         mesh    ? mesh->shape().dp
                         : group ? group->size()
                                 : 1,
                         micro_batches)),
      stepper_(benched.ctx(), benched.model(), settings_of(config, group)) {
    for (data::Batch& micro : batch_.micro) {
        micro = data::slice(micro, benched.request().cp.place());
        micro.token_order = data::sort_tokens(micro.ids_T);  // for embeddings that are trained
    }
}

StepTimes StepTimer::run(int64_t steps) {
    StepTimes times;
    const auto take = [&](bool must) {
        while (const auto result = stepper_.take(must)) {
            times.loss = result->outcome.loss;
            times.skipped = times.skipped || result->outcome.skipped != 0;
        }
    };
    const auto start = Clock::now();
    for (int64_t i = 0; i < steps; ++i) {
        stepper_.issue(batch_, ++step_, learning_rate_);
        take(/*must=*/false);
    }
    take(/*must=*/true);
    times.ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count() / static_cast<double>(steps);
    return times;
}

}  // namespace unsloth::bench
