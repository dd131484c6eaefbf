#include "unsloth/objective/references.h"

#include "unsloth/core/error.h"

namespace unsloth::objective {

std::vector<double> sequence_log_probs(const data::Batch& batch, const at::Tensor& losses) {
    std::vector<double> sums;
    const float* values = losses.const_data_ptr<float>();
    for (std::size_t s = 1; s < batch.target_starts.size(); ++s) {
        double sum = 0;
        for (int32_t i = batch.target_starts[s - 1]; i < batch.target_starts[s]; ++i) sum -= values[i];
        sums.push_back(sum);
    }
    return sums;
}

References::References(int64_t rows) : values_(at::zeros({rows, 2}, at::kFloat)) {}

void References::set(const data::Batch& batch, const at::Tensor& losses) {
    const std::vector<double> sums = sequence_log_probs(batch, losses);
    UNSLOTH_CHECK(sums.size() == 2 * batch.rows.size(), sums.size(), " sequences of ", batch.rows.size(), " rows");
    auto values = values_.accessor<float, 2>();
    for (std::size_t s = 0; s < sums.size(); ++s)
        values[batch.rows[s / 2]][static_cast<int64_t>(s % 2)] = static_cast<float>(sums[s]);
}

std::vector<float> References::of(const data::Batch& batch) const {
    std::vector<float> result(2 * batch.rows.size());
    if (empty()) return result;
    const auto values = values_.accessor<float, 2>();
    for (std::size_t s = 0; s < result.size(); ++s) result[s] = values[batch.rows[s / 2]][static_cast<int64_t>(s % 2)];
    return result;
}

}  // namespace unsloth::objective
