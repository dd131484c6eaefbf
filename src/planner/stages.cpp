#include "unsloth/planner/stages.h"

#include <algorithm>
#include <limits>

namespace unsloth::planner {
namespace {

constexpr double none = std::numeric_limits<double>::infinity();

/// Ranges from the first layer on, by how many there are and where the last one ends.
struct Cut {
    double cost = none;
    int begin = 0;  ///< of the last range
};

}  // namespace

std::vector<spec::LayerRange> cut_layers(const PartTimes& times, int ranges,
                                         const std::function<bool(int, const spec::LayerRange&)>& fits) {
    const int layers = static_cast<int>(times.layers.size());
    std::vector<double> before(1, 0.0);  // of the layers below
    for (const double time : times.layers) before.push_back(before.back() + time);
    const auto time_of = [&](int number, const spec::LayerRange& range) {
        return before[static_cast<std::size_t>(range.end)] - before[static_cast<std::size_t>(range.begin)] +
               (number == 0 ? times.embedding : 0) + (number == ranges - 1 ? times.head : 0);
    };
    std::vector<std::vector<Cut>> best;
    // join(cost so far, time of one more range), the least of which is looked for.
    const auto solve = [&](double longest, const auto& join) {
        best.assign(static_cast<std::size_t>(ranges) + 1, std::vector<Cut>(static_cast<std::size_t>(layers) + 1));
        best[0][0].cost = 0;
        for (int number = 0; number < ranges; ++number)
            for (int begin = 0; begin < layers; ++begin) {
                const double so_far = best[static_cast<std::size_t>(number)][static_cast<std::size_t>(begin)].cost;
                if (so_far == none) continue;
                for (int end = begin + 1; end <= layers; ++end) {
                    const spec::LayerRange range{begin, end};
                    const double time = time_of(number, range);
                    Cut& cut = best[static_cast<std::size_t>(number) + 1][static_cast<std::size_t>(end)];
                    const double cost = join(so_far, time);
                    if (time > longest || cost >= cut.cost || (fits && !fits(number, range))) continue;
                    cut = {cost, begin};
                }
            }
        return best.back().back().cost;
    };
    const double longest = solve(none, [](double a, double b) { return std::max(a, b); });
    if (longest == none) return {};
    solve(longest * (1 + 1e-9), [](double a, double b) { return a + b * b; });
    std::vector<spec::LayerRange> cut(static_cast<std::size_t>(ranges));
    for (int number = ranges, end = layers; number > 0; --number) {
        const int begin = best[static_cast<std::size_t>(number)][static_cast<std::size_t>(end)].begin;
        cut[static_cast<std::size_t>(number) - 1] = {begin, end};
        end = begin;
    }
    return cut;
}

}  // namespace unsloth::planner
