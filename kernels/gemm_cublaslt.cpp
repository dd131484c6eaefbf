#include "kernels/gemm_cublaslt.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <unordered_map>

#include "unsloth/core/error.h"

namespace unsloth::kernels {
namespace {

constexpr int64_t mebibyte = int64_t{1} << 20;
/// What cuBLASLt is told at most, so that a larger planned scratch (attention's) does not change its choice.
constexpr int64_t most_workspace = 32 * mebibyte;
/// cuBLASLt looks at no more than this.
constexpr uint32_t most_alignment = 256;

void check(cublasStatus_t status, const char* call) {
    if (status != CUBLAS_STATUS_SUCCESS)
        throw runtime_failure(cat("cuBLASLt failed: ", call, " returned ", cublasLtGetStatusString(status)));
}
#define CHECK_LT(call) check((call), #call)

cudaDataType_t cuda_type(DType type) {
    switch (type) {
        case DType::f32:
            return CUDA_R_32F;
        case DType::bf16:
            return CUDA_R_16BF;
        case DType::f16:
            return CUDA_R_16F;
        default:
            UNSLOTH_CHECK(false, "gemm: no CUDA type for ", name_of(type));
            return CUDA_R_32F;
    }
}

uint32_t alignment_of(const void* pointer) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    return address == 0 ? most_alignment
                        : static_cast<uint32_t>(std::min<uintptr_t>(address & -address, most_alignment));
}

/// Everything that a choice of algorithm may depend on.
struct Key {
    int64_t m, n, k, lda, ldb, ldc, ldd, workspace;
    uint32_t align_a, align_b, align_c, align_d;
    uint32_t flags;       ///< types, transposes, bias, in-place accumulation
    uint32_t unused = 0;  // the key is compared and hashed as bytes: no padding may remain

    bool operator==(const Key& other) const { return std::memcmp(this, &other, sizeof(Key)) == 0; }
};
static_assert(sizeof(Key) == 8 * sizeof(int64_t) + 6 * sizeof(uint32_t), "padding would be compared");

struct KeyHash {
    std::size_t operator()(const Key& key) const {
        std::array<uint64_t, sizeof(Key) / 8> words;
        std::memcpy(words.data(), &key, sizeof(Key));
        uint64_t hash = 0x9E3779B97F4A7C15u;
        for (const uint64_t word : words) {
            hash ^= word + 0x9E3779B97F4A7C15u + (hash << 6) + (hash >> 2);
            hash *= 0xBF58476D1CE4E5B9u;
        }
        return hash ^ (hash >> 31);
    }
};

Key key_of(const GemmCase& p, int64_t workspace_bytes) {
    const bool accumulates = p.beta != 0.0f;
    Key key{.m = p.m,
            .n = p.n,
            .k = p.k,
            .lda = p.a.row_stride,
            .ldb = p.b.row_stride,
            .ldc = accumulates ? p.c.row_stride : p.out.row_stride,
            .ldd = p.out.row_stride,
            .workspace = std::min(workspace_bytes, most_workspace),
            .align_a = alignment_of(p.a.data),
            .align_b = alignment_of(p.b.data),
            .align_c = alignment_of(accumulates ? p.c.data : p.out.data),
            .align_d = alignment_of(p.out.data),
            .flags = 0};
    key.flags = static_cast<uint32_t>(p.input_type) | static_cast<uint32_t>(p.output_type) << 4 |
                uint32_t{p.a.transpose} << 8 | uint32_t{p.b.transpose} << 9 |
                uint32_t{p.bias != nullptr} << 10 | uint32_t{accumulates} << 11;
    return key;
}

std::string describe(const GemmCase& p) {
    return cat("[", p.m, " x ", p.k, "] x [", p.k, " x ", p.n, "], row strides ", p.a.row_stride,
               p.a.transpose ? "T" : "", ", ", p.b.row_stride, p.b.transpose ? "T" : "", ", ",
               p.out.row_stride, ", ", name_of(p.input_type), " to ", name_of(p.output_type),
               p.bias ? " with bias" : "", p.beta != 0 ? " accumulating" : "");
}

/// Descriptors and algorithm of one kind of product. The opaque structs are initialised in place: no
/// allocation.
///
/// cuBLASLt is column-major. A row-major matrix is the column-major transpose, so out^T[n, m] = b^T[n, k]
/// a^T[k, m]: the operands trade places, their leading dimensions are the row strides, and a row-major bias
/// over n is a bias over the rows of what the library sees.
struct Plan {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t first, second, addend, result;
    cublasLtMatmulAlgo_t algorithm;
    int64_t workspace = 0;

