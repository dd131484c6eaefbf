#include "unsloth/placement/rollout_rows.h"

#include <algorithm>

#include "unsloth/model/loader.h"
#include "unsloth/placement/load_request.h"

namespace unsloth::placement {
namespace {

/// The rest is for the passes of training, which are faster the more they keep.
constexpr double share_of_cache = 0.4;
constexpr int64_t most_rows = 512;  // more give little, and take memory

}  // namespace

int64_t rows_in_flight(const config::Config& config, const std::shared_ptr<const formats::WeightFile>& file,
                       model::LoadRequest request, const Answering& asked, const MemoryBudget& budget) {
    if (config.grpo.max_rows_in_flight > 0) return std::min(asked.rows, config.grpo.max_rows_in_flight);
    const int64_t kv_size = file->spec.kv_size() / request.tp.place().size;
    const auto layers = std::ranges::count_if(file->spec.layers, [](const auto& layer) { return !layer.delta; });
    int64_t of_row = cache_for(1, asked.context).tokens * 2 * kv_size * layers *
                     static_cast<int64_t>(c10::elementSize(request.dtype));
    if (file->spec.delta)  // and a snapshot for two rows
        of_row += 3 * model::state_bytes(file->spec, request.dtype) / 2;
    fit_to(request, file->spec, {.tokens = 1, .segments = 1, .longest = 1, .labels = 1});
    const int64_t left = budget.device - model::ModelPlan(file, std::move(request)).need().device;
    const auto most = static_cast<int64_t>(share_of_cache * static_cast<double>(left)) / of_row;
    return std::clamp<int64_t>(most, 1, std::min(asked.rows, most_rows));
}

}  // namespace unsloth::placement
