// The best of a few candidates of which each takes long to try, but a bound of its cost does not.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

namespace unsloth::planner {

struct Tried {
    std::size_t candidate = 0;
    double cost = 0;
};

/// The `count` candidates of least cost, that first; fewer where fewer will do. `least`: of each a bound, no more than
/// its cost. `cost_of` (nullopt: it will not do) is asked for no more of them than may be among these. A candidate
/// comes before those named after it that are better by less than a share of `indifferent`.
std::vector<Tried> search_best(const std::vector<double>& least, std::size_t count,
                               const std::function<std::optional<double>(std::size_t)>& cost_of,
                               double indifferent = 0);

}  // namespace unsloth::planner
