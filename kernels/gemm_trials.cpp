#include "kernels/gemm_trials.h"

#include <algorithm>
#include <vector>

#include "kernels/gemm_plan.h"

namespace unsloth::kernels {

struct GemmTrials::Impl {
    cublasLtHandle_t handle = nullptr;
    std::vector<GemmPlan> plans;
    std::size_t ours = 0;

    ~Impl() {
        if (handle) cublasLtDestroy(handle);
    }

    /// The index of an algorithm's plan, made if there is none yet; nullopt when it cannot run.
    std::optional<std::size_t> add(const GemmCase& problem, int64_t workspace, const GemmAlgorithm& algorithm) {
        const auto same = [&](const GemmPlan& plan) { return plan.algorithm() == algorithm; };
        const auto known = std::find_if(plans.begin(), plans.end(), same);
        if (known != plans.end()) return static_cast<std::size_t>(known - plans.begin());
        std::optional<GemmPlan> plan = GemmPlan::with(handle, problem, workspace, algorithm);
        if (!plan) return std::nullopt;
        plans.push_back(*plan);
        return plans.size() - 1;
    }
};

GemmTrials::GemmTrials(int device, const spec::KernelTable& table, const GemmCase& problem, int64_t workspace_bytes)
    : impl_(std::make_unique<Impl>()) {
    impl_->handle = create_cublaslt(device);
    const int64_t workspace = std::min(workspace_bytes, most_gemm_workspace);
    constexpr int most_choices = 64;
    for (const GemmAlgorithm& choice : GemmPlan::choices(impl_->handle, problem, workspace, most_choices))
        impl_->add(problem, workspace, choice);
    for (const spec::KernelChoice* tile : measured_tiles(table, problem))
        impl_->add(problem, workspace, algorithm_of(*tile));
    std::vector<GemmAlgorithm> named;
    for (const GemmPlan& plan : impl_->plans) named.push_back(plan.algorithm());
    for (const GemmAlgorithm& near : named) {
        for (uint16_t cluster = CUBLASLT_CLUSTER_SHAPE_1x1x1; cluster <= CUBLASLT_CLUSTER_SHAPE_2x4x1; ++cluster) {
            GemmAlgorithm a = near;
            a.cluster = cluster;
            impl_->add(problem, workspace, a);
        }
        constexpr uint32_t options = 8;  // what the Hopper kernels know; the library refuses what others do not
        for (uint32_t custom = 0; custom < options; ++custom) {
            GemmAlgorithm a = near;
            a.custom = custom;
            impl_->add(problem, workspace, a);
        }
    }
    const GemmPlan ours(impl_->handle, table, problem, workspace);
    impl_->ours = impl_->add(problem, workspace, ours.algorithm()).value_or(0);
}

GemmTrials::~GemmTrials() = default;

std::size_t GemmTrials::count() const {
    return impl_->plans.size();
}

std::size_t GemmTrials::ours() const {
    return impl_->ours;
}

GemmAlgorithm GemmTrials::algorithm(std::size_t trial) const {
    return impl_->plans[trial].algorithm();
}

double GemmTrials::waves(std::size_t trial) const {
    return impl_->plans[trial].waves();
}

void GemmTrials::run(std::size_t trial, const GemmCase& problem, void* workspace, void* stream) {
    impl_->plans[trial].run(impl_->handle, problem, workspace, static_cast<cudaStream_t>(stream));
}

}  // namespace unsloth::kernels
