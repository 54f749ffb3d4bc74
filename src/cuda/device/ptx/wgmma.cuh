/* SPDX-License-Identifier: MIT */
/*
 * The warpgroup matrix product (wgmma) for FP8: D[64,N] (+)= A[64,32] B[N,32]^T.
 *
 * A and B lie in shared memory, K-contiguous, 128 bytes to a row, with the copy engine's 128-byte
 * swizzle. DGI_A_TYPE and DGI_B_TYPE ("e4m3" or "e5m2") are set for each kernel by the build.
 *
 * Thread t of the warpgroup holds, in d[4 j + i], column 8 j + 2 (t % 4) + i % 2 of row
 * 16 (t / 32) + (t % 32) / 4 + 8 (i / 2).
 */
#pragma once
#include <stdint.h>

/* Bytes from one group of eight rows to the next, in units of 16; bits 62-63: 128-byte swizzle. */
#define WGMMA_DESCRIPTOR_FLAGS ((uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62)

/*
 * Describes an operand that begins at a shared-memory address, whose rows begin at multiples of
 * 1024 bytes. Adding n moves it by 16 n bytes.
 */
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address)
{
    return WGMMA_DESCRIPTOR_FLAGS | (uint64_t)(address >> 4);
}

/* Orders register and shared-memory accesses before the wgmmas that follow. */
__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most `Pending` committed groups are unfinished. */
template <int Pending> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/* Keeps the compiler from moving uses of an accumulator across a wgmma_fence() or wgmma_wait(). */
template <int Count> __device__ __forceinline__ void wgmma_pin(float (&d)[Count])
{
#pragma unroll
    for (int i = 0; i < Count; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* clang-format off */
#define WGMMA_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_D8(i) WGMMA_D4(i), WGMMA_D4(i + 4)
#define WGMMA_D32(i) WGMMA_D8(i), WGMMA_D8(i + 8), WGMMA_D8(i + 16), WGMMA_D8(i + 24)
#define WGMMA_R0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_R1 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_R2 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_R2_8 "%64, %65, %66, %67, %68, %69, %70, %71" /* the first 8 of R2 */
#define WGMMA_R3 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* The instruction for one N: its accumulator registers, then operands descriptor A, B, accumulate. */
#define WGMMA(N, REGISTERS, A, B, ACCUMULATE, ...)                                              \
    template <> struct wgmma<N> {                                                              \
        static __device__ __forceinline__ void run(float (&d)[N / 2], uint64_t a, uint64_t b,  \
                                                   int accumulate)                             \
        {                                                                                      \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ACCUMULATE ", 0;\n"               \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." DGI_A_TYPE          \
                         "." DGI_B_TYPE " {" REGISTERS "}, " A ", " B ", p, 1, 1;\n}"          \
                         : __VA_ARGS__ : "l"(a), "l"(b), "r"(accumulate));                     \
        }                                                                                      \
    }

template <int N> struct wgmma;
WGMMA(8, "%0, %1, %2, %3", "%4", "%5", "%6",
      WGMMA_D4(0));
WGMMA(16, "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%9", "%10",
      WGMMA_D8(0));
WGMMA(32, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15",
      "%16", "%17", "%18",
      WGMMA_D8(0), WGMMA_D8(8));
WGMMA(64, WGMMA_R0, "%32", "%33", "%34",
      WGMMA_D32(0));
WGMMA(128, WGMMA_R0 ", " WGMMA_R1, "%64", "%65", "%66",
      WGMMA_D32(0), WGMMA_D32(32));
WGMMA(144, WGMMA_R0 ", " WGMMA_R1 ", " WGMMA_R2_8, "%72", "%73", "%74",
      WGMMA_D32(0), WGMMA_D32(32), WGMMA_D8(64));
WGMMA(192, WGMMA_R0 ", " WGMMA_R1 ", " WGMMA_R2, "%96", "%97", "%98",
      WGMMA_D32(0), WGMMA_D32(32), WGMMA_D32(64));
WGMMA(256, WGMMA_R0 ", " WGMMA_R1 ", " WGMMA_R2 ", " WGMMA_R3, "%128", "%129", "%130",
      WGMMA_D32(0), WGMMA_D32(32), WGMMA_D32(64), WGMMA_D32(96));
/* clang-format on */
