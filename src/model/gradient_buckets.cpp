#include "unsloth/model/gradient_buckets.h"

#include <algorithm>

namespace unsloth::model {
namespace {

int64_t bytes(const GradientStretch& s) {
    return (s.end - s.begin) * static_cast<int64_t>(sizeof(float));
}

}  // namespace

std::vector<GradientStretch> cut_gradients(const weights::ParameterTable& table, int64_t most_bytes) {
    const std::vector<weights::Parameter>& parameters = table.parameters();
    std::vector<GradientStretch> stretches;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const int64_t begin = parameters[i].offset,
                      end = i + 1 < parameters.size() ? parameters[i + 1].offset : table.flat_elements();
        const int unit = table.unit_of(parameters[i]);
        if (!stretches.empty() && stretches.back().unit == unit) {
            stretches.back().end = end;
        } else {
            stretches.push_back({begin, end, unit});
        }
    }
    std::stable_sort(stretches.begin(), stretches.end(), [](const auto& a, const auto& b) { return a.unit > b.unit; });
    std::vector<GradientStretch> joined;
    const auto of_layer = [&](const GradientStretch& s) {
        return s.unit != weights::embedding_unit && s.unit != table.head();
    };
    for (const GradientStretch& next : stretches) {
        if (!joined.empty()) {
            GradientStretch& last = joined.back();
            const bool fits = of_layer(last) && of_layer(next) && bytes(last) + bytes(next) <= most_bytes;
            if (fits && next.end == last.begin) {
                last = {next.begin, last.end, next.unit};
                continue;
            }
        }
        joined.push_back(next);
    }
    return joined;
}

}  // namespace unsloth::model
