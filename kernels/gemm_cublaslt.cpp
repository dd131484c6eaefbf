#include "kernels/gemm_cublaslt.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "kernels/common/byte_key.h"
#include "kernels/common/launch.h"
#include "kernels/gemm_plan.h"

namespace unsloth::kernels {
namespace {

/// Everything that a choice of algorithm may depend on.
struct Key {
    int64_t m, n, k, lda, ldb, ldc, ldd, workspace;
    uint32_t align_a, align_b, align_c, align_d;
    uint32_t flags;       ///< types, transposes, bias, in-place accumulation
    uint32_t unused = 0;  // the key is compared and hashed as bytes: no padding may remain
};
static_assert(std::has_unique_object_representations_v<Key>, "padding would be compared");

Key key_of(const GemmCase& p, int64_t workspace_bytes) {
    const bool accumulates = p.beta != 0.0f;
    Key key{.m = p.m,
            .n = p.n,
            .k = p.k,
            .lda = p.a.row_stride,
            .ldb = p.b.row_stride,
            .ldc = accumulates ? p.c.row_stride : p.out.row_stride,
            .ldd = p.out.row_stride,
            .workspace = std::min(workspace_bytes, most_gemm_workspace),
            .align_a = gemm_alignment(p.a.data),
            .align_b = gemm_alignment(p.b.data),
            .align_c = gemm_alignment(accumulates ? p.c.data : p.out.data),
            .align_d = gemm_alignment(p.out.data),
            .flags = 0};
    key.flags = static_cast<uint32_t>(p.input_type) | static_cast<uint32_t>(p.output_type) << 4 |
                uint32_t{p.a.transpose} << 8 | uint32_t{p.b.transpose} << 9 | uint32_t{p.bias != nullptr} << 10 |
                uint32_t{accumulates} << 11;
    return key;
}

}  // namespace

struct CublasLt::Impl {
    cublasLtHandle_t handle = nullptr;
    std::shared_ptr<const spec::KernelTable> table;
    std::unordered_map<Key, GemmPlan, ByteHash<Key>, ByteEqual<Key>> plans;
};

CublasLt::CublasLt(int device, std::shared_ptr<const spec::KernelTable> table) : impl_(std::make_unique<Impl>()) {
    impl_->table = std::move(table);
    impl_->handle = create_cublaslt(device);
}

CublasLt::~CublasLt() {
    if (impl_->handle) cublasLtDestroy(impl_->handle);
}

void CublasLt::run(const GemmCase& p, void* workspace, int64_t workspace_bytes, void* stream) {
    const Key key = key_of(p, workspace ? workspace_bytes : 0);
    auto found = impl_->plans.find(key);
    if (found == impl_->plans.end())
        found = impl_->plans.emplace(key, GemmPlan(impl_->handle, *impl_->table, p, key.workspace)).first;
    found->second.run(impl_->handle, p, workspace, static_cast<cudaStream_t>(stream));
}

int64_t cublaslt_workspace(int device) {
    int major = 0;
    UNSLOTH_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major >= 9 ? most_gemm_workspace : most_gemm_workspace / 4;
}

}  // namespace unsloth::kernels
