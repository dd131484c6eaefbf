#include "unsloth/ops/gemm_trials.h"

#if UNSLOTH_CUDA
#include "kernels/gemm_trials.h"
#include "ops/gemm_cuda.h"

namespace unsloth::ops {

struct GemmTrials::Impl {
    Context& ctx;
    kernels::GemmCase like;
    kernels::GemmTrials trials;

    Impl(Context& context, const Gemm& args)
        : ctx(context),
          like(gemm_case(args)),
          trials(context.device().index(), *context.kernels, like,
                 context.workspace.defined() ? context.workspace.nbytes() : 0) {}
};

GemmTrials::GemmTrials(Context& ctx, const Gemm& like) : impl_(std::make_unique<Impl>(ctx, like)) {}

GemmTrials::~GemmTrials() = default;

std::size_t GemmTrials::count() const {
    return impl_->trials.count();
}

std::size_t GemmTrials::ours() const {
    return impl_->trials.ours();
}

void GemmTrials::run(std::size_t trial, const Gemm& args) {
    void* workspace = impl_->ctx.workspace.defined() ? impl_->ctx.workspace.data_ptr() : nullptr;
    impl_->trials.run(trial, gemm_case(args), workspace, impl_->ctx.stream());
}

std::string GemmTrials::name(std::size_t trial) const {
    return kernels::text_of(impl_->trials.algorithm(trial));
}

bool GemmTrials::in_waves(std::size_t trial) const {
    return impl_->trials.algorithm(trial).split_k == 1 && impl_->like.m >= kernels::fewest_rows_of_waves;
}

double GemmTrials::waves(std::size_t trial) const {
    return kernels::full_waves(impl_->trials.waves(trial));
}

spec::KernelChoice GemmTrials::choice(std::size_t trial, spec::Interval tokens, int64_t k_base) const {
    return {.op = spec::KernelOperator::gemm,
            .form = kernels::form_of(impl_->like),
            .tokens = tokens,
            .n = {impl_->like.n, impl_->like.n},
            .k = {k_base, k_base + kernels::widest_tail},
            .kernel = spec::KernelSource::library,
            .parameters = kernels::parameters_of(impl_->trials.algorithm(trial))};
}

}  // namespace unsloth::ops
#endif
