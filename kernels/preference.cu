// Preference losses of a micro-batch: sums over each sequence's targets (a block a sequence), the rows' losses (one
// block: they are few), and the targets' weights (a block a sequence). Sums are in fp64 in a fixed order. Their time is
// the launches'.
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/preference.h"
#include "kernels/preference_row.h"

namespace unsloth::kernels {
namespace {

constexpr int threads = 256;

__global__ void __launch_bounds__(threads) sequence_log_probs_kernel(const SequenceLogProbs p) {
    double sum = 0;
    for (int i = p.begins[blockIdx.x] + threadIdx.x; i < p.ends[blockIdx.x]; i += threads) sum += p.losses[i];
    const double total = block_sum_f64<threads>(sum);
    if (threadIdx.x == 0) p.logp[blockIdx.x] = -total;
}

__global__ void __launch_bounds__(threads) foreign_divergence_kernel(const ForeignDivergence p) {
    double sum = 0;
    for (int64_t row = threadIdx.x; row < p.rows; row += threads)
        sum += p.logp[2 * row + 1] - static_cast<double>(p.reference[2 * row + 1]);
    const double total = block_sum_f64<threads>(sum);
    if (threadIdx.x != 0) return;
    p.sums[0] = static_cast<float>(total);
    p.sums[1] = static_cast<float>(p.rows);
}

__global__ void __launch_bounds__(threads) preference_rows_kernel(const PreferenceLoss p) {
    double mean_divergence = 0;
    if (p.divergence != nullptr) mean_divergence = fmax(0.0, double{p.divergence[0]} / double{p.divergence[1]});
    double loss = 0, measures[row_measures] = {};
    for (int64_t row = threadIdx.x; row < p.rows; row += threads) {
        spec::AnswerLogProb answer[2];
        for (int64_t a = 0; a < 2; ++a) {
            const int64_t s = 2 * row + a;
            answer[a] = {p.logp[s], static_cast<double>(p.reference[s]),
                         static_cast<double>(p.starts[s + 1] - p.answers[s])};
        }
        const bool desirable = p.desirable != nullptr && p.desirable[row] != 0;
        spec::AnswerLogProb prompt;
        prompt.tokens = p.answers[2 * row] - p.starts[2 * row];
        if (p.prompt_logp != nullptr) prompt.policy = p.prompt_logp[2 * row];
        const PreferenceRow result =
            preference_row(p.rule, answer, prompt, desirable, mean_divergence, p.chosen_loss_weight);
        p.slope[2 * row] = result.slope[0];
        p.slope[2 * row + 1] = result.slope[1];
        loss += result.loss;
        for (int m = 0; m < row_measures; ++m) measures[m] += result.measures[m];
    }
    const double total = block_sum_f64<threads>(loss);
    if (threadIdx.x == 0) {
        p.outcome->loss = static_cast<float>(p.outcome->loss + total * p.scalars->inv_loss_divisor);
        if (p.site != spec::all_finite && !isfinite(total)) atomicMin(&p.outcome->first_bad_site, p.site);
    }
    for (int m = 0; m < row_measures; ++m) {
        __syncthreads();  // the sums before are read
        const double sum = block_sum_f64<threads>(measures[m]);
        if (threadIdx.x == 0) p.measures[m] += static_cast<float>(sum);
    }
}

__global__ void __launch_bounds__(threads) preference_weights_kernel(const PreferenceLoss p) {
    const auto of_answer = static_cast<float>(-p.slope[blockIdx.x]), before = static_cast<float>(p.chosen_loss_weight);
    const int answer = p.answers[blockIdx.x];
    for (int i = p.starts[blockIdx.x] + threadIdx.x; i < p.starts[blockIdx.x + 1]; i += threads)
        p.weight[i] = i < answer ? before : of_answer;
}

}  // namespace

void sequence_log_probs(const SequenceLogProbs& p, cudaStream_t stream) {
    if (p.sequences == 0) return;
    UNSLOTH_LAUNCH(sequence_log_probs_kernel, static_cast<unsigned>(p.sequences), threads, 0, stream, p);
}

void foreign_divergence(const ForeignDivergence& p, cudaStream_t stream) {
    UNSLOTH_LAUNCH(foreign_divergence_kernel, 1, threads, 0, stream, p);
}

void preference_loss(const PreferenceLoss& p, cudaStream_t stream) {
    if (p.rows == 0) return;
    UNSLOTH_LAUNCH(preference_rows_kernel, 1, threads, 0, stream, p);
    UNSLOTH_LAUNCH(preference_weights_kernel, static_cast<unsigned>(2 * p.rows), threads, 0, stream, p);
}

}  // namespace unsloth::kernels
