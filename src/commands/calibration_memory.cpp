#include "commands/calibration_memory.h"

#include <algorithm>
#include <cstdio>

#include "commands/rows_in_fp64.h"
#include "unsloth/core/error.h"
#include "unsloth/core/host.h"
#include "unsloth/core/log.h"
#include "unsloth/core/text.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/device.h"

namespace unsloth::commands {
namespace {

constexpr int64_t fp64 = sizeof(double);

/// The allocator does not split off less than this of a large block.
constexpr int64_t unsplit = int64_t{1} << 20;

int64_t sums_bytes(const engine_api::CalibrationRequest& request, const spec::ModelSpec& spec, int64_t segments) {
    const int64_t layers = spec.num_layers, neurons = spec.intermediate_size;
    int64_t elements = 0, conversions = 0;
    if (request.influence) conversions = 2;  // a layer's input and output
    if (request.neurons) elements += (layers + segments) * neurons;
    if (request.inputs) elements += layers * (2 * spec.hidden_size + spec.q_size() + neurons);
    if (request.neurons || request.inputs || request.experts > 0) conversions = std::max<int64_t>(conversions, 1);
    return elements * fp64 + conversions * (most_elements * fp64 + unsplit);
}

bool on_cpu(const session::PassesPlan& planned) {
    return planned.plan.request().device.is_cpu();
}

}  // namespace

MeasuringMemory measuring_memory(const engine_api::CalibrationRequest& request, const spec::ModelSpec& spec,
                                 const CalibrationRows& rows, spec::DType compute) {
    MeasuringMemory memory;
    memory.sums = sums_bytes(request, spec, rows.most_segments());
    memory.of_token = spec.hidden_size * static_cast<int64_t>(spec::size_of(compute));
    if (request.experts > 0) memory.streams = (rows.rows().stats().tokens + rows.most_tokens()) * memory.of_token;
    return memory;
}

session::PassesPlan plan_measuring(const config::LoadedConfig& loaded, const session::OpenedModel& opened,
                                   const CalibrationRows& rows, const MeasuringMemory& memory) {
    const bool cpu = ops::choose_device(loaded.config.hardware.device).is_cpu();
    const placement::MemoryBudget reserved{memory.sums + (cpu ? memory.streams : 0), cpu ? 0 : memory.streams};
    int64_t shortest = rows.most_tokens();
    for (int64_t i = 0; i < rows.rows().size(); ++i) shortest = std::min(shortest, rows.rows().tokens(i));
    session::PassesPlan planned =
        session::plan_passes(loaded, opened, rows.most_tokens(), rows.most_segments(), rows.most_tokens(), shortest,
                             /*cache=*/{}, /*adapters=*/{}, /*slots=*/{}, reserved);
    const spec::MemoryNeed need = planned.plan.need();
    const placement::MemoryBudget& budget = planned.budget;
    if (memory.streams == 0 || placement::fits(planned.plan, budget) || (!cpu && need.device > budget.device))
        return planned;
    const int64_t left = memory.streams + (cpu ? budget.device - need.device : budget.host - (need.host - need.there));
    const int64_t tokens = left / memory.of_token - rows.most_tokens();
    if (tokens < 2) return planned;  // the model alone is too large
    throw Error(
        "memory.host-plan-too-large",
        cat("not enough host memory: the residual streams of ", rows.rows().stats().tokens, " calibration tokens take ",
            human_bytes(memory.streams), " next to the model, and ", human_bytes(left), " may be taken"),
        cat("Give rows of at most ", tokens, " tokens together in --calibration."));
}

int64_t planned_bytes(const session::PassesPlan& planned, const MeasuringMemory& memory) {
    return planned.plan.total_bytes() + memory.sums + (on_cpu(planned) ? memory.streams : 0);
}

void tell_plan(const session::PassesPlan& planned, const MeasuringMemory& memory, const CalibrationRows& rows) {
    const model::LoadRequest& request = planned.plan.request();
    const spec::MemoryNeed need = planned.plan.need();
    std::string text = cat("memory     planned ", human_bytes(planned_bytes(planned, memory)), " on ",
                           request.device.str(), " for passes of up to ", request.sizes.tokens, " tokens");
    if (request.run.tile_of(request.sizes.tokens) < request.sizes.tokens)
        text += cat(", ", request.run.row_tile, " at a time through an MLP");
    const int64_t host = need.host + memory.streams;
    if (!on_cpu(planned) && host > 0) text += cat("; ", human_bytes(host), " of host memory");
    if (memory.streams > 0)
        text += cat("; the residual streams of ", rows.rows().stats().tokens, " calibration tokens take ",
                    human_bytes(memory.streams), " of host memory");
    log::info(text);
    if (const std::string places = placement::describe_places(planned.plan); !places.empty())
        log::info("memory     ", places);
}

int64_t tell_use(const session::PassesPlan& planned, const MeasuringMemory& memory) {
    const int64_t bytes = planned_bytes(planned, memory);
    if (on_cpu(planned)) {
        const auto taken = static_cast<int64_t>(process_memory().peak);
        log::info("memory     the process took ", human_bytes(taken), " at most, ", human_bytes(bytes),
                  " of it planned");
        return taken;
    }
    const memory::AllocatorUse use = memory::allocator_use(planned.plan.request().device);
    char share[64];
    std::snprintf(share, sizeof share, "%.1f %% of the plan's",
                  100.0 * static_cast<double>(use.peak_allocated) / static_cast<double>(bytes));
    log::info("memory     allocated ", human_bytes(use.peak_allocated), ", planned ", human_bytes(bytes), ": ", share);
    return use.peak_allocated;
}

}  // namespace unsloth::commands
