#include "unsloth/planner/search_best.h"

#include <algorithm>
#include <numeric>

namespace unsloth::planner {

std::vector<Tried> search_best(const std::vector<double>& least, std::size_t count,
                               const std::function<std::optional<double>(std::size_t)>& cost_of, double indifferent) {
    std::vector<std::size_t> order(least.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return least[a] < least[b]; });
    std::vector<Tried> best;
    for (const std::size_t candidate : order) {
        if (best.size() >= count) {
            // To come first it must be better by that share, or be named before and no worse by it.
            const bool before = candidate < best.front().candidate;
            const double bound = least[candidate] * (before ? 1 - indifferent : 1),
                         most = best.front().cost * (before ? 1 : 1 - indifferent);
            if (bound >= most && (count == 1 || least[candidate] >= best[count - 1].cost)) continue;
        }
        const std::optional<double> cost = cost_of(candidate);
        if (!cost) continue;
        best.push_back({candidate, *cost});
        std::sort(best.begin(), best.end(), [](const Tried& a, const Tried& b) {
            return a.cost != b.cost ? a.cost < b.cost : a.candidate < b.candidate;
        });
    }
    // The first place is for the candidate named first of those that are as good as the fastest.
    auto alike = best.begin();
    while (alike != best.end() && alike->cost * (1 - indifferent) <= best.front().cost) ++alike;
    const auto first =
        std::min_element(best.begin(), alike, [](const Tried& a, const Tried& b) { return a.candidate < b.candidate; });
    if (first != alike) std::rotate(best.begin(), first, first + 1);
    best.resize(std::min(best.size(), count));
    return best;
}

}  // namespace unsloth::planner
