/* SPDX-License-Identifier: MIT */
/*
 * The contract between the driver (gemm.c) and the micro-kernels (gemm_<isa>.c).
 *
 * Packed weights, the same for every instruction set: a panel holds DGI_PANEL (16) rows of B. Each
 * quad of K of it is one 64-byte line; element (n, k) of that is byte
 * 16 * (n / 4) + 8 * (k / 2) + 2 * (n % 4) + k % 2. Missing rows and elements are zero codes. The
 * lines of DGI_STRIP panels take turns, so that a kernel that works on all of them reads one
 * stream; see dgi_packed_offset().
 *
 * Decoded operands have elements of the kernel's own type (BF16 or FP32). Decoded A is rows,
 * contiguous along K. Decoded B has, for each step of K, one 64-byte vector for each panel of the
 * tile: 16 columns of one k in FP32, of a pair of k in BF16.
 */
#ifndef DGI_CPU_KERNEL_H
#define DGI_CPU_KERNEL_H

#include "backend.h"
#include "core/cpu_plan.h"

/* One call of a micro-kernel: `rows` x `panels` sums over one block of K. */
typedef struct dgi_cpu_tile {
    int32_t rows, panels;
    int32_t segments;
    const dgi_k_segment *segment;
    const void *a; /* decoded rows, a_stride bytes apart */
    int64_t a_stride;
    const void *b;        /* decoded panels; for `direct` lines of packed ones, side by side */
    int64_t b_stride;     /* packed only: bytes from the lines of one quad to the next's      */
    dg_dtype b_dtype;     /* packed only                                                      */
    const float *scale_a; /* [segment][row], scale_a_stride floats between segments */
    int64_t scale_a_stride;
    const float *scale_b; /* [segment][panels * DGI_PANEL] */
    float *sums;          /* [row][panels * DGI_PANEL], sums_stride floats between rows */
    int64_t sums_stride;
} dgi_cpu_tile;

/* A rectangle of finished sums on its way to D. */
typedef struct dgi_cpu_result {
    const dg_gemm *gemm;
    int64_t row, col; /* of its first element in D */
    int64_t rows, cols;
    const float *sums;
    int64_t sums_stride;
} dgi_cpu_result;

typedef struct dgi_cpu_kernel {
    int32_t element_bytes; /* of a decoded element */

    /* Decodes a row of A; the tail up to a whole quad becomes zero. */
    void (*decode_a)(const uint8_t *codes, dg_dtype dtype, int64_t count, void *out);

    /* Packs up to 16 rows of B, `length` elements of each, into lines `stride` bytes apart. */
    void (*pack)(const uint8_t *codes, int64_t ld, int64_t rows, int64_t length, uint8_t *lines,
                 int64_t stride);

    /* Decodes `quads` lines of each of `panels` panels; a quad's lines lie side by side. */
    void (*decode_b)(const uint8_t *lines, int64_t stride, dg_dtype dtype, int32_t panels,
                     int32_t quads, void *out);

    /*
     * For each segment: a fresh sum of products in the order of K (padded to whole quads), then
     * sums = fma(sum * scale_a, scale_b, sums). The generic kernel multiplies and adds.
     */
    void (*tile)(const dgi_cpu_tile *tile);

    /* The same from packed panels, decoding in registers. NULL: the kernel has none. */
    void (*direct)(const dgi_cpu_tile *tile);

    /* D = alpha * sums + beta * C + bias, narrowed as core/formats.h says. */
    void (*finish)(const dgi_cpu_result *result);
} dgi_cpu_kernel;

extern const dgi_cpu_kernel dgi_gemm_generic, dgi_gemm_avx2, dgi_gemm_avx512, dgi_gemm_avx512_bf16;

#endif
