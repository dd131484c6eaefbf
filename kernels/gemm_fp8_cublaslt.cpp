#include "kernels/gemm_fp8_cublaslt.h"

#include <algorithm>
#include <compare>
#include <map>

#include "kernels/cublaslt.h"
#include "unsloth/core/error.h"

namespace unsloth::kernels {
namespace {

/// Everything that a choice of algorithm may depend on; addresses are multiples of 16 bytes and no better is
/// assumed.
struct Key {
    int64_t m, n, k, addend_stride, y_stride, workspace;
    bool adds, has_bias, fast;
    auto operator<=>(const Key&) const = default;
};

std::string describe(const CodedGemmCase& p) {
    return cat("e4m3 [", p.m, " x ", p.k, "] x [", p.k, " x ", p.n, "], row strides of the results ", p.y_stride, ", ",
               p.residual_stride, p.bias ? " with bias" : "", p.residual ? " accumulating" : "");
}

/// A product and an algorithm for it: w, as stored, is cuBLASLt's column-major [k, n] to be transposed, x its [k, m].
struct Plan {
    CublasLtProduct product;
    cublasLtMatmulAlgo_t algorithm;
    int64_t workspace = 0;

    Plan(cublasLtHandle_t handle, const CodedGemmCase& p, const Key& key) {
        product.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
        product.set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
        product.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
        product.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
        product.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(key.fast));
        if (p.bias) {
            product.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
            product.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
        }
        point_to(p);
        product.layout(product.first, CUDA_R_8F_E4M3, p.k, p.n, p.k);
        product.layout(product.second, CUDA_R_8F_E4M3, p.k, p.m, p.k);
        product.layout(product.addend, CUDA_R_16BF, p.n, p.m, key.addend_stride);
        product.layout(product.result, CUDA_R_16BF, p.n, p.m, key.y_stride);
        const auto choices = product.choices(handle, key.workspace, 1, {16, 16, 16, 16});
        UNSLOTH_CHECK(!choices.empty(), "cuBLASLt has no algorithm for ", describe(p), " within ", key.workspace,
                      " bytes of workspace");
        algorithm = choices.front().algo;
        workspace = static_cast<int64_t>(choices.front().workspaceSize);
    }

    /// The descriptor holds addresses of scales and bias.
    void point_to(const CodedGemmCase& p) {
        product.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(p.sw));
        product.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(p.sx));
        if (p.bias) product.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
};

}  // namespace

struct Fp8GemmCublasLt::Impl {
    cublasLtHandle_t handle = nullptr;
    std::map<Key, Plan> plans;
};

Fp8GemmCublasLt::Fp8GemmCublasLt(int device) : impl_(std::make_unique<Impl>()) {
    impl_->handle = create_cublaslt(device);
}

Fp8GemmCublasLt::~Fp8GemmCublasLt() {
    if (impl_->handle) cublasLtDestroy(impl_->handle);
}

void Fp8GemmCublasLt::run(const CodedGemmCase& p, bool fast_accumulation, void* workspace, int64_t workspace_bytes,
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
                  .workspace = workspace ? std::min(workspace_bytes, most_gemm_workspace) : 0,
                  .adds = adds,
                  .has_bias = p.bias != nullptr,
                  .fast = fast_accumulation};
    auto found = impl_->plans.find(key);
    if (found == impl_->plans.end()) found = impl_->plans.emplace(key, Plan(impl_->handle, p, key)).first;
    Plan& plan = found->second;
    plan.point_to(p);
    const float alpha = 1.0f, beta = adds ? 1.0f : 0.0f;
    const cublasStatus_t status = cublasLtMatmul(
        impl_->handle, &plan.product.operation, &alpha, p.w, &plan.product.first, p.x, &plan.product.second, &beta,
        adds ? p.residual : p.y, &plan.product.addend, p.y, &plan.product.result, &plan.algorithm, workspace,
        static_cast<size_t>(plan.workspace), static_cast<cudaStream_t>(stream));
    if (status != CUBLAS_STATUS_SUCCESS)
        throw Error("device.failed", cat("cuBLASLt failed on ", describe(p), ": ", cublasLtGetStatusString(status)));
}

}  // namespace unsloth::kernels
