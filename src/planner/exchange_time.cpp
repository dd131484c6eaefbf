#include "unsloth/planner/exchange_time.h"

namespace unsloth::planner {
namespace {

constexpr double element = 2, full_element = 4;  // bytes of a 16-bit value, and of a gradient
constexpr double seen_keys = 1.25;               // of a row's keys: what a rank's two chunks attend over, about

double as_double(int64_t value) {
    return static_cast<double>(value);
}

/// Of so many bytes in one piece.
double copy_ms(const Card& card, double bytes) {
    return card.peer_us / 1e3 + bytes / (card.peer * 1e9) * 1e3;
}

/// An all-gather or a reduce-scatter of so many bytes over all ranks, in `calls` pieces.
double gather_ms(const Card& card, int64_t ranks, double bytes, double calls = 1) {
    if (ranks == 1) return 0;
    return (calls - 1) * card.peer_us / 1e3 + copy_ms(card, bytes * as_double(ranks - 1) / as_double(ranks));
}

}  // namespace

LayerExchange layer_exchange(const Card& card, const StepWork& work, const spec::LayerPlan& plan, int64_t in_flight) {
    const Sharing& s = work.sharing;
    const spec::LayerSteps again = spec::recompute_of(plan.keep);
    const double tokens = as_double(work.tokens);
    LayerExchange time;
    // Tensor parallel: all ranks' rows before q, k, v and before gate and up, sums behind o and behind down, and back.
    const double stream = gather_ms(card, s.tp, tokens * as_double(work.model.hidden_size) * element, tiles(work));
    time.forward += 4 * stream;
    time.backward += (4 + again.qkv + again.mid + again.gate_up + (work.adapters ? 0 : 2)) * stream;
    // Context parallel: keys and values of all ranks, which are then arranged by segments, and sums of their gradients.
    if (s.cp > 1) {
        const double keys = tokens * as_double(s.cp) * 2 * as_double(work.model.kv_size()) * element,
                     once = gather_ms(card, s.cp, keys) + 2 * seen_keys * keys / (card.copy * 1e9) * 1e3;
        time.forward += once;
        time.backward += 2 * once;
    }
    // What ranks hold shares of. NCCL's kernels beside products take as long from these (docs/log.md).
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

double border_ms(const Card& card, const StepWork& work) {
    return copy_ms(card,
                   as_double(work.tokens) / as_double(work.sharing.tp) * as_double(work.model.hidden_size) * element);
}

}  // namespace unsloth::planner
