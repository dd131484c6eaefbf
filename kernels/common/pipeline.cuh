// mbarriers (sm_90) and the place in a ring of stages. An mbarrier is 8 bytes of shared memory, named by its address
// (shared_address). A phase of it ends when all arrivals and all announced bytes have come; waiting names the phase by
// its parity.
#pragma once

#include <cstdint>

#include "kernels/common/delay_injection.cuh"

namespace unsloth::kernels {

__device__ __forceinline__ void mbarrier_init(uint32_t mbarrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mbarrier), "r"(arrivals) : "memory");
}
/// After the inits, before TMA or another block of the cluster uses them.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t mbarrier) {
    delay_injection();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mbarrier) : "memory");
}
/// At the mbarrier at the same address in block `rank` of the cluster.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t mbarrier, uint32_t rank) {
    delay_injection();
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(mbarrier),
        "r"(rank)
        : "memory");
}
/// One arrival, which announces `bytes` of TMA and bulk loads.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t mbarrier, uint32_t bytes) {
    delay_injection();
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mbarrier), "r"(bytes) : "memory");
}
/// Until the phase of this parity has ended.
__device__ __forceinline__ void mbarrier_wait(uint32_t mbarrier, uint32_t parity) {
    delay_injection();
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(mbarrier),
        "r"(parity)
        : "memory");
    delay_injection();
}

/// A stage of a ring, and the parity of its current round. Consumers wait for a stage's `full` mbarrier with `phase`,
/// the producer for its `empty` one with phase ^ 1: the first round then finds every stage empty.
struct PipelineState {
    int stage = 0;
    uint32_t phase = 0;

    __device__ __forceinline__ void advance(int stages) {
        if (++stage == stages) stage = 0, phase ^= 1;
    }
};

}  // namespace unsloth::kernels
