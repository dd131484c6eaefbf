#include "unsloth/ops/swiglu.h"
#include "unsloth/ops/profiler.h"

#include "ops/checks.h"
#include "ops/cpu_rows.h"
#include "ops/glu_cpu.h"
#include "unsloth/ops/coded_rows.h"
#ifdef UNSLOTH_CUDA
#include "kernels/swiglu.h"
#endif

namespace unsloth::ops {

namespace {

template <class Glu>
void forward_cpu(const at::Tensor& gu_T2F, const at::Tensor& act_TF, float limit) {
    const cpu::Rows gate_up(gu_T2F), act_rows(act_TF);
    const int64_t columns = act_rows.columns();
    at::parallel_for(0, act_rows.rows(), cpu::grain_size(8 * columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<size_t>(2 * columns)), act(static_cast<size_t>(columns));
        for (int64_t row = begin; row < end; ++row) {
            const float* gate = gate_up.read(row, scratch.data());
            const float* up = gate + columns;
            for (int64_t c = 0; c < columns; ++c) act[c] = Glu::of(gate[c], up[c], limit);
            act_rows.write(row, act.data());
        }
    });
}

/// act_TF may be undefined, or dact_TF.
template <class Glu>
void backward_cpu(const at::Tensor& dact_TF, const at::Tensor& gu_T2F, const at::Tensor& act_TF, float limit) {
    const cpu::Rows gate_up(gu_T2F), dact_rows(dact_TF), act_rows(act_TF.defined() ? act_TF : dact_TF);
    const int64_t columns = dact_rows.columns();
    at::parallel_for(0, dact_rows.rows(), cpu::grain_size(8 * columns), [&](int64_t begin, int64_t end) {
        const auto size = static_cast<size_t>(columns);
        std::vector<float> gu_scratch(2 * size), dact_scratch(size), gradient(2 * size), act(size);
        for (int64_t row = begin; row < end; ++row) {
            const float* gate = gate_up.read(row, gu_scratch.data());
            const float* up = gate + columns;
            const float* dact = dact_rows.read(row, dact_scratch.data());
            for (int64_t c = 0; c < columns; ++c) {
                const cpu::GluGradients made = Glu::gradients(dact[c], gate[c], up[c], limit);
                gradient[c] = made.gate;
                gradient[columns + c] = made.up;
                act[c] = made.act;
            }
            gate_up.write(row, gradient.data());
            if (act_TF.defined()) act_rows.write(row, act.data());
        }
    });
}

void check(const Context& ctx, const at::Tensor& gu_T2F, const at::Tensor& act_TF, const char* act_name) {
    UNSLOTH_CHECK(act_TF.dim() == 2, act_name, " has ", act_TF.dim(), " dimensions, expected [T, F]");
    check_compute_tensor(ctx, act_name, act_TF, act_TF.sizes());
    check_tensor(ctx, "gate_up", gu_T2F, {act_TF.size(0), 2 * act_TF.size(1)}, act_TF.scalar_type());
}

/// Codes are made of other models' activations alone.
void check_limit(float limit) {
    UNSLOTH_CHECK(limit == spec::default_gate_limit, "codes of an activation with a limit of ", limit);
}

}  // namespace

void swiglu_forward(Context& ctx, const at::Tensor& gu_T2F, const at::Tensor& act_TF, const CodedMatrix& codes,
                    spec::GateActivation activation, float limit) {
    if (codes.codes.defined()) check_limit(limit);
    if (codes.codes.defined()) return swiglu_forward_coded(ctx, gu_T2F, act_TF, codes, activation);
    const Region region(ctx, "swiglu");
    check(ctx, gu_T2F, act_TF, "act");
    if (!ctx.is_cuda())
        return cpu::with_glu(activation, [&](auto glu) { forward_cpu<decltype(glu)>(gu_T2F, act_TF, limit); });
#ifdef UNSLOTH_CUDA
    kernels::SwigluForward params;
    params.tokens = act_TF.size(0);
    params.columns = act_TF.size(1);
    params.type = dtype_of(act_TF);
    params.gate_up = {gu_T2F.const_data_ptr(), gu_T2F.stride(0)};
    params.act = {act_TF.mutable_data_ptr(), act_TF.stride(0)};
    params.activation = activation;
    params.limit = limit;
    kernels::swiglu_forward(params, static_cast<cudaStream_t>(ctx.stream()));
#endif
}

void swiglu_backward(Context& ctx, const at::Tensor& dact_TF, const at::Tensor& gu_T2F, const at::Tensor& act_TF,
                     const CodedMatrix& codes, bool codes_alone, spec::GateActivation activation, float limit) {
    if (codes.codes.defined()) check_limit(limit);
    if (codes.codes.defined())
        return swiglu_backward_coded(ctx, dact_TF, gu_T2F, act_TF, codes, codes_alone, activation);
    const Region region(ctx, "swiglu_backward");
    check(ctx, gu_T2F, dact_TF, "dact");
    if (act_TF.defined()) check(ctx, gu_T2F, act_TF, "act");
    if (!ctx.is_cuda())
        return cpu::with_glu(activation,
                             [&](auto glu) { backward_cpu<decltype(glu)>(dact_TF, gu_T2F, act_TF, limit); });
#ifdef UNSLOTH_CUDA
    kernels::SwigluBackward params;
    params.tokens = dact_TF.size(0);
    params.columns = dact_TF.size(1);
    params.type = dtype_of(dact_TF);
    params.dact = {dact_TF.const_data_ptr(), dact_TF.stride(0)};
    params.gate_up = {gu_T2F.mutable_data_ptr(), gu_T2F.stride(0)};
    if (act_TF.defined()) params.act = {act_TF.mutable_data_ptr(), act_TF.stride(0)};
    params.activation = activation;
    params.limit = limit;
    kernels::swiglu_backward(params, static_cast<cudaStream_t>(ctx.stream()));
#endif
}

}  // namespace unsloth::ops
