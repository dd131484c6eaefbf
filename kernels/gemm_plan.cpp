#include "kernels/gemm_plan.h"

#include <algorithm>

#include "kernels/common/launch.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::kernels {
namespace {

cudaDataType_t cuda_type(spec::DType type) {
    switch (type) {
        case spec::DType::f32:
            return CUDA_R_32F;
        case spec::DType::bf16:
            return CUDA_R_16BF;
        case spec::DType::f16:
            return CUDA_R_16F;
        default:
            UNSLOTH_CHECK(false, "gemm: no CUDA type for ", spec::name_of(type));
            return CUDA_R_32F;
    }
}

/// Row strides and pointers of the addend: `out` itself where nothing is added.
const GemmOperand& addend_of(const GemmCase& p) {
    return p.beta != 0.0f ? p.c : p.out;
}

/// The pointers' alignments in cuBLASLt's order of operands.
std::array<uint32_t, 4> pointer_alignments(const GemmCase& p) {
    return {gemm_alignment(p.b.data), gemm_alignment(p.a.data), gemm_alignment(addend_of(p).data),
            gemm_alignment(p.out.data)};
}

/// Odd leading dimensions leave rows aligned to an element only, which the pointers' alignment does not tell.
std::array<uint32_t, 4> element_alignments(const GemmCase& p) {
    const auto in = static_cast<uint32_t>(spec::size_of(p.input_type)),
               out = static_cast<uint32_t>(spec::size_of(p.output_type));
    return {in, in, out, out};
}

template <class Value>
Value attribute(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name) {
    Value value{};
    std::size_t written = 0;
    UNSLOTH_CUBLASLT_CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, name, &value, sizeof value, &written));
    return value;
}

GemmAlgorithm attributes_of(const cublasLtMatmulAlgo_t& algorithm) {
    GemmAlgorithm a;
    a.id = attribute<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_ID);
    a.tile = attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID);
    a.stages = attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID);
    a.split_k = attribute<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
    a.reduction = attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
    a.swizzle = attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING);
    a.custom = attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION);
    a.inner_shape = attribute<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID);
    a.cluster = attribute<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);
    return a;
}

}  // namespace

uint32_t gemm_alignment(const void* pointer) {
    constexpr uintptr_t most = 256;
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    return static_cast<uint32_t>(address == 0 ? most : std::min(address & -address, most));
}

std::string describe(const GemmCase& p) {
    return cat("[", p.m, " x ", p.k, "] x [", p.k, " x ", p.n, "], row strides ", p.a.row_stride,
               p.a.transpose ? "T" : "", ", ", p.b.row_stride, p.b.transpose ? "T" : "", ", ", p.out.row_stride, ", ",
               spec::name_of(p.input_type), " to ", spec::name_of(p.output_type), p.bias ? " with bias" : "",
               p.beta != 0 ? " accumulating" : "");
}

GemmPlan::GemmPlan(const GemmCase& p) {
    const cudaDataType_t in = cuda_type(p.input_type), out = cuda_type(p.output_type);
    product_.set(CUBLASLT_MATMUL_DESC_TRANSA, p.b.transpose ? CUBLAS_OP_T : CUBLAS_OP_N);
    product_.set(CUBLASLT_MATMUL_DESC_TRANSB, p.a.transpose ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias) {
        product_.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        product_.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out);
        product_.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    product_.layout(product_.first, in, p.b.transpose ? p.k : p.n, p.b.transpose ? p.n : p.k, p.b.row_stride);
    product_.layout(product_.second, in, p.a.transpose ? p.m : p.k, p.a.transpose ? p.k : p.m, p.a.row_stride);
    product_.layout(product_.addend, out, p.n, p.m, addend_of(p).row_stride);
    product_.layout(product_.result, out, p.n, p.m, p.out.row_stride);
}

GemmPlan::GemmPlan(cublasLtHandle_t handle, const spec::KernelTable& table, const GemmCase& p, int64_t workspace)
    : GemmPlan(p) {
    if (const std::optional<Choice> choice = measured(handle, table, p, workspace)) {
        choice_ = *choice;
        return;
    }
    for (const auto& alignments : {pointer_alignments(p), element_alignments(p)}) {
        const std::vector<Choice> found = heuristic(handle, workspace, 1, alignments);
        if (found.empty()) continue;
        choice_ = found.front();
        return;
    }
    UNSLOTH_CHECK(false, "cuBLASLt has no algorithm for ", describe(p), " within ", workspace, " bytes of workspace");
}

