// The operators of ops/gated_delta.h on CUDA, after their arguments were checked.
#pragma once

#include "unsloth/ops/gated_delta.h"

namespace unsloth::ops {

void short_conv_forward_cuda(const Context& ctx, const Segments& segments, const at::Tensor& x_TC,
                             const at::Tensor& weight_Cw, const at::Tensor& y_TC, const KeptStates& kept);
void short_conv_backward_cuda(const Context& ctx, const Segments& segments, const at::Tensor& dy_TC,
                              const at::Tensor& x_TC, const at::Tensor& weight_Cw, const at::Tensor& dx_TC,
                              const at::Tensor& dweight_Cw, const KeptStates& kept, const at::Tensor& dkept_NwC);

void delta_forward_cuda(const Context& ctx, const DeltaShape& shape, const Segments& segments, const DeltaInputs& in,
                        const at::Tensor& o_THv, const KeptStates& kept, const DeltaTurns& turns);
void delta_backward_cuda(const Context& ctx, const DeltaShape& shape, const Segments& segments, const DeltaInputs& in,
                         const at::Tensor& do_THv, const at::Tensor& states, const DeltaGradients& out,
                         const DeltaResumed& resumed);
int64_t delta_workspace_cuda(const DeltaShape& shape, at::ScalarType dtype, int64_t tokens, int64_t segments,
                             bool backward, bool aligned);

void gated_norm_forward_cuda(const Context& ctx, const at::Tensor& x_THv, const at::Tensor& z_THv,
                             const at::Tensor& weight_v, double eps, const at::Tensor& y_THv);
void gated_norm_backward_cuda(const Context& ctx, const at::Tensor& dy_THv, const at::Tensor& x_THv,
                              const at::Tensor& z_THv, const at::Tensor& weight_v, double eps, const at::Tensor& dx_THv,
                              const at::Tensor& dz_THv, const at::Tensor& dweight_v);
int64_t gated_norm_workspace_cuda(int64_t columns);

/// False, with nothing done, where no kernel does all of it.
bool delta_net_forward_cuda(const Context& ctx, const Segments& segments, const DeltaNet& net, const at::Tensor& y_THv);

void sigmoid_gate_forward_cuda(const Context& ctx, const at::Tensor& x_THd, const at::Tensor& gate_THd,
                               const at::Tensor& y_THd);
void sigmoid_gate_backward_cuda(const Context& ctx, const at::Tensor& dy_THd, const at::Tensor& x_THd,
                                const at::Tensor& gate_THd, const at::Tensor& dx_THd, const at::Tensor& dgate_THd);

}  // namespace unsloth::ops
