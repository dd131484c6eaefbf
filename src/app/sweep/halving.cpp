#include "app/sweep/halving.h"

#include <algorithm>
#include <cmath>

namespace unsloth::app {

std::vector<double> halving_shares(std::size_t trials) {
    std::vector<double> shares = {1};
    for (std::size_t left = trials; left > 1; left = halved(left)) shares.insert(shares.begin(), shares.front() / 2);
    return shares;
}

std::vector<std::size_t> kept_places(const std::vector<double>& values, bool more_is_better) {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < values.size(); ++i)
        if (std::isfinite(values[i])) places.push_back(i);
    std::stable_sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) {
        return more_is_better ? values[a] > values[b] : values[a] < values[b];
    });
    places.resize(std::min(places.size(), halved(values.size())));
    std::sort(places.begin(), places.end());
    return places;
}

}  // namespace unsloth::app
