// The scratch buffers of layers with experts.
#include <algorithm>

#include "model/activation_list.h"

namespace unsloth::model {

void ActivationList::experts_scratch(const spec::ExpertsSpec& experts, Scratch& s) {
    const int64_t t = sizes_.tokens, k = experts.top_k, d = spec_.hidden_size;
    const uint8_t layers = memory::forward | memory::backward;
    const auto buffer = [&](const char* name, int64_t columns, at::ScalarType dtype, uint8_t phases) {
        return Buffer{"scratch", name, {t, columns}, dtype, phases, Rows::tokens};
    };
    const int64_t r = layout_.rank_of(Group::experts_gate_up);
    add(buffer("experts' rows", k * expert_stride(d, r), dtype_, layers), s.rows_T);
    add(buffer("experts' outputs", k * std::max(d, experts.intermediate_size), dtype_, layers), s.out_T);
    if (sizes_.balances_experts) {
        own({"tokens", "experts' loads", {2, experts.count}, at::kDouble}, s.balance.sums_2E);
        own({"tokens", "their loss", {1}, at::kFloat}, s.balance.loss);
        own({"tokens", "its gradients", {experts.count}, at::kFloat}, s.balance.slopes_E);
    }
    if (!sizes_.training) return;
    add(buffer("gradients of experts' u", k * std::max(r, layout_.rank_of(Group::experts_down)), dtype_,
               memory::backward),
        s.v_T);
    add(buffer("gradients of experts' weights", k, at::kFloat, memory::backward), s.dweights_Tk);
    if (spec_.mlp_bias)
        add(buffer("gradients by experts' biases", experts.count, at::kFloat, memory::backward), s.dweights_TE);
    add(buffer("gradients of routers", experts.count, dtype_, memory::backward), s.drouter_TE);
}

}  // namespace unsloth::model
