#include "kernels/gemm_fp8_cublaslt.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <compare>
#include <map>

#include "unsloth/core/error.h"

namespace unsloth::kernels {
namespace {

/// What cuBLASLt is told at most, so that a larger planned scratch does not change its choice.
constexpr int64_t most_workspace = int64_t{32} << 20;

void check(cublasStatus_t status, const char* call) {
    if (status != CUBLAS_STATUS_SUCCESS)
        throw runtime_failure(cat("cuBLASLt failed: ", call, " returned ", cublasLtGetStatusString(status)));
}
#define CHECK_LT(call) check((call), #call)

/// Everything that a choice of algorithm may depend on; addresses are multiples of 16 bytes and no better is
/// assumed.
struct Key {
    int64_t m, n, k, addend_stride, y_stride, workspace;
    bool adds, has_bias, fast;
    auto operator<=>(const Key&) const = default;
};

std::string describe(const Fp8GemmCase& p) {
    return cat("e4m3 [", p.m, " x ", p.k, "] x [", p.k, " x ", p.n, "], row strides of the results ", p.y_stride, ", ",
               p.residual_stride, p.bias ? " with bias" : "", p.residual ? " accumulating" : "");
}

/// Descriptors and algorithm of one kind of product. cuBLASLt is column-major: it computes y^T[n, m] = w x^T,
/// where w as it lies is a column-major [k, n] to be transposed and x a column-major [k, m].
struct Plan {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t first, second, addend, result;
    cublasLtMatmulAlgo_t algorithm;
    int64_t workspace = 0;

    Plan(cublasLtHandle_t handle, const Fp8GemmCase& p, const Key& key) {
        CHECK_LT(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
        set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
        set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
        set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(key.fast));
        if (p.bias) {
            set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
            set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
        }
        point_to(p);
        layout(first, CUDA_R_8F_E4M3, p.k, p.n, p.k);
        layout(second, CUDA_R_8F_E4M3, p.k, p.m, p.k);
        layout(addend, CUDA_R_16BF, p.n, p.m, key.addend_stride);
        layout(result, CUDA_R_16BF, p.n, p.m, key.y_stride);
        choose(handle, p, key);
    }

    /// The descriptor holds addresses of scales and bias.
    void point_to(const Fp8GemmCase& p) {
        set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(p.sw));
        set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(p.sx));
        if (p.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }

  private:
    template <class Value>
    void set(cublasLtMatmulDescAttributes_t name, Value value) {
        CHECK_LT(cublasLtMatmulDescSetAttribute(&operation, name, &value, sizeof value));
    }

    static void layout(cublasLtMatrixLayoutOpaque_t& out, cudaDataType_t type, int64_t rows, int64_t cols, int64_t ld) {
        CHECK_LT(cublasLtMatrixLayoutInit(&out, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld));
    }

    void choose(cublasLtHandle_t handle, const Fp8GemmCase& p, const Key& key) {
        cublasLtMatmulPreferenceOpaque_t preference;
        CHECK_LT(cublasLtMatmulPreferenceInit(&preference));
        const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
            CHECK_LT(cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof value));
        };
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(key.workspace));
        // In fp32 and in a pass of its own: neither sums of rounded parts nor an order that varies.
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
               static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
        for (const auto alignment :
             {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
              CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
            prefer(alignment, uint32_t{16});
        cublasLtMatmulHeuristicResult_t found{};
        int count = 0;
        const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, &operation, &first, &second, &addend,
                                                                     &result, &preference, 1, &found, &count);
        const bool none = status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
        if (!none) check(status, "cublasLtMatmulAlgoGetHeuristic");
        UNSLOTH_CHECK(!none && count > 0 && found.state == CUBLAS_STATUS_SUCCESS, "cuBLASLt has no algorithm for ",
                      describe(p), " within ", key.workspace, " bytes of workspace");
        algorithm = found.algo;
        workspace = static_cast<int64_t>(found.workspaceSize);
    }
};

}  // namespace

struct Fp8GemmCublasLt::Impl {
    cublasLtHandle_t handle = nullptr;
    std::map<Key, Plan> plans;
};

Fp8GemmCublasLt::Fp8GemmCublasLt(int device) : impl_(std::make_unique<Impl>()) {
    int current = 0;
    const bool switched = cudaGetDevice(&current) == cudaSuccess && current != device;
    if (switched) cudaSetDevice(device);
    const cublasStatus_t status = cublasLtCreate(&impl_->handle);
    if (switched) cudaSetDevice(current);
    check(status, "cublasLtCreate");
}

Fp8GemmCublasLt::~Fp8GemmCublasLt() {
    if (impl_->handle) cublasLtDestroy(impl_->handle);
}

void Fp8GemmCublasLt::run(const Fp8GemmCase& p, bool fast_accumulation, void* workspace, int64_t workspace_bytes,
                          void* stream) {
    UNSLOTH_CHECK(p.rank == 0, "the library's e4m3 product has no tail, rank is ", p.rank);
    for (const void* pointer : {p.x, p.w, static_cast<const void*>(p.y), p.residual ? p.residual : p.y})
        UNSLOTH_CHECK(reinterpret_cast<uintptr_t>(pointer) % 16 == 0, "fp8 gemm: an address is not a multiple of 16");
    const bool adds = p.residual != nullptr;
    const Key key{.m = p.m,
                  .n = p.n,
                  .k = p.k,
                  .addend_stride = adds ? p.residual_stride : p.y_stride,
                  .y_stride = p.y_stride,
                  .workspace = workspace ? std::min(workspace_bytes, most_workspace) : 0,
                  .adds = adds,
                  .has_bias = p.bias != nullptr,
                  .fast = fast_accumulation};
    auto found = impl_->plans.find(key);
    if (found == impl_->plans.end()) found = impl_->plans.emplace(key, Plan(impl_->handle, p, key)).first;
    Plan& plan = found->second;
    plan.point_to(p);
    const float alpha = 1.0f, beta = adds ? 1.0f : 0.0f;
    const cublasStatus_t status =
        cublasLtMatmul(impl_->handle, &plan.operation, &alpha, p.w, &plan.first, p.x, &plan.second, &beta,
                       adds ? p.residual : p.y, &plan.addend, p.y, &plan.result, &plan.algorithm, workspace,
                       static_cast<size_t>(plan.workspace), static_cast<cudaStream_t>(stream));
    if (status != CUBLAS_STATUS_SUCCESS)
        throw runtime_failure(cat("cuBLASLt failed on ", describe(p), ": ", cublasLtGetStatusString(status)));
}

}  // namespace unsloth::kernels
