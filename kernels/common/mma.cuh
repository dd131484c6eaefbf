// Tensor-core instructions and the moves of their operands. Layouts: PTX ISA, "Matrix Fragments for mma.m16n8k16",
// "ldmatrix", "Asynchronous Warpgroup Level Matrix Instructions".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace unsloth::kernels {

// ---- ldmatrix, stmatrix (sm_90): four 8 x 8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void stmatrix_x4(uint32_t address, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

// ---- mma.sync (sm_80)

/// d[16 x 8] += a[16 x 16] b[16 x 8], fp32 sums; T: bf16 or f16.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                            uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// d[16 x 8] += a[16 x 32] b[32 x 8] of int8, int32 sums; a lane's registers hold the same bytes of rows as those of
/// mma_m16n8k16.
__device__ __forceinline__ void mma_m16n8k32(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Of half as many: d[16 x 8] += a[16 x 16] b[16 x 8] of int8, with the first half of those registers.
__device__ __forceinline__ void mma_m16n8k16_int8(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a0), "r"(a1), "r"(b0));
}

// ---- wgmma (sm_90a): issued by the 128 threads of a warpgroup, asynchronous

/// Before the first wgmma after registers or shared memory were touched.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until at most `Pending` groups are unfinished.
template <int Pending>
__device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
/// Keeps the compiler from moving uses of the accumulators across this place: it does not know that wgmma writes them
/// later.
template <int Count>
__device__ __forceinline__ void fence_accumulators(float (&d)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int Count>
__device__ __forceinline__ void fence_accumulators(int (&d)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

/// Descriptor of a K-major operand in shared memory: rows of 32, 64 or 128 bytes, swizzled by as many, 8 rows after
/// one another. Along K one advances by adding bytes / 16 (2 for one instruction's 32 bytes). `address` is a multiple
/// of 8 rows.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address, uint32_t row_bytes) {
    const uint64_t swizzle = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
    const uint64_t eight_rows = row_bytes * 8 / 16, leading = 1;
    return swizzle << 62 | eight_rows << 32 | leading << 16 | (address & 0x3FFFF) >> 4;
}

// Operand numbers of N accumulators, and the accumulators.
#define UNSLOTH_NUMBERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define UNSLOTH_NUMBERS_16 UNSLOTH_NUMBERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define UNSLOTH_NUMBERS_32 \
    UNSLOTH_NUMBERS_16     \
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
#define UNSLOTH_D16_AT(i) UNSLOTH_D4(i), UNSLOTH_D4(i + 4), UNSLOTH_D4(i + 8), UNSLOTH_D4(i + 12)
#define UNSLOTH_D8 UNSLOTH_D4(0), UNSLOTH_D4(4)
#define UNSLOTH_D16 UNSLOTH_D16_AT(0)
#define UNSLOTH_D32_AT(i) UNSLOTH_D16_AT(i), UNSLOTH_D16_AT(i + 16)
#define UNSLOTH_D32 UNSLOTH_D32_AT(0)
#define UNSLOTH_D64 UNSLOTH_D32, UNSLOTH_D32_AT(32)
#define UNSLOTH_D96 UNSLOTH_D64, UNSLOTH_D32_AT(64)
#define UNSLOTH_D128 UNSLOTH_D96, UNSLOTH_D32_AT(96)

/// d[64 x N] (+)= a[64 x K] b[N x K]ᵀ, K = 32 bytes; d has N / 2 registers a thread and is overwritten unless
/// `accumulate`. Thread t of the warpgroup holds, in d[4j..4j+3], columns 8j + 2 (t % 4) + {0, 1} of rows 16 (t / 32) +
/// t % 32 / 4 and that + 8. Operands are in shared memory ("s": a descriptor) or registers ("r": mma_m16n8k16's A
/// operand of each warp's 16 rows).
template <int N>
struct Wgmma;

#define UNSLOTH_WGMMA(n, registers, o0, o1, o2, o3, o4, o5)                                                           \
    template <>                                                                                                       \
    struct Wgmma<n> {                                                                                                 \
        static __device__ __forceinline__ void e4m3_ss(float (&d)[registers], uint64_t a, uint64_t b,                 \
                                                       int accumulate) {                                              \
            asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, " o2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n    \
                         "k32.f32.e4m3.e4m3 {" UNSLOTH_NUMBERS_##registers "}, " o0 ", " o1 ", more, 1, 1;\n}"        \
                         : UNSLOTH_D##registers                                                                       \
                         : "l"(a), "l"(b), "r"(accumulate));                                                          \
        }                                                                                                             \
        /* always accumulates */                                                                                      \
        static __device__ __forceinline__ void bf16_ss(float (&d)[registers], uint64_t a, uint64_t b) {               \
            asm volatile("{\n.reg .pred more;\nsetp.eq.u32 more, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" #n         \
                         "k16.f32.bf16.bf16 {" UNSLOTH_NUMBERS_##registers "}, " o0 ", " o1 ", more, 1, 1, 0, 0;\n}"  \
                         : UNSLOTH_D##registers                                                                       \
                         : "l"(a), "l"(b));                                                                           \
        }                                                                                                             \
        static __device__ __forceinline__ void bf16_rs(float (&d)[registers], const uint32_t* a, uint64_t b,          \
                                                       int accumulate) {                                              \
            asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, " o5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n    \
                         "k16.f32.bf16.bf16 {" UNSLOTH_NUMBERS_##registers "}, {" o0 ", " o1 ", " o2 ", " o3 "}, " o4 \
                                                                           ", more, 1, 1, 0;\n}"                      \
                         : UNSLOTH_D##registers                                                                       \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                      \
        }                                                                                                             \
    };

