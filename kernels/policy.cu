// Policy gradients: a block a row of logits, and a block a completion.
//
// Rows: one pass for maximum, sum and the sum of logits weighted by their exponentials, one for the gradient, as
// cross-entropy does. Ceiling: the bandwidth of memory, 4 bytes a bf16 logit with its gradient. Completions: two passes
// over their tokens; their time is the launch's.
#include "kernels/common/launch.h"
#include "kernels/common/online_softmax.cuh"
#include "kernels/policy.h"
#include "kernels/policy_token.h"

namespace unsloth::kernels {
namespace {

constexpr int row_threads = 1024;
constexpr int loss_threads = 256;

/// Online softmax with the sum of exp(x - maximum) * (x - maximum), from which the entropy follows.
struct OnlineEntropy {
    float maximum = -FLT_MAX, sum = 0.f, weighted = 0.f;

    __device__ __forceinline__ void add(float value) {
        if (value > maximum) rescale(value);
        const float distance = value - maximum, e = __expf(distance);
        sum += e;
        weighted += e > 0.f ? e * distance : 0.f;  // 0 of a logit of -inf, whose product would be NaN
    }
    __device__ __forceinline__ void rescale(float highest) { merge_into(highest, __expf(maximum - highest)); }
    __device__ __forceinline__ void merge(const OnlineEntropy& other) {
        const float highest = fmaxf(maximum, other.maximum);
        OnlineEntropy right = other;
        rescale(highest);
        right.rescale(highest);
        sum = __fadd_rn(sum, right.sum);
        weighted = __fadd_rn(weighted, right.weighted);
    }

  private:
    __device__ __forceinline__ void merge_into(float highest, float factor) {
        // factor 0: the maximum was the lowest float, or is that far below
        weighted = factor > 0.f ? __fmul_rn(factor, __fadd_rn(weighted, __fmul_rn(sum, maximum - highest))) : 0.f;
        sum = __fmul_rn(sum, factor);
        maximum = highest;
    }
};

__device__ __forceinline__ OnlineEntropy shuffled(const OnlineEntropy& state, int offset) {
    OnlineEntropy other;
    other.maximum = __shfl_xor_sync(all_lanes, state.maximum, offset);
    other.sum = __shfl_xor_sync(all_lanes, state.sum, offset);
    other.weighted = __shfl_xor_sync(all_lanes, state.weighted, offset);
    return other;
}

__device__ __forceinline__ void merge_warp(OnlineEntropy& state) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) state.merge(shuffled(state, offset));
}

__device__ OnlineEntropy merge_block(OnlineEntropy state) {
    __shared__ OnlineEntropy of_warps[row_threads / 32];
    merge_warp(state);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = state;
    __syncthreads();
    state = of_warps[threadIdx.x % 32];
    merge_warp(state);
    return state;
}

/// row[column] = value(column, row[column]), or each(column, row[column]) where nothing is written.
template <class T, int N, bool Writes, class Each>
__device__ __forceinline__ void each_column(T* row, int columns, Each each) {
    const int packs = columns / N;
    for (int pack = threadIdx.x; pack < packs; pack += row_threads) {
        Pack<T, N> loaded = load_pack<N>(row + pack * N);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const float value = each(pack * N + k, to_float(loaded.v[k]));
            if (Writes) loaded.v[k] = from_float<T>(value);
        }
        if (Writes) store_pack(row + pack * N, loaded);
    }
    for (int c = packs * N + threadIdx.x; c < columns; c += row_threads) {
        const float value = each(c, to_float(row[c]));
        if (Writes) row[c] = from_float<T>(value);
    }
}