    Plan(cublasLtHandle_t handle, const GemmCase& p, const Key& key) {
        describe_operation(p);
        const cudaDataType_t in = cuda_type(p.input_type), out = cuda_type(p.output_type);
        layout(first, in, p.b.transpose ? p.k : p.n, p.b.transpose ? p.n : p.k, p.b.row_stride);
        layout(second, in, p.a.transpose ? p.m : p.k, p.a.transpose ? p.k : p.m, p.a.row_stride);
        layout(addend, out, p.n, p.m, key.ldc);
        layout(result, out, p.n, p.m, key.ldd);
        const uint32_t in_size = static_cast<uint32_t>(size_of(p.input_type));
        const uint32_t out_size = static_cast<uint32_t>(size_of(p.output_type));
        // Odd leading dimensions leave rows aligned to an element only, which the pointers' alignment does
        // not tell.
        if (!choose(handle, key, {key.align_b, key.align_a, key.align_c, key.align_d}) &&
            !choose(handle, key, {in_size, in_size, out_size, out_size}))
            UNSLOTH_CHECK(false, "cuBLASLt has no algorithm for ", describe(p), " within ", key.workspace,
                          " bytes of workspace");
    }

    void set_bias(const void* bias) {
        CHECK_LT(cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                sizeof bias));
    }

  private:
    static void layout(cublasLtMatrixLayoutOpaque_t& out, cudaDataType_t type, int64_t rows, int64_t cols,
                       int64_t ld) {
        CHECK_LT(cublasLtMatrixLayoutInit(&out, type, static_cast<uint64_t>(rows),
                                          static_cast<uint64_t>(cols), ld));
    }

    void describe_operation(const GemmCase& p) {
        CHECK_LT(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        set(CUBLASLT_MATMUL_DESC_TRANSA, p.b.transpose ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, p.a.transpose ? CUBLAS_OP_T : CUBLAS_OP_N);
        if (p.bias) {
            set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
            set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(p.output_type));
            set_bias(p.bias);
        }
    }

    template <class Value>
    void set(cublasLtMatmulDescAttributes_t name, Value value) {
        CHECK_LT(cublasLtMatmulDescSetAttribute(&operation, name, &value, sizeof value));
    }

    bool choose(cublasLtHandle_t handle, const Key& key, const std::array<uint32_t, 4>& alignments) {
        cublasLtMatmulPreferenceOpaque_t preference;
        CHECK_LT(cublasLtMatmulPreferenceInit(&preference));
        const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
            CHECK_LT(cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof value));
        };
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(key.workspace));
        // In fp32 and in a pass of its own: neither sums of rounded parts nor an order that varies.
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
               static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments[0]);
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments[1]);
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments[2]);
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments[3]);
        cublasLtMatmulHeuristicResult_t found{};
        int count = 0;
        const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
            handle, &operation, &first, &second, &addend, &result, &preference, 1, &found, &count);
        if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return false;
        check(status, "cublasLtMatmulAlgoGetHeuristic");
        if (count == 0 || found.state != CUBLAS_STATUS_SUCCESS) return false;
        algorithm = found.algo;
        workspace = static_cast<int64_t>(found.workspaceSize);
        return true;
    }
};

}  // namespace

struct CublasLt::Impl {
    cublasLtHandle_t handle = nullptr;
    std::unordered_map<Key, Plan, KeyHash> plans;
};

CublasLt::CublasLt(int device) : impl_(std::make_unique<Impl>()) {
    int current = 0;
    const bool switched = cudaGetDevice(&current) == cudaSuccess && current != device;
    if (switched) cudaSetDevice(device);
    const cublasStatus_t status = cublasLtCreate(&impl_->handle);
    if (switched) cudaSetDevice(current);
    check(status, "cublasLtCreate");
}

CublasLt::~CublasLt() {
    if (impl_->handle) cublasLtDestroy(impl_->handle);
}

void CublasLt::run(const GemmCase& p, void* workspace, int64_t workspace_bytes, void* stream) {
    const Key key = key_of(p, workspace ? workspace_bytes : 0);
    auto found = impl_->plans.find(key);
    if (found == impl_->plans.end()) found = impl_->plans.emplace(key, Plan(impl_->handle, p, key)).first;
    Plan& plan = found->second;
    if (p.bias) plan.set_bias(p.bias);
    const void* addend = p.beta != 0.0f ? p.c.data : p.out.data;
    const cublasStatus_t status =
        cublasLtMatmul(impl_->handle, &plan.operation, &p.alpha, p.b.data, &plan.first, p.a.data,
                       &plan.second, &p.beta, addend, &plan.addend, p.out.data, &plan.result, &plan.algorithm,
                       workspace, static_cast<size_t>(plan.workspace), static_cast<cudaStream_t>(stream));
    if (status != CUBLAS_STATUS_SUCCESS)
        throw runtime_failure(cat("cuBLASLt failed on ", describe(p), ": ", cublasLtGetStatusString(status)));
}

int64_t cublaslt_workspace(int device) {
    int major = 0;
    const cudaError_t status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (status != cudaSuccess)
        throw runtime_failure(cat("CUDA device ", device, ": ", cudaGetErrorString(status)));
    return (major >= 9 ? 32 : 8) * mebibyte;
}

}  // namespace unsloth::kernels
