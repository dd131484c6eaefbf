// The router of mixtures of experts, forward and backward. Ceiling: the launches.
#include "kernels/experts.h"
#include "kernels/map_rows.cuh"

namespace unsloth::kernels {

namespace {

// A warp a token; lane l has experts l, l + 32, ...

constexpr int route_warps = 4;

/// Orders as the numbers do, -0 as 0, NaN as the largest; never 0.
__device__ __forceinline__ uint32_t ordered_bits(float v) {
    if (isnan(v)) return 0xFFFFFFFFu;
    const uint32_t bits = __float_as_uint(v + 0.f);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// `kEach`: experts of a lane.
template <int kEach>
__global__ void __launch_bounds__(route_warps* warp_size) route_kernel(const Route p) {
    const int lane = threadIdx.x % warp_size;
    const int64_t token = static_cast<int64_t>(blockIdx.x) * route_warps + threadIdx.x / warp_size;
    if (token >= p.tokens) return;
    const float* row = static_cast<const float*>(p.logits.data) + token * p.logits.stride;
    float logit[kEach];
    uint32_t key[kEach];  // 0: none, or taken
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int expert = lane + i * warp_size;
        logit[i] = expert < p.experts ? row[expert] : 0.f;
        key[i] = expert < p.experts ? ordered_bits(logit[i]) : 0u;
    }
    int chosen = 0;  // by lane j < choices
    float chosen_logit = 0.f;
    for (int j = 0; j < p.choices; ++j) {
        uint32_t mine = 0;
        int expert = most_experts;
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            if (key[i] > mine) mine = key[i], expert = lane + i * warp_size;
        const uint32_t best = __reduce_max_sync(all_lanes, mine);
        const auto winner =
            static_cast<int>(__reduce_min_sync(all_lanes, static_cast<unsigned>(mine == best ? expert : most_experts)));
        float value = 0.f;
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            if (lane + i * warp_size == winner) key[i] = 0u, value = logit[i];
        value = __shfl_sync(all_lanes, value, winner % warp_size);
        if (lane == j) chosen = winner, chosen_logit = value;
    }
    const float largest = __shfl_sync(all_lanes, chosen_logit, 0);
    const float power = lane < p.choices ? expf(chosen_logit - largest) : 0.f;
    float sum = group_sum(power);
    if (p.kind == spec::RouterWeights::of_all || p.probabilities.data != nullptr) {
        float of_all = 0.f;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            logit[i] = lane + i * warp_size < p.experts ? expf(logit[i] - largest) : 0.f;
            of_all += logit[i];
        }
        of_all = group_sum(of_all);
        if (p.kind == spec::RouterWeights::of_all) sum = of_all;
        if (p.probabilities.data != nullptr) {
            float* out = static_cast<float*>(p.probabilities.data) + token * p.probabilities.stride;
#pragma unroll
            for (int i = 0; i < kEach; ++i)
                if (lane + i * warp_size < p.experts) out[lane + i * warp_size] = logit[i] / of_all;
        }
    }
    if (lane >= p.choices) return;
    p.ids[token * p.choices + lane] = chosen;
    p.weights[token * p.choices + lane] = power / sum;
}

template <int kEach>
__global__ void __launch_bounds__(route_warps* warp_size) route_backward_kernel(const RouteBackward p) {
    const int lane = threadIdx.x % warp_size;
    const int64_t token = static_cast<int64_t>(blockIdx.x) * route_warps + threadIdx.x / warp_size;
    if (token >= p.tokens) return;
    const bool of_all = p.kind == spec::RouterWeights::of_all;
    const bool balanced = p.slopes != nullptr && (p.counted == nullptr || p.counted[token] != 0);
    int id = -1;
    float weight = 0.f, dweight = 0.f;
    if (lane < p.choices) {
        const int64_t place = token * p.choices + lane;
        id = p.ids[place], weight = p.weights[place], dweight = p.dweights[place];
        if (p.dweights_of_any.data != nullptr)
            dweight += static_cast<const float*>(p.dweights_of_any.data)[token * p.dweights_of_any.stride + id];
    }
    const float mean = group_sum(weight * dweight);
    const float direct = weight * (dweight - mean);
    float by_p[kEach], gradient[kEach], probability[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int expert = lane + i * warp_size;
        by_p[i] = balanced && expert < p.experts ? p.slopes[expert] : 0.f;
        gradient[i] = 0.f;
    }
    for (int j = 0; j < p.choices; ++j) {
        const int expert = __shfl_sync(all_lanes, id, j);
        const float value = __shfl_sync(all_lanes, of_all ? dweight : direct, j);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (lane + i * warp_size != expert) continue;
            if (of_all)
                by_p[i] += value;
            else
                gradient[i] = value;
        }
    }
    if (of_all || balanced) {
        const float* row = static_cast<const float*>(p.probabilities.data) + token * p.probabilities.stride;
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int expert = lane + i * warp_size;
            probability[i] = expert < p.experts ? row[expert] : 0.f;
            sum += probability[i] * by_p[i];
        }
        sum = group_sum(sum);
#pragma unroll
        for (int i = 0; i < kEach; ++i) gradient[i] += probability[i] * (by_p[i] - sum);
    }
    float* out = static_cast<float*>(p.dlogits.data) + token * p.dlogits.stride;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
        if (lane + i * warp_size < p.experts) out[lane + i * warp_size] = gradient[i];
}

/// launch(std::integral_constant of the experts of a lane).
template <class Launch>
void with_experts(int experts, const Launch& launch) {
    if (experts <= 32)
        launch(std::integral_constant<int, 1>());
    else if (experts <= 64)
        launch(std::integral_constant<int, 2>());
    else if (experts <= 128)
        launch(std::integral_constant<int, 4>());
    else
        launch(std::integral_constant<int, 8>());
}

}  // namespace

void route(const Route& p, cudaStream_t stream) {
    if (p.tokens == 0) return;
    with_experts(p.experts, [&](auto each) {
        UNSLOTH_LAUNCH(route_kernel<each()>, static_cast<unsigned>(ceil_div(p.tokens, route_warps)),
                       route_warps * warp_size, 0, stream, p);
    });
}

void route_backward(const RouteBackward& p, cudaStream_t stream) {
    if (p.tokens == 0) return;
    with_experts(p.experts, [&](auto each) {
        UNSLOTH_LAUNCH(route_backward_kernel<each()>, static_cast<unsigned>(ceil_div(p.tokens, route_warps)),
                       route_warps * warp_size, 0, stream, p);
    });
}

}  // namespace unsloth::kernels