template <class T, int N>
__global__ void __launch_bounds__(row_threads, 1) token_policy_kernel(const TokenPolicy p) {
    T* const row = static_cast<T*>(p.logits.data) + blockIdx.x * p.logits.stride;
    const int columns = static_cast<int>(p.columns), target = p.targets[blockIdx.x];
    const float inverse = p.inverse_temperature;
    const float target_logit = threadIdx.x == 0 ? to_float(row[target]) : 0.f;  // read before the gradient replaces it
    OnlineEntropy state;
    each_column<T, N, false>(row, columns, [&](int, float logit) {
        state.add(logit * inverse);
        return 0.f;
    });
    const OnlineEntropy total = merge_block(state);
    const float log_sum = logf(total.sum), entropy = log_sum - total.weighted / total.sum;
    if (threadIdx.x == 0) {
        p.losses[blockIdx.x] = log_sum + (total.maximum - target_logit * inverse);
        p.entropies[blockIdx.x] = entropy;
    }
    if (!p.gradient) return;
    const float scale = p.scalars->inv_loss_divisor * p.scalars->loss_scale * inverse;
    const float of_loss = scale * (p.weights != nullptr ? p.weights[blockIdx.x] : 1.f);
    const float of_entropy = p.entropy_weights != nullptr ? scale * p.entropy_weights[blockIdx.x] : 0.f;
    each_column<T, N, true>(row, columns, [&](int column, float logit) {
        const float log_p = logit * inverse - total.maximum - log_sum, probability = __expf(log_p);
        float gradient = of_loss * (column == target ? probability - 1.f : probability);
        if (of_entropy != 0.f && probability > 0.f) gradient -= of_entropy * probability * (log_p + entropy);
        return gradient;
    });
}

/// Of all threads, in thread 0.
__device__ spec::PolicySums sum_over_block(const spec::PolicySums& own) {
    spec::PolicySums total;
    double spec::PolicySums::* const fields[] = {&spec::PolicySums::tokens,
                                                 &spec::PolicySums::log_ratio,
                                                 &spec::PolicySums::bounded_log_ratio,
                                                 &spec::PolicySums::sampler_difference,
                                                 &spec::PolicySums::log_corrections,
                                                 &spec::PolicySums::off_policy,
                                                 &spec::PolicySums::weights,
                                                 &spec::PolicySums::kl};
    for (double spec::PolicySums::* const field : fields) {
        __syncthreads();  // the sums before are read
        total.*field = block_sum_f64<loss_threads>(own.*field);
    }
    return total;
}

__global__ void __launch_bounds__(loss_threads) policy_loss_kernel(const PolicyLoss p) {
    __shared__ spec::PolicyRow row;
    const int begin = p.starts[blockIdx.x], end = p.starts[blockIdx.x + 1];
    const auto token_of = [&](int i) {
        return policy_token(p.losses[i], p.old_logp[i], p.rule.beta != 0 ? p.reference[i] : 0.f, p.sampler[i],
                            p.flags[i]);
    };
    const auto counts = [&](int i) { return (p.flags[i] & policy_token_counts) != 0; };
    spec::PolicySums own;
    for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += loss_threads)
        if (counts(i)) spec::add_token(p.rule, token_of(i), own);
    const spec::PolicySums sums = sum_over_block(own);
    if (threadIdx.x == 0) row = spec::row_of(p.rule, p.divisors, sums, p.advantages[blockIdx.x]);
    __syncthreads();
    double loss = threadIdx.x == 0 ? spec::empty_row_loss(p.rule, row) : 0.0;
    for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += loss_threads) {
        float weight = 0.f, entropy_weight = 0.f;
        if (counts(i)) {
            const spec::PolicyToken token = token_of(i);
            const spec::PolicyTokenLoss of_token = spec::token_loss(p.rule, row, token);
            weight = static_cast<float>(-of_token.by_logp);
            loss += of_token.loss;
            if (token.chosen && p.entropy_weight != 0) {
                entropy_weight = static_cast<float>(p.entropy_weight);
                loss += p.entropy_weight * p.entropies[i];
            }
        }
        p.weights[i] = weight;
        if (p.entropy_weights != nullptr) p.entropy_weights[i] = entropy_weight;
    }
    __syncthreads();
    const double total = block_sum_f64<loss_threads>(loss);
    if (threadIdx.x == 0) p.segment_losses[blockIdx.x] = static_cast<float>(total);
}

}  // namespace

void token_policy(const TokenPolicy& p, cudaStream_t stream) {
    if (p.rows == 0) return;
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        const auto blocks = static_cast<unsigned>(p.rows);
        if (aligned_16(p.logits.data, {p.rows > 1 ? p.logits.stride : 0}, p.type))
            UNSLOTH_LAUNCH((token_policy_kernel<T, vector_width<T>>), blocks, row_threads, 0, stream, p);
        else
            UNSLOTH_LAUNCH((token_policy_kernel<T, 1>), blocks, row_threads, 0, stream, p);
    });
}

void policy_loss(const PolicyLoss& p, cudaStream_t stream) {
    if (p.segments == 0) return;
    UNSLOTH_LAUNCH(policy_loss_kernel, static_cast<unsigned>(p.segments), loss_threads, 0, stream, p);
}

}  // namespace unsloth::kernels
