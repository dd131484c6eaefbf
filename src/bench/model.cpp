#include "bench/model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "unsloth/core/error.h"
#include "unsloth/core/philox.h"
#include "unsloth/data/context_slice.h"
#include "unsloth/data/vision.h"
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

/// Puts the images at the row's beginning. Their tokens are no targets, as in a run.
void add_images(data::Sample& sample, const spec::VisionSpec& spec, const RowImages& images) {
    const int64_t tokens = spec.tokens_of(images.patches(spec));
    const int32_t grid = images.grid(spec);
    const int64_t pieces = images.patches(spec) * (spec.tiles ? spec.tiles->patches() : 1);
    const auto bytes = static_cast<std::size_t>(pieces * spec.patch_bytes());
    for (int64_t i = 0; i < images.count; ++i) {
        const int64_t first = i * tokens;
        std::fill_n(sample.ids.begin() + first, tokens, spec.image_token);
        std::fill_n(sample.labels.begin() + first, tokens, data::ignore_label);
        std::vector<uint8_t> pixels(bytes);
        for (std::size_t at = 0; at < bytes; ++at)
            pixels[at] = static_cast<uint8_t>(philox4x32(1, 3, static_cast<uint32_t>(at), static_cast<uint32_t>(i),
                                                         static_cast<uint32_t>(sample.row), 0)
                                                  .w[0]);
        sample.images.push_back({.first = static_cast<int32_t>(first),
                                 .grid_h = grid,
                                 .grid_w = grid,
                                 .pixels = std::make_shared<const std::vector<uint8_t>>(std::move(pixels)),
                                 .content = images.kept ? cat(sample.row, " ", i) : ""});
    }
    if (spec.tiles) return;
    data::VisionRows rows;
    rows.processor.merge = static_cast<int32_t>(spec.merge);
    sample.axes = data::axes_of(sample, rows);
}

}  // namespace

data::StepBatch random_step(const spec::ModelSpec& spec, const std::vector<int64_t>& lengths, uint32_t rank,
                            int64_t ranks, int64_t micro_batches, const RowImages& images) {
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
        if (images.count > 0) add_images(sample, spec.vision.value(), images);
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
                           comm::Group* group, int64_t micro_batches, const comm::Mesh* mesh, const RowImages& images)
    : opened_(session::open_model(loaded.config)) {
    model::LoadRequest load = placement::make_request(loaded, opened_.file->spec,
                                                      {.work = placement::Work::bench,
                                                       .device = device,
                                                       .held = placement::held_memory(*opened_.file, device),
                                                       .ranks = placement::ranks_of(group, mesh)});
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const int64_t shortest = *std::min_element(lengths.begin(), lengths.end()),
                  of_images = static_cast<int64_t>(lengths.size()) * images.tokens(spec(), shortest);
    placement::fit_to(load, opened_.file->spec,
                      data::slice_limits({.tokens = tokens,
                                          .segments = static_cast<int64_t>(lengths.size()),
                                          .longest = *std::max_element(lengths.begin(), lengths.end()),
                                          .labels = tokens,
                                          .patches = of_images > 0 ? images.patches(*spec().vision) : 0,
                                          .image_tokens = of_images},
                                         load.cp.place()));
    plan_ = std::make_unique<model::ModelPlan>(opened_.file, load);
    if (mesh != nullptr && mesh->pp() != nullptr) {
        placement::require_pipelined(loaded.config, device, plan_->spec().num_layers);
        load.pp = placement::plan_pipeline(loaded.config, *plan_, *mesh, *group, micro_batches);
        plan_ = std::make_unique<model::ModelPlan>(opened_.file, load);
    }
    placement::choose_memory_use(loaded.config, *plan_, micro_batches);
    if (images.kept && of_images > 0) {
        load = plan_->request();
        load.kept = std::make_shared<model::KeptFeatures>();
        load.kept_bytes = micro_batches * static_cast<int64_t>(lengths.size()) * images.count *
                          model::kept_bytes(spec(), plan_->layout(), load.dtype, images.patches(*spec().vision));
        *plan_ = plan_->with(load);
    }
    placement::require_memory(*plan_, placement::memory_budget(loaded.config, device));
    ctx_ = placement::make_context(loaded.config, *plan_);
    model_ = std::make_unique<model::Model>(*ctx_, plan_->load(*ctx_, placement::load_share(group, *plan_)));
}

StepTimer::StepTimer(BenchedModel& benched, const config::Config& config, const std::vector<int64_t>& lengths,
                     comm::Group* group, int64_t micro_batches, const comm::Mesh* mesh, const RowImages& images)
    : model_(benched.model()),
      learning_rate_(config.training.learning_rate.value_or(config::TrainingOptions().learning_rate.value())),
      batch_(random_step(benched.spec(), lengths,
                         mesh    ? static_cast<uint32_t>(mesh->at().dp)
                         : group ? static_cast<uint32_t>(group->rank())
                                 : 0,
                         mesh    ? mesh->shape().dp
                         : group ? group->size()
                                 : 1,
                         micro_batches, images)),
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
