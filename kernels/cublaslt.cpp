#include "kernels/cublaslt.h"

#include "kernels/common/launch.h"
#include "unsloth/core/error.h"

namespace unsloth::kernels {

void check_cublaslt(cublasStatus_t status, const char* call) {
    if (status != CUBLAS_STATUS_SUCCESS)
        throw Error("device.failed", cat("cuBLASLt failed: ", call, " returned ", cublasLtGetStatusString(status)));
}

cublasLtHandle_t create_cublaslt(int device) {
    const DeviceGuard guard(device);
    cublasLtHandle_t handle = nullptr;
    UNSLOTH_CUBLASLT_CHECK(cublasLtCreate(&handle));
    return handle;
}

CublasLtProduct::CublasLtProduct() {
    UNSLOTH_CUBLASLT_CHECK(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
}

void CublasLtProduct::layout(cublasLtMatrixLayoutOpaque_t& out, cudaDataType_t type, int64_t rows, int64_t cols,
                             int64_t ld) {
    UNSLOTH_CUBLASLT_CHECK(
        cublasLtMatrixLayoutInit(&out, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld));
}

std::vector<cublasLtMatmulHeuristicResult_t> CublasLtProduct::choices(cublasLtHandle_t handle, int64_t workspace,
                                                                      int most,
                                                                      const std::array<uint32_t, 4>& alignments) {
    cublasLtMatmulPreferenceOpaque_t preference;
    UNSLOTH_CUBLASLT_CHECK(cublasLtMatmulPreferenceInit(&preference));
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
        UNSLOTH_CUBLASLT_CHECK(cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace));
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments[0]);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments[1]);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments[2]);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments[3]);
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, &operation, &first, &second, &addend, &result,
                                                                 &preference, most, results.data(), &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return {};
    check_cublaslt(status, "cublasLtMatmulAlgoGetHeuristic");
    results.resize(static_cast<std::size_t>(count));
    std::erase_if(results, [](const auto& r) { return r.state != CUBLAS_STATUS_SUCCESS; });
    return results;
}

}  // namespace unsloth::kernels
