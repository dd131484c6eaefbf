#include "unsloth/planner/exchange_time.h"

#include <algorithm>
#include <cmath>

namespace unsloth::planner {
namespace {

constexpr double element = 2, full_element = 4;  // bytes of a 16-bit value, and of a gradient
constexpr double seen_keys = 1.25;               // of a row's keys: what a rank's two chunks attend over, about

double as_double(int64_t value) {
    return static_cast<double>(value);
}

/// Time to copy `bytes` bytes in one piece.
double copy_ms(const Card& card, double bytes) {
    return card.peer_us / 1e3 + bytes / (card.peer * 1e9) * 1e3;
}

/// Time of an all-gather or a reduce-scatter of `bytes` bytes over all ranks, in `calls` pieces.
double gather_ms(const Card& card, int64_t ranks, double bytes, double calls = 1) {
    if (ranks == 1) return 0;
    return (calls - 1) * card.peer_us / 1e3 + copy_ms(card, bytes * as_double(ranks - 1) / as_double(ranks));
}

/// The share of layers that have gated delta nets.
double share_of_nets(const spec::ModelSpec& model) {
    const auto nets = std::ranges::count_if(model.layers, [](const spec::LayerSpec& layer) { return layer.delta; });
    return as_double(nets) / as_double(model.num_layers);
}

/// Context parallel: time for the states of all sequences to pass from chunk to chunk.
double states_ms(const Card& card, const StepWork& work) {
    if (!work.model.delta) return 0;
    const spec::DeltaSpec& delta = *work.model.delta;
    const double ranks = as_double(work.sharing.cp),
                 sequences = std::ceil(as_double(work.tokens) * ranks / as_double(work.longest)),
                 bytes = full_element * as_double(delta.value_heads * delta.key_dim * delta.value_dim);
    return (2 * ranks - 2) * copy_ms(card, sequences * bytes);
}

}  // namespace

LayerExchange layer_exchange(const Card& card, const StepWork& work, const spec::LayerPlan& plan, int64_t in_flight) {
    const Sharing& s = work.sharing;
    const spec::LayerSteps again = spec::recompute_of(plan.keep);
    const double tokens = as_double(work.tokens);
    LayerExchange time;
    // Tensor parallel: gathers all ranks' rows before q, k, v and before gate and up; sums after o and down; and back.
    const double stream = gather_ms(card, s.tp, tokens * as_double(work.model.hidden_size) * element, tiles(work));
    time.forward += 4 * stream;
    time.backward += (4 + again.qkv + again.mid + again.gate_up + (work.adapters ? 0 : 2)) * stream;
    // Context parallel: keys and values of all ranks, which are then arranged by segments, and sums of their gradients.
    if (s.cp > 1) {
        const double keys = tokens * as_double(s.cp) * 2 * as_double(work.model.kv_size()) * element,
                     once = gather_ms(card, s.cp, keys) + 2 * seen_keys * keys / (card.copy * 1e9) * 1e3;
        const double nets = share_of_nets(work.model), states = nets * states_ms(card, work);
        time.forward += (1 - nets) * once + states;
        time.backward += (1 - nets) * 2 * once + states;
    }
    // Tensors that ranks hold shards of. NCCL kernels that overlap GEMMs delay these by as much time (docs/log.md).
    const double trained = trained_of_layer(work), passes = as_double(in_flight);
    if (s.values_by_layer) {
        time.forward += copy_ms(card, element * trained) / passes;
        time.backward += copy_ms(card, element * trained) / passes;
    }
    if (s.gradients_by_layer) time.backward += copy_ms(card, full_element * trained) / passes;
    if (s.peers > 1 && (plan.weights_at == spec::Place::device || plan.weights_at == spec::Place::peer))
        time.copied = copy_ms(card, image_bytes(work) * as_double(s.peers - 1) / as_double(s.peers)) / passes;
    return time;
}

double head_exchange_ms(const Card& card, const StepWork& work) {
    const Sharing& s = work.sharing;
    if (!work.has_head) return 0;
    const double hidden = as_double(work.model.hidden_size);
    double ms = gather_ms(card, s.tp, as_double(work.tokens) * hidden * element, tiles(work)) +
                2 * gather_ms(card, s.tp, as_double(work.head_rows) * hidden * element);
    const double rest = as_double(work.summed_parameters) - trained_of_layer(work) * as_double(work.model.num_layers);
    if (rest <= 0) return ms;
    if (s.values_by_layer) ms += copy_ms(card, 2 * element * rest);
    if (s.gradients_by_layer) ms += copy_ms(card, full_element * rest);
    return ms;
}

double step_exchange_ms(const Card& card, const StepWork& work) {
    const Sharing& s = work.sharing;
    if (s.summed == 1) return 0;
    const double trained = as_double(work.summed_parameters);
    if (s.values_by_layer) return 0;
    if (s.gradients_by_layer) return copy_ms(card, element * trained);
    return 2 * gather_ms(card, s.summed, full_element * trained);
}

int64_t communicator_bytes(const Card& card, const std::vector<int>& ranks) {
    // By NCCL 2.28's source (src/init.cc, src/transport/p2p.cc, nvls.cc). A connection has for each channel 4 MiB of
    // protocol Simple, 4.7 of LL128 and 0.5 of LL, in pieces of 2 MiB, and such a piece at its other end; rings and
    // trees connect a rank with two others. NVLS, of more than two ranks, has 2 x 1 MiB a channel and rank. Channels
    // are 32 at most (24 on eight H100), where GPUs do not meet over NVLink a few. Measured elsewhere (issue 964 of
    // github.com/NVIDIA/nccl): 544 MiB for two A100, 688 for more.
    constexpr int64_t mib = 1 << 20, connection = 12 * mib, multicast = 2 * mib;
    const bool nvlink = card.peer_over == "NVLink";
    const int64_t channels = nvlink ? 32 : 4;
    int64_t bytes = 0;
    for (const int size : ranks) {
        const bool multicasts = nvlink && card.compute_capability >= 9 && size > 2;
        bytes += channels * (2 * connection + (multicasts ? size * multicast : 0));
    }
    return bytes;
}

double border_ms(const Card& card, const StepWork& work) {
    return copy_ms(card,
                   as_double(work.tokens) / as_double(work.sharing.tp) * as_double(work.model.hidden_size) * element);
}

}  // namespace unsloth::planner