UNSLOTH_WGMMA(16, 8, "%8", "%9", "%10", "%11", "%12", "%13")
UNSLOTH_WGMMA(32, 16, "%16", "%17", "%18", "%19", "%20", "%21")
UNSLOTH_WGMMA(64, 32, "%32", "%33", "%34", "%35", "%36", "%37")
UNSLOTH_WGMMA(128, 64, "%64", "%65", "%66", "%67", "%68", "%69")
UNSLOTH_WGMMA(192, 96, "%96", "%97", "%98", "%99", "%100", "%101")
UNSLOTH_WGMMA(256, 128, "%128", "%129", "%130", "%131", "%132", "%133")

// The same of int8 operands, whose sums are int32.
#define UNSLOTH_I4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define UNSLOTH_I16(i) UNSLOTH_I4(i), UNSLOTH_I4(i + 4), UNSLOTH_I4(i + 8), UNSLOTH_I4(i + 12)
#define UNSLOTH_I64 UNSLOTH_I16(0), UNSLOTH_I16(16), UNSLOTH_I16(32), UNSLOTH_I16(48)
#define UNSLOTH_I96 UNSLOTH_I64, UNSLOTH_I16(64), UNSLOTH_I16(80)

template <int N>
struct WgmmaInt8;

#define UNSLOTH_WGMMA_INT8(n, registers, o0, o1, o2)                                                               \
    template <>                                                                                                    \
    struct WgmmaInt8<n> {                                                                                          \
        static __device__ __forceinline__ void ss(int (&d)[registers], uint64_t a, uint64_t b, int accumulate) {   \
            asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, " o2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n \
                         "k32.s32.s8.s8 {" UNSLOTH_NUMBERS_##registers "}, " o0 ", " o1 ", more;\n}"               \
                         : UNSLOTH_I##registers                                                                    \
                         : "l"(a), "l"(b), "r"(accumulate));                                                       \
        }                                                                                                          \
    };

UNSLOTH_WGMMA_INT8(128, 64, "%64", "%65", "%66")
UNSLOTH_WGMMA_INT8(192, 96, "%96", "%97", "%98")

#undef UNSLOTH_WGMMA
#undef UNSLOTH_WGMMA_INT8
#undef UNSLOTH_I16
#undef UNSLOTH_I4
#undef UNSLOTH_I64
#undef UNSLOTH_I96
#undef UNSLOTH_D128
#undef UNSLOTH_D16
#undef UNSLOTH_D16_AT
#undef UNSLOTH_D32
#undef UNSLOTH_D32_AT
#undef UNSLOTH_D4
#undef UNSLOTH_D64
#undef UNSLOTH_D8
#undef UNSLOTH_D96
#undef UNSLOTH_NUMBERS_128
#undef UNSLOTH_NUMBERS_16
#undef UNSLOTH_NUMBERS_32
#undef UNSLOTH_NUMBERS_64
#undef UNSLOTH_NUMBERS_8
#undef UNSLOTH_NUMBERS_96

}  // namespace unsloth::kernels
