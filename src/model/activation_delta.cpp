// The buffers of gated delta nets.
#include <algorithm>

#include "model/activation_list.h"
#include "unsloth/ops/gated_delta.h"

namespace unsloth::model {

int64_t ActivationList::most_columns(bool adapters) const {
    int64_t most = 0;
    for (const Group g : {Group::qkv, Group::delta_in})
        if (layout_.has(g)) most = std::max(most, layout_[g].n + (adapters ? layout_[g].r : 0));
    return most;
}

void ActivationList::delta_scratch(const spec::DeltaSpec& delta, Scratch& s) {
    const int64_t t = sizes_.tokens;
    const uint8_t layers = memory::forward | memory::backward;
    if (sizes_.sequences > 0) passed_states(delta, s.passed);
    add({"scratch", "convolved", {t, delta.channels()}, dtype_, layers, Rows::tokens}, s.convolved_TC);
    if (!sizes_.training) return;
    add({"scratch", "gradient of the convolved", {t, delta.channels()}, dtype_, memory::backward, Rows::tokens},
        s.dconvolved_TC);
    const ops::DeltaShape shape{delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim};
    add({"scratch",
         "states",
         {ops::delta_state_elements(shape, t, sizes_.delta_segments())},
         at::kFloat,
         memory::backward},
        s.states);
}

/// What ranks that share sequences pass to each other, in both directions.
void ActivationList::passed_states(const spec::DeltaSpec& delta, DeltaPassed& p) {
    const uint8_t passes = memory::forward | memory::backward;
    const int64_t rows = sizes_.chunks() * (delta.taps - 1) + 1;
    const auto buffer = [&](const char* name, int64_t count, uint8_t phases, at::Tensor& tensor) {
        add({"states of all ranks", name, {count, delta.channels()}, dtype_, phases}, tensor);
    };
    add({"states of all ranks",
         "passed states",
         {sizes_.sequences + 1, delta.value_heads, delta.key_dim, delta.value_dim},
         at::kFloat,
         passes},
        p.states_NHkv);
    buffer("rows next to chunks", rows, passes, p.own_GC);
    buffer("those of all ranks", sizes_.context_ranks * rows, passes, p.all_rows_GC);
    if (!sizes_.training) return;
    buffer("gradients of rows before chunks", rows, memory::backward, p.drows_GC);
    buffer("gradients of rows next to chunks", rows, memory::backward, p.sums_GC);
}

/// One place more than there are rows, for passes that are issued in vain (Decoder::record_passes).
void ActivationList::states(int64_t layer, DeltaKept& kept) {
    const spec::DeltaSpec& delta = spec_.delta.value();
    const int64_t places = sizes_.state_places() + 1;
    add({"kv cache",
         {"inputs before the convolution", Name::Of::layer, layer},
         {places, delta.taps - 1, delta.channels()},
         dtype_,
         memory::always},
        kept.inputs_NwC);
    add({"kv cache",
         {"states", Name::Of::layer, layer},
         {places, delta.value_heads, delta.key_dim, delta.value_dim},
         at::kFloat,
         memory::always},
        kept.states_NHkv);
}

int64_t state_bytes(const spec::ModelSpec& spec, at::ScalarType dtype) {
    if (!spec.delta) return 0;
    const spec::DeltaSpec& delta = *spec.delta;
    const int64_t inputs = (delta.taps - 1) * delta.channels() * static_cast<int64_t>(c10::elementSize(dtype)),
                  state = delta.values() * delta.key_dim * static_cast<int64_t>(sizeof(float));
    return std::ranges::count_if(spec.layers, &spec::LayerSpec::delta) * (inputs + state);
}

}  // namespace unsloth::model
