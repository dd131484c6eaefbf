// Hopper's own instructions as functions: transaction barriers, bulk tensor copies, warpgroup matrix
// products, register hand-over. Each is one PTX instruction or a loop around one; the PTX ISA manual
// ("Asynchronous copies", "mbarrier", "wgmma") says what they promise. sm_90a only.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace unsloth::kernels::sm90 {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// This block's number within its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/// All threads of all blocks of the cluster meet; shared memory writes before it are seen after it.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

template <int Registers>
__device__ __forceinline__ void grow_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void shrink_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

// ---- transaction barriers: an address in shared memory, 8 bytes

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// After the inits, before another block or the copy engine uses the barriers.
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// One arrival, and `bytes` more that copies must bring before the phase ends.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/// One arrival.
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// One arrival at the barrier that lies at the same address in block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive(uint32_t barrier, uint32_t rank) {
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
        "r"(rank)
        : "memory");
}

/// Waits until the phase of this parity has ended.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// ---- bulk tensor copies into shared memory; elements outside the tensor arrive as zeros

__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// The box at (column, row) of a 2-D tensor; its bytes count at `barrier`.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(column), "r"(row)
        : "memory");
}

/// The same, to this shared address in every block of the cluster that `blocks` has a bit for; counts at each
/// one's barrier.
__device__ __forceinline__ void copy_box_to_cluster(uint32_t to, const CUtensorMap& map, int column, int row,
                                                    uint32_t barrier, uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(column), "r"(row), "h"(blocks)
        : "memory");
}

/// A box of a 1-D tensor.
__device__ __forceinline__ void copy_row(uint32_t to, const CUtensorMap& map, int column, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3}], "
        "[%2];" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(column)
        : "memory");
}

/// The box at (column, row) from shared memory; what lies outside the tensor is not written. Ends with
/// bulk_stores_*.
__device__ __forceinline__ void store_box(const CUtensorMap& map, int column, int row, uint32_t from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(column),
                 "r"(row), "r"(from)
                 : "memory");
}
/// Of this thread: all stores up to here have read their shared memory.
__device__ __forceinline__ void stores_wait_read() {
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}

/// By each thread that wrote shared memory which the copy engine reads next, before it says so at a barrier.
__device__ __forceinline__ void written_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Four 8 x 8 blocks of 16-bit words; lane l names row l % 8 of block l / 8.
__device__ __forceinline__ void store_blocks(uint32_t address, const uint32_t (&w)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(w[0]),
                 "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}
__device__ __forceinline__ void load_blocks(uint32_t address, uint32_t (&w)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(address)
                 : "memory");
}

// ---- warpgroup matrix products

/// A K-major operand in shared memory: rows of 32, 64 or 128 bytes, swizzled by as many, 8 rows after one
/// another. Along K one advances by adding bytes / 16 (2 for one instruction's 32 bytes). `address` is a
/// multiple of 8 rows.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, uint32_t row_bytes) {
    const uint64_t swizzle = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
    const uint64_t eight_rows = row_bytes * 8 / 16, leading = 1;
    return swizzle << 62 | eight_rows << 32 | leading << 16 | (address & 0x3FFFF) >> 4;
}

/// Before the first product after registers or shared memory were touched.
__device__ __forceinline__ void products_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Ends a group of products.
__device__ __forceinline__ void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most `Pending` groups are unfinished.
template <int Pending>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/// Keeps the compiler from moving uses of the accumulators across this place.
template <int Count>
__device__ __forceinline__ void pin(float (&d)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// The accumulators' operand numbers, and the accumulators.
#define UNSLOTH_NUMBERS_32                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define UNSLOTH_NUMBERS_64                                                             \
    UNSLOTH_NUMBERS_32                                                                 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define UNSLOTH_NUMBERS_96                                                             \
    UNSLOTH_NUMBERS_64                                                                 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define UNSLOTH_NUMBERS_128                                                                        \
    UNSLOTH_NUMBERS_96                                                                             \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define UNSLOTH_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define UNSLOTH_D16(i) UNSLOTH_D4(i), UNSLOTH_D4(i + 4), UNSLOTH_D4(i + 8), UNSLOTH_D4(i + 12)
#define UNSLOTH_FROM(i) UNSLOTH_D16(i), UNSLOTH_D16(i + 16)
#define UNSLOTH_D32 UNSLOTH_FROM(0)
#define UNSLOTH_D64 UNSLOTH_D32, UNSLOTH_FROM(32)
#define UNSLOTH_D96 UNSLOTH_D64, UNSLOTH_FROM(64)
#define UNSLOTH_D128 UNSLOTH_D96, UNSLOTH_FROM(96)

/// d[64 x Columns] = a b^T (+ d when `accumulate`), one instruction deep in K. Issued by 128 threads,
/// asynchronous. Thread t of the group holds, in d[4j..4j+3], columns 8j + 2 (t % 4) + {0, 1} of rows 16 (t /
/// 32) + t % 32 / 4 and that + 8.
template <int Columns>
struct Product;

#define UNSLOTH_PRODUCT(columns, registers, a_at, b_at, more_at)                                                     \
    template <>                                                                                                      \
    struct Product<columns> {                                                                                        \
        /* K = 32 */                                                                                                 \
        static __device__ __forceinline__ void e4m3(float (&d)[registers], uint64_t a, uint64_t b, int accumulate) { \
            asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, " more_at                                           \
                         ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns                                          \
                         "k32.f32.e4m3.e4m3 {" UNSLOTH_NUMBERS_##registers "}, " a_at ", " b_at ", more, 1, 1;\n}"   \
                         : UNSLOTH_D##registers                                                                      \
                         : "l"(a), "l"(b), "r"(accumulate));                                                         \
        }                                                                                                            \
        /* K = 16, always accumulates */                                                                             \
        static __device__ __forceinline__ void bf16(float (&d)[registers], uint64_t a, uint64_t b) {                 \
            asm volatile(                                                                                            \
                "{\n.reg .pred more;\nsetp.eq.u32 more, 0, 0;\n"                                                     \
                "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" UNSLOTH_NUMBERS_##registers       \
                "}, " a_at ", " b_at ", more, 1, 1, 0, 0;\n}"                                                        \
                : UNSLOTH_D##registers                                                                               \
                : "l"(a), "l"(b));                                                                                   \
        }                                                                                                            \
    };

UNSLOTH_PRODUCT(64, 32, "%32", "%33", "%34")
UNSLOTH_PRODUCT(128, 64, "%64", "%65", "%66")
UNSLOTH_PRODUCT(192, 96, "%96", "%97", "%98")
UNSLOTH_PRODUCT(256, 128, "%128", "%129", "%130")

#undef UNSLOTH_PRODUCT

}  // namespace unsloth::kernels::sm90
