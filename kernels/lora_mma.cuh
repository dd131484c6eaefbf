// Device pieces of the thin products: asynchronous copies, tensor-core tiles, and clusters of blocks.
//
// Instruction layouts: PTX ISA, "Matrix Fragments for mma.m16n8k16" and "ldmatrix".
#pragma once

#include "kernels/common.h"
#include "kernels/device.cuh"

namespace unsloth::kernels::lora {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// Copies 16 bytes to shared memory without waiting; writes zeros when not `valid` (`from` is then not read).
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
/// Waits until at most `pending` of this thread's groups are under way.
template <int pending>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}

__device__ __forceinline__ void load_tiles_4(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
/// The same, each 8x8 tile transposed.
__device__ __forceinline__ void load_tiles_4_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/// c[16 x 8] += a[16 x 16] b[16 x 8], fp32 sums.
template <class T>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                        uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

inline constexpr int most_cluster = 8;

// --- clusters: blocks that run together and read each other's shared memory (sm_90)
// ------------------------------------

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define UNSLOTH_HAS_CLUSTERS 1
#else
#define UNSLOTH_HAS_CLUSTERS 0
#endif

/// Barrier of every thread of the cluster; what was written to shared memory before it can be read after it.
__device__ __forceinline__ void cluster_barrier() {
#if UNSLOTH_HAS_CLUSTERS
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
#endif
}

/// Four floats at `address` of this block's shared memory, read from block `rank` of the cluster.
__device__ __forceinline__ float4 load_from_cluster(uint32_t address, int rank) {
    float4 v = {0, 0, 0, 0};
#if UNSLOTH_HAS_CLUSTERS
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(remote) : "r"(address), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];\n"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(remote)
                 : "memory");
#endif
    return v;
}

__device__ __forceinline__ void add(float4& sum, const float4& term) {
    sum.x += term.x, sum.y += term.y, sum.z += term.z, sum.w += term.w;
}

/// A sum over the cluster's blocks in the order of their ranks: the same bits in every run. All loads are under way
/// at once.
__device__ __forceinline__ float4 cluster_sum(uint32_t address, int blocks) {
    float4 terms[most_cluster];
#pragma unroll
    for (int rank = 0; rank < most_cluster; ++rank)
        if (rank < blocks) terms[rank] = load_from_cluster(address, rank);
    float4 sum = terms[0];
#pragma unroll
    for (int rank = 1; rank < most_cluster; ++rank)
        if (rank < blocks) add(sum, terms[rank]);
    return sum;
}

/// Adds up to four neighbours of a gradient's row; `count` of them exist.
__device__ __forceinline__ void accumulate(float* to, const float4& sum, float scale, int count) {
    if (count >= 4 && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
        float4 old = *reinterpret_cast<float4*>(to);
        old.x += scale * sum.x, old.y += scale * sum.y, old.z += scale * sum.z, old.w += scale * sum.w;
        *reinterpret_cast<float4*>(to) = old;
        return;
    }
    if (count > 0) to[0] += scale * sum.x;
    if (count > 1) to[1] += scale * sum.y;
    if (count > 2) to[2] += scale * sum.z;
    if (count > 3) to[3] += scale * sum.w;
}

__device__ __forceinline__ void prefetch_l2(const void* p) {
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(p));
}

// --- memory barriers and bulk copies (sm_90)
// ----------------------------------------------------------------------------

__device__ __forceinline__ void init_barrier(uint32_t barrier, int arrivals) {
#if UNSLOTH_HAS_CLUSTERS
    asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
}
/// Makes initialised barriers known to the copy engine; a barrier of the block's threads must follow.
__device__ __forceinline__ void publish_barriers() {
#if UNSLOTH_HAS_CLUSTERS
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
#if UNSLOTH_HAS_CLUSTERS
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];\n" ::"r"(barrier) : "memory");
#endif
}
/// Arrives, and keeps the barrier's phase open until that many bytes have come.
__device__ __forceinline__ void arrive_expecting(uint32_t barrier, int bytes) {
#if UNSLOTH_HAS_CLUSTERS
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}
/// Waits for the end of the phase with this parity.
__device__ __forceinline__ void wait(uint32_t barrier, int parity) {
#if UNSLOTH_HAS_CLUSTERS
    uint32_t done = 0;
    while (done == 0)
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
#endif
}
/// Starts a copy of `bytes` (a multiple of 16, both ends aligned to 16) that reports to `barrier`.
__device__ __forceinline__ void copy_bulk(uint32_t to, const void* from, int bytes, uint32_t barrier, uint64_t policy) {
#if UNSLOTH_HAS_CLUSTERS
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
        "%4;\n" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
#endif
}
/// How the second-level cache shall treat what is read: to be dropped first, or as usual.
__device__ __forceinline__ uint64_t cache_policy(bool drop_first) {
    uint64_t policy = 0;
    if (drop_first)
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
    else
        asm volatile("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;\n" : "=l"(policy));
    return policy;
}

/// Lets a kernel that was launched with after_previous start, once every block has come here; its wait stays
/// complete.
__device__ __forceinline__ void release_next_kernel() {
#if UNSLOTH_HAS_CLUSTERS
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
/// Waits for the kernel ahead on the stream and for what it wrote.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if UNSLOTH_HAS_CLUSTERS
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// --- launches
// -----------------------------------------------------------------------------------------------------------

/// Launches `kernel(params)` with `cluster` blocks (along x) that share their shared memory. With `after_previous` it
/// may start before the kernel ahead of it on the stream ends, and waits for it by itself (griddepcontrol.wait).
template <class Params>
void launch(void (*kernel)(Params), dim3 grid, int threads, std::size_t shared_bytes, int cluster, const Params& params,
            cudaStream_t stream, bool after_previous = false) {
    UNSLOTH_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(shared_bytes)));
    cudaLaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
        ++count;
    }
    if (after_previous) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count].val.programmaticStreamSerializationAllowed = 1;
        ++count;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    UNSLOTH_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params));
}

}  // namespace unsloth::kernels::lora
