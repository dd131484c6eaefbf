// What the 4-bit kernels use of Hopper beyond kernels/sm90.cuh: products whose A operand lies in registers, plain bulk
// copies, reads of another block's shared memory. sm_90a only.
#pragma once

#include "kernels/sm90.cuh"

namespace unsloth::kernels::sm90 {

/// d[64 x N] (+)= a[64 x 16] b[N x 16]ᵀ: d has N / 2 registers a thread; a: the m16n8k16 operand of each
/// warp's 16 rows. Without `accumulate` d is overwritten. Asynchronous: see products_begin, _commit, _wait.
template <int N>
struct RegisterProduct;

#define UNSLOTH_NUMBERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define UNSLOTH_NUMBERS_16 UNSLOTH_NUMBERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define UNSLOTH_D8 UNSLOTH_D4(0), UNSLOTH_D4(4)
#define UNSLOTH_D16_ALL UNSLOTH_D16(0)
#define UNSLOTH_REGISTER_PRODUCT(columns, registers, numbers, results, a_at, b_at, more_at)                           \
    template <>                                                                                                       \
    struct RegisterProduct<columns> {                                                                                 \
        static __device__ __forceinline__ void multiply(float (&d)[registers], const uint32_t* a, uint64_t b,         \
                                                        int accumulate) {                                             \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " more_at                                                  \
                         ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" numbers "}, {" a_at \
                         "}, " b_at ", p, 1, 1, 0;\n}\n"                                                              \
                         : results                                                                                    \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                      \
        }                                                                                                             \
    };

UNSLOTH_REGISTER_PRODUCT(16, 8, UNSLOTH_NUMBERS_8, UNSLOTH_D8, "%8, %9, %10, %11", "%12", "%13")
UNSLOTH_REGISTER_PRODUCT(32, 16, UNSLOTH_NUMBERS_16, UNSLOTH_D16_ALL, "%16, %17, %18, %19", "%20", "%21")
UNSLOTH_REGISTER_PRODUCT(64, 32, UNSLOTH_NUMBERS_32, UNSLOTH_D32, "%32, %33, %34, %35", "%36", "%37")
UNSLOTH_REGISTER_PRODUCT(128, 64, UNSLOTH_NUMBERS_64, UNSLOTH_D64, "%64, %65, %66, %67", "%68", "%69")
UNSLOTH_REGISTER_PRODUCT(256, 128, UNSLOTH_NUMBERS_128, UNSLOTH_D128, "%128, %129, %130, %131", "%132", "%133")

#undef UNSLOTH_REGISTER_PRODUCT
#undef UNSLOTH_D16_ALL
#undef UNSLOTH_D8
#undef UNSLOTH_NUMBERS_16
#undef UNSLOTH_NUMBERS_8

/// A barrier of `threads` threads of the block; `index` 1..15.
__device__ __forceinline__ void named_barrier(int index, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(index), "r"(threads) : "memory");
}

/// `bytes` and both addresses are multiples of 16.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/// cluster_sync without ordering memory: for a block that must not end while others read it.
__device__ __forceinline__ void cluster_barrier_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/// The same shared-memory place in another block of the cluster.
__device__ __forceinline__ uint32_t in_block(uint32_t shared_address, uint32_t rank) {
    uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address), "r"(rank));
    return address;
}
__device__ __forceinline__ float4 load_cluster(uint32_t address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

}  // namespace unsloth::kernels::sm90
