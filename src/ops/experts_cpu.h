// The CPU's part of ops/experts.h; arguments are checked by the caller.
#pragma once

#include "unsloth/ops/experts.h"

namespace unsloth::ops::cpu {

void route(const Route& args);
void route_backward(const RouteBackward& args);
void order_by_expert(const at::Tensor& ids, const ExpertOrder& order);
void combine(const Combine& args);

/// dweight = <z[place], dy>, then dz[place] = weight · dy; dy has a row for each token, or one for each place.
struct WeightedRows {
    at::Tensor dy, z, places, weights, dz, dweights;
    bool dy_by_place = false;
};
void weighted_rows_backward(const WeightedRows& args);

void router_load(const RouterLoad& args);
void balance(const Balance& args, double loss_scale);

}  // namespace unsloth::ops::cpu
