#include "unsloth/objective/references.h"

#include "unsloth/core/error.h"
#include "unsloth/ops/preference.h"

namespace unsloth::objective {

References::References(int64_t rows) : values_(at::zeros({rows, 2}, at::kFloat)) {}

void References::set(const data::Batch& batch, const at::Tensor& losses) {
    const std::size_t sequences = batch.target_starts.size() - 1;
    UNSLOTH_CHECK(sequences == 2 * batch.rows.size(), sequences, " sequences of ", batch.rows.size(), " rows");
    ops::Context cpu(at::kCPU);
    const at::Tensor logp = at::empty({static_cast<int64_t>(sequences)}, at::kDouble);
    const at::Tensor starts = at::tensor(batch.target_starts, at::kInt),
                     answers = at::tensor(batch.answer_starts, at::kInt);
    ops::sequence_log_probs(cpu, losses, answers, starts.narrow(0, 1, logp.numel()), logp);
    auto values = values_.accessor<float, 2>();
    for (std::size_t s = 0; s < sequences; ++s)
        values[batch.rows[s / 2]][static_cast<int64_t>(s % 2)] = static_cast<float>(logp.const_data_ptr<double>()[s]);
}

std::vector<float> References::of(const data::Batch& batch) const {
    std::vector<float> result(2 * batch.rows.size());
    if (empty()) return result;
    const auto values = values_.accessor<float, 2>();
    for (std::size_t s = 0; s < result.size(); ++s) result[s] = values[batch.rows[s / 2]][static_cast<int64_t>(s % 2)];
    return result;
}

}  // namespace unsloth::objective
