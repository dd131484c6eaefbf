// PTX instructions that CUDA C++ has no function for: one instruction a function, named after it. What they promise:
// PTX ISA ("Data Movement and Conversion Instructions", "Parallel Synchronization and Communication Instructions").
// Nothing here is guarded by architecture: a kernel that needs sm_90 or sm_90a guards its body.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/common/delay_injection.cuh"

namespace unsloth::kernels {

/// What an instruction takes for a place in shared memory.
__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- cp.async (sm_80): a thread's own copies to shared memory, waited for by groups

__device__ __forceinline__ void cp_async_16(uint32_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/// Zeros instead when not `valid`; `from` is then not read. Whole 256-byte lines are fetched into the L2.
__device__ __forceinline__ void cp_async_16_zfill(uint32_t to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}
/// Of 16 bytes the first `bytes` (0 to 16), and zeros; `from` is not read beyond them.
__device__ __forceinline__ void cp_async_16_first(uint32_t to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async_4(uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void cp_async_commit_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `Pending` of this thread's groups are in flight.
template <int Pending>
__device__ __forceinline__ void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// ---- loads and the L2

/// Loads 16 or 8 bytes that are read only once and that no thread writes while the kernel runs.
__device__ __forceinline__ uint4 load_once_16(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
__device__ __forceinline__ uint2 load_once_8(const void* p) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
__device__ __forceinline__ void prefetch_l2(const void* p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
/// How the L2 shall treat what is read: first to be evicted, or as usual.
__device__ __forceinline__ uint64_t l2_policy(bool evict_first) {
    uint64_t policy = 0;
    if (evict_first)
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    else
        asm volatile("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// ---- TMA and bulk copies (sm_90) into shared memory: bytes count at an mbarrier (pipeline.cuh). Elements outside the
// tensor arrive as zeros.

__device__ __forceinline__ void prefetch_tensormap(const CUtensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// A box of a 1-D tensor.
__device__ __forceinline__ void tma_load_1d(uint32_t to, const CUtensorMap& map, int column, uint32_t mbarrier) {
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3}], "
        "[%2];" ::"r"(to),
        "l"(&map), "r"(mbarrier), "r"(column)
        : "memory");
}
/// The box at (column, row) of a 2-D tensor.
__device__ __forceinline__ void tma_load_2d(uint32_t to, const CUtensorMap& map, int column, int row,
                                            uint32_t mbarrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(to),
        "l"(&map), "r"(mbarrier), "r"(column), "r"(row)
        : "memory");
}
/// The same, to this shared address in every block of the cluster that `blocks` has a bit for; counts at each one's
/// mbarrier.
__device__ __forceinline__ void tma_load_2d_multicast(uint32_t to, const CUtensorMap& map, int column, int row,
                                                      uint32_t mbarrier, uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(&map), "r"(mbarrier), "r"(column), "r"(row), "h"(blocks)
        : "memory");
}
/// Plain memory; `bytes` and both addresses are multiples of 16.
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t mbarrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(mbarrier)
                 : "memory");
}
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t mbarrier,
                                          uint64_t l2_policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
        "%4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(mbarrier), "l"(l2_policy)
        : "memory");
}

/// Stores the box at (column, row) from shared memory; the part outside the tensor is not written.
__device__ __forceinline__ void tma_store_2d(const CUtensorMap& map, int column, int row, uint32_t from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(column),
                 "r"(row), "r"(from)
                 : "memory");
}
/// Until this thread's stores have read their shared memory.
__device__ __forceinline__ void tma_store_wait_read() {
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}
/// By each thread that wrote shared memory which TMA reads next, before it says so at an mbarrier.
__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- clusters of thread blocks (sm_90)

/// This block's number within its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/// All threads of all blocks of the cluster meet; shared memory written before it is seen after it.
__device__ __forceinline__ void cluster_sync() {
    delay_injection();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    delay_injection();
}
/// The same without ordering memory: for a block that must not end while others read it.
__device__ __forceinline__ void cluster_sync_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/// The same place in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ uint32_t mapa(uint32_t shared_address, uint32_t rank) {
    uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address), "r"(rank));
    return address;
}
/// `address` as mapa gives it.
__device__ __forceinline__ float4 load_shared_cluster(uint32_t address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

// ---- warp specialisation

/// By all warps of a warpgroup (sm_90a): registers a thread, up or down; their sum over the block stays the launch's.
template <int Registers>
__device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
/// __syncthreads() of `threads` threads of the block; `index` 1 to 15.
__device__ __forceinline__ void named_barrier_sync(int index, int threads) {
    delay_injection();
    asm volatile("bar.sync %0, %1;" ::"r"(index), "r"(threads) : "memory");
    delay_injection();
}
/// Counts this warp's threads among the `threads` without waiting for the others.
__device__ __forceinline__ void named_barrier_arrive(int index, int threads) {
    delay_injection();
    asm volatile("bar.arrive %0, %1;" ::"r"(index), "r"(threads) : "memory");
}

// ---- programmatic dependent launch (sm_90)

/// Whether kernels over `rows` rows use programmatic launch: those of decoding passes.
__host__ __device__ constexpr bool uses_programmatic_launch(int64_t rows) {
    return rows <= 128;
}

/// Lets the next kernel on the stream start once every block has come here, if its launch is programmatic.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/// Waits for the end of the kernel ahead on the stream and for what it wrote. A kernel that was launched
/// `after_previous` and never waits must not be: the next one's wait is for this one alone.
__device__ __forceinline__ void griddepcontrol_wait() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// Where a card has it: the kernels of a decoding pass begin before those ahead have ended, so that none's launch is
/// waited for, and products fetch weights meanwhile.
__device__ __forceinline__ void launch_dependents([[maybe_unused]] uint32_t rows) {
#if __CUDA_ARCH__ >= 900
    if (uses_programmatic_launch(rows)) griddepcontrol_launch_dependents();
#endif
}
__device__ __forceinline__ void wait_for_prerequisites() {
#if __CUDA_ARCH__ >= 900
    griddepcontrol_wait();
#endif
}
/// Both, for a kernel that can do nothing ahead.
__device__ __forceinline__ void begin_after_previous(uint32_t rows) {
    launch_dependents(rows);
    wait_for_prerequisites();
}

}  // namespace unsloth::kernels
