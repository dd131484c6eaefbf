#include "unsloth/train/router_loads.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "train/router_meter.h"
#include "unsloth/core/text.h"

namespace unsloth::train {

RouterLoad router_load_of(const std::vector<double>& tokens_E, int64_t choices) {
    const auto experts = static_cast<double>(tokens_E.size());
    RouterLoad load{.mean = std::accumulate(tokens_E.begin(), tokens_E.end(), 0.0) / experts};
    if (load.mean <= 0) return load;  // the step has no tokens
    load.most = *std::ranges::max_element(tokens_E) / load.mean;
    load.dead = std::ranges::count(tokens_E, 0.0);
    load.crowded = load.most > (1 + experts / static_cast<double>(choices)) / 2;
    return load;
}

double greatest_load(const RouterLoads& loads) {
    double greatest = 0;
    for (const auto& load : loads)
        if (load) greatest = std::max(greatest, load->most);
    return greatest;
}

int64_t dead_experts(const RouterLoads& loads) {
    int64_t dead = 0;
    for (const auto& load : loads)
        if (load) dead += load->dead;
    return dead;
}

std::string bad_loads_text(const RouterLoads& loads) {
    constexpr double enough = 100;  // tokens an expert: below, one that is chosen rarely may have none
    std::string text;
    const auto most =
        std::ranges::max_element(loads, {}, [](const auto& load) { return load && load->crowded ? load->most : 0; });
    if (most != loads.end() && *most && (*most)->crowded) {
        char part[96];
        std::snprintf(part, sizeof part, "  layer %lld's fullest expert %.1f x the mean",
                      static_cast<long long>(most - loads.begin()), (*most)->most);
        text += part;
    }
    int64_t dead = 0;
    for (const auto& load : loads)
        if (load && load->mean >= enough) dead += load->dead;
    if (dead > 0) text += cat("  experts without tokens ", dead);
    return text;
}

RouterMeter::RouterMeter(ops::Context& ctx, const model::Model& model) : ctx_(ctx), model_(model) {
    const at::Tensor& ends = model.router_ends();
    if (!ends.defined()) return;
    counts_LE_ = at::zeros({ends.size(0), ends.size(1) - 1}, ends.options());
    sums_LE_ = at::zeros(counts_LE_.sizes(), ends.options().dtype(at::kFloat));
}

at::Tensor RouterMeter::make_host() const {
    if (!sums_LE_.defined()) return {};
    return at::zeros(sums_LE_.sizes(), at::TensorOptions(at::kFloat).pinned_memory(ctx_.is_cuda()));
}

void RouterMeter::begin() {
    if (model_.router_ends().defined()) model_.router_ends().zero_();
}

void RouterMeter::issue(const at::Tensor& host, comm::Group* group, int64_t step) {
    if (!sums_LE_.defined()) return;
    const at::Tensor& ends = model_.router_ends();
    const int64_t experts = counts_LE_.size(1);
    at::sub_out(counts_LE_, ends.narrow(1, 1, experts), ends.narrow(1, 0, experts));
    sums_LE_.copy_(counts_LE_);
    if (group != nullptr) group->all_reduce(sums_LE_, cat("the experts' loads of step ", step));
    at::Tensor(host).copy_(sums_LE_, /*non_blocking=*/true);
}

RouterLoads RouterMeter::read(const at::Tensor& host) const {
    if (!host.defined()) return {};
    RouterLoads loads;
    for (int64_t layer = 0; layer < host.size(0); ++layer) {
        loads.emplace_back();
        if (!model_.spec().has_experts(layer)) continue;
        const float* const first = host.const_data_ptr<float>() + layer * host.size(1);
        loads.back() = router_load_of({first, first + host.size(1)}, model_.spec().experts->top_k);
    }
    return loads;
}

}  // namespace unsloth::train