std::optional<GemmPlan> GemmPlan::with(cublasLtHandle_t handle, const GemmCase& p, int64_t workspace,
                                       const GemmAlgorithm& algorithm) {
    GemmPlan plan(p);
    const std::optional<Choice> choice = plan.configured(handle, p, workspace, algorithm);
    if (!choice) return std::nullopt;
    plan.choice_ = *choice;
    return plan;
}

std::vector<GemmAlgorithm> GemmPlan::choices(cublasLtHandle_t handle, const GemmCase& p, int64_t workspace, int most) {
    GemmPlan plan(p);
    std::vector<GemmAlgorithm> all;
    for (const Choice& found : plan.heuristic(handle, workspace, most, pointer_alignments(p)))
        all.push_back(attributes_of(found.algorithm));
    return all;
}

GemmAlgorithm GemmPlan::algorithm() const {
    return attributes_of(choice_.algorithm);
}

std::vector<GemmPlan::Choice> GemmPlan::heuristic(cublasLtHandle_t handle, int64_t workspace, int most,
                                                  const std::array<uint32_t, 4>& alignments) {
    std::vector<Choice> found;
    for (const auto& r : product_.choices(handle, workspace, most, alignments))
        found.push_back({r.algo, r.workspaceSize, r.wavesCount});
    return found;
}

std::optional<GemmPlan::Choice> GemmPlan::configured(cublasLtHandle_t handle, const GemmCase& p, int64_t workspace,
                                                     const GemmAlgorithm& a) {
    const cudaDataType_t in = cuda_type(p.input_type), out = cuda_type(p.output_type);
    Choice choice{};
    bool known = cublasLtMatmulAlgoInit(handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, in, in, out, out, a.id,
                                        &choice.algorithm) == CUBLAS_STATUS_SUCCESS;
    const auto configure = [&](cublasLtMatmulAlgoConfigAttributes_t name, const auto& value) {
        known = known && cublasLtMatmulAlgoConfigSetAttribute(&choice.algorithm, name, &value, sizeof value) ==
                             CUBLAS_STATUS_SUCCESS;
    };
    configure(CUBLASLT_ALGO_CONFIG_TILE_ID, a.tile);
    configure(CUBLASLT_ALGO_CONFIG_STAGES_ID, a.stages);
    configure(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, a.split_k);
    configure(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, a.reduction);
    configure(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, a.swizzle);
    configure(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, a.custom);
    configure(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, a.inner_shape);
    configure(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, a.cluster);
    cublasLtMatmulHeuristicResult_t result{};
    if (!known ||
        cublasLtMatmulAlgoCheck(handle, &product_.operation, &product_.first, &product_.second, &product_.addend,
                                &product_.result, &choice.algorithm, &result) != CUBLAS_STATUS_SUCCESS ||
        result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > static_cast<std::size_t>(workspace))
        return std::nullopt;
    choice.workspace = result.workspaceSize;
    choice.waves = result.wavesCount;
    return choice;
}

std::optional<GemmPlan::Choice> GemmPlan::measured(cublasLtHandle_t handle, const spec::KernelTable& table,
                                                   const GemmCase& p, int64_t workspace) {
    if (const spec::KernelChoice* product = measured_product(table, p)) {
        const std::optional<Choice> choice = configured(handle, p, workspace, algorithm_of(*product));
        if (!choice)
            log::warning("cuBLASLt does not run the table's algorithm for ", describe(p), " within ", workspace,
                         " bytes of workspace: its own choice is used, mostly 2 to 9 % slower");
        return choice;
    }
    std::optional<Choice> best;
    double least = 0;
    for (const spec::KernelChoice* tile : measured_tiles(table, p)) {
        const std::optional<Choice> choice = configured(handle, p, workspace, algorithm_of(*tile));
        if (!choice) continue;
        const double ns = predicted_ns(*tile, choice->waves, p.k);
        if (best && ns >= least) continue;
        best = choice;
        least = ns;
    }
    return best;
}

void GemmPlan::run(cublasLtHandle_t handle, const GemmCase& p, void* workspace, cudaStream_t stream) {
    if (p.bias) product_.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    const cublasStatus_t status =
        cublasLtMatmul(handle, &product_.operation, &p.alpha, p.b.data, &product_.first, p.a.data, &product_.second,
                       &p.beta, addend_of(p).data, &product_.addend, p.out.data, &product_.result, &choice_.algorithm,
                       workspace, choice_.workspace, stream);
    if (status != CUBLAS_STATUS_SUCCESS)
        throw Error("device.failed", cat("cuBLASLt failed on ", describe(p), ": ", cublasLtGetStatusString(status)));
}

}  // namespace unsloth::kernels
