/* SPDX-License-Identifier: MIT */
/*
 * One GEMM at work on the CPU and what its micro-kernels read: A decoded, B packed, scales spread
 * out, all fetched ahead of use. Called by the driver, gemm.c.
 */
#ifndef DGI_CPU_OPERANDS_H
#define DGI_CPU_OPERANDS_H

#include "cpu/cpu.h"

/*
 * Byte offsets into the workspace: copies of decoded A (one, or one for each thread), then each
 * thread's scratch memory; and within these.
 */
typedef struct dgi_cpu_layout {
    bool own_a;
    size_t scale_a, a_bytes, threads, total;
    size_t decoded, scale_b, sums, thread_bytes;
} dgi_cpu_layout;

typedef struct dgi_cpu_job {
    const dg_gemm *gemm;
    const dgi_cpu_kernel *kernel;
    dgi_cpu_plan plan;
    dgi_cpu_layout at;
    /* B: packed panels of `lines` lines, or else rows `ldb` apart. */
    const uint8_t *b;
    bool packed;
    int64_t lines, ldb;
    dg_dtype b_dtype;
    dg_scale scale_b;
    /* The rows of A in work: decoded, block by block of K, and their scales [segment][row]. */
    int64_t first_row, rows;
    char *a;
    float *scale_a;
    /* NULL, or for each row of the product the row of A that it reads, of D that it writes. */
    const int32_t *gather, *scatter;
} dgi_cpu_job;

/*
 * For grouped.c, which divides many products among the threads itself. The job of `rows` rows for
 * that many threads; and a piece of one made for a single thread: rows from `row` on by panels
 * `panel` to `end`, with job->at.total bytes of memory. Rows are at most job->plan.most_rows.
 */
dgi_cpu_job dgi_cpu_job_of(const dgi_cpu *cpu, const dg_gemm *g, int64_t rows, int32_t threads);
void dgi_cpu_compute_piece(dgi_cpu_job *job, int64_t row, int64_t rows, int64_t panel, int64_t end,
                           char *memory);

/* Decodes rows `first` to `last` of the block of rows in work, and spreads their scales. */
void dgi_cpu_decode_rows(const dgi_cpu_job *job, int64_t first, int64_t last);

/* The scales of columns `first` to `last` of D at one column of the scale array. */
void dgi_cpu_spread_scales(const dg_scale *scale, int64_t first, int64_t last, int64_t column,
                           float *out);

/*
 * One block of K of `panels` panels as lines, a quad's side by side, *stride bytes apart: the
 * packed weights themselves where their lines match the segments, otherwise packed into `lines`.
 */
const uint8_t *dgi_cpu_fetch(const dgi_cpu_job *job, int64_t panel, int32_t panels,
                             const dgi_k_block *block, uint8_t *lines, int64_t *stride);

/* The bytes of B behind one block of K of some panels: `count` stripes `stride` bytes apart. */
typedef struct dgi_cpu_stripes {
    const uint8_t *from;
    int64_t stride, count, bytes;
} dgi_cpu_stripes;

dgi_cpu_stripes dgi_cpu_stripes_of(const dgi_cpu_job *job, int64_t panel, int32_t panels,
                                   const dgi_k_block *block);

/*
 * Prefetch share `index` of `shares` of some stripes, and the scales of a block of K. They are not
 * in the caller's file on purpose: gcc takes a function whose only effect is a prefetch for one
 * without any, and where it sees the body it drops the calls.
 */
void dgi_cpu_prefetch(const dgi_cpu_stripes *stripes, int64_t shares, int64_t index);
void dgi_cpu_prefetch_scales(const dg_scale *scale, int64_t first, int64_t last,
                             const dgi_k_block *block);

#endif
