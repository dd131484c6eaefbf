// Launchers of mixtures of experts: the router, the order of rows by expert, weighted sums, load balancing; see
// include/unsloth/ops/experts.h. Grouped products: kernels/grouped_gemm.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"
#include "unsloth/spec/router_weights.h"
#include "unsloth/spec/step_scalars.h"

namespace unsloth::kernels {

inline constexpr int most_experts = 256, most_choices = 16;

struct Route {
    int64_t tokens = 0;
    int experts = 0, choices = 0;
    spec::RouterWeights kind = spec::RouterWeights::of_chosen;
    ConstMatrix logits;        ///< fp32
    int32_t* ids = nullptr;    ///< [tokens, choices]
    float* weights = nullptr;  ///< [tokens, choices]
    Matrix probabilities;      ///< fp32; may be the logits; no data: not wanted
};
void route(const Route& params, cudaStream_t stream);

struct RouteBackward {
    int64_t tokens = 0;
    int experts = 0, choices = 0;
    spec::RouterWeights kind = spec::RouterWeights::of_chosen;
    const int32_t* ids = nullptr;
    const float* weights = nullptr;
    const float* dweights = nullptr;
    ConstMatrix dweights_of_any;       ///< fp32 [tokens, experts]; no data: zeros
    ConstMatrix probabilities;         ///< fp32
    const float* slopes = nullptr;     ///< [experts]; nullptr: none
    const int32_t* counted = nullptr;  ///< [tokens]; nullptr: all
    Matrix dlogits;                    ///< fp32; may be the probabilities
};
void route_backward(const RouteBackward& params, cudaStream_t stream);

struct OrderByExpert {
    int64_t rows = 0;  ///< tokens * choices
    int experts = 0, choices = 0;
    const int32_t* ids = nullptr;
    int32_t* ends = nullptr;    ///< [experts]
    int32_t* tokens = nullptr;  ///< [rows]
    int32_t* places = nullptr;  ///< [rows]
    void* workspace = nullptr;  ///< order_workspace() bytes
};
int64_t order_workspace(int64_t rows, int64_t experts);
void order_by_expert(const OrderByExpert& params, cudaStream_t stream);

struct WeightedRows {
    int64_t tokens = 0;
    int64_t columns = 0;
    int choices = 0;
    spec::DType type = spec::DType::bf16;
    bool dy_by_place = false;  ///< dy has a row for each place, not for each token
    ConstMatrix dy;            ///< may be dz where it has a row for each place
    ConstMatrix z;             ///< may be dz
    Matrix dz;
    const int32_t* places = nullptr;
    const float* weights = nullptr;
    float* dweights = nullptr;
};
void weighted_rows_backward(const WeightedRows& params, cudaStream_t stream);

struct RouterLoad {
    int64_t tokens = 0;
    int experts = 0, choices = 0;
    const int32_t* ids = nullptr;
    ConstMatrix probabilities;         ///< fp32
    const int32_t* counted = nullptr;  ///< [tokens]; nullptr: all
    double* sums = nullptr;            ///< [2, experts], +=
};
void router_load(const RouterLoad& params, cudaStream_t stream);

struct Balance {
    int experts = 0, choices = 0;
    double coefficient = 0;
    const double* sums = nullptr;  ///< [2, experts]
    const spec::StepScalars* scalars = nullptr;
    float* loss = nullptr;
    float* slopes = nullptr;  ///< [experts]
};
void balance(const Balance& params, cudaStream_t stream);

/// rows[i] += bias[the expert of row i], in fp32, rounded once.
struct ExpertBias {
    int64_t rows = 0;
    int64_t columns = 0;
    int experts = 0;
    spec::DType type = spec::DType::bf16;
    Matrix out;
    const void* bias = nullptr;     ///< [experts, columns]
    const int32_t* ends = nullptr;  ///< [experts]
};
void add_expert_bias(const ExpertBias& params, cudaStream_t stream);

}  // namespace unsloth::kernels
