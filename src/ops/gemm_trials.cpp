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
          trials(context.device().index(), like, context.workspace.defined() ? context.workspace.nbytes() : 0) {}
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

void GemmTrials::prefer(std::size_t trial) {
    prefer_gemm_cuda(impl_->ctx, impl_->like, impl_->trials.algorithm(trial));
}

std::string GemmTrials::name(std::size_t trial) const {
    return kernels::table_text(impl_->trials.algorithm(trial));
}

bool GemmTrials::in_waves(std::size_t trial) const {
    return impl_->trials.algorithm(trial).split_k == 1 && impl_->like.m >= kernels::fewest_rows_of_waves;
}

double GemmTrials::waves(std::size_t trial) const {
    return kernels::full_waves(impl_->trials.waves(trial));
}

std::string GemmTrials::product_line(std::size_t trial, int64_t m_first, int64_t m_last, int64_t k_base) const {
    return kernels::table_text(kernels::GemmProduct{m_first, m_last, impl_->like.n, k_base,
                                                    kernels::form_of(impl_->like), impl_->trials.algorithm(trial)});
}

std::string GemmTrials::tile_line(bool transpose_b, double ns_per_k, double ns, const std::string& name) {
    return kernels::tile_text(transpose_b ? kernels::GemmForm::nt : kernels::GemmForm::nn, ns_per_k, ns, name);
}

}  // namespace unsloth::ops
#endif
