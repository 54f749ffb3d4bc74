/* SPDX-License-Identifier: MIT */
/*
 * How the CPU backend cuts a GEMM up: K into segments of constant scales, N into panels, the whole
 * into parts for threads. Pure arithmetic, called by src/cpu/ and tested on its own.
 */
#ifndef DGI_CPU_PLAN_H
#define DGI_CPU_PLAN_H

#include "core/ceil_div.h"
#include "deepgemm.h"

enum {
    DGI_PANEL = 16,                           /* columns of D (rows of B) in a panel             */
    DGI_QUAD = 4,                             /* elements of K in one line of a panel            */
    DGI_STRIP = 4,                            /* panels that packed weights interleave          */
    DGI_LINE_BYTES = DGI_PANEL * DGI_QUAD,    /* a cache line and a 512-bit register             */
    DGI_DEPTH = 128,                          /* elements of K in a block at most                */
    DGI_BLOCK_SEGMENTS = DGI_DEPTH / DGI_QUAD /* segments in a block at most                     */
};

/*
 * A segment is a stretch of K over which neither scale changes, at most DGI_DEPTH long. A result
 * is, for each segment in turn, a fresh FP32 sum of products, scaled and added to the total; so
 * the segments, which depend on K and on the two granularities alone, fix the order of summation.
 */
typedef struct dgi_k_segment {
    int64_t k;                /* its first element                                          */
    int32_t length, quads;    /* elements; lines when padded to whole lines                 */
    int64_t scale_a, scale_b; /* columns of the scale arrays                                */
    int64_t packed_line;      /* where it begins in a panel of packed weights: in this      */
    int32_t packed_skip;      /* line, this many elements of K into it                      */
    bool whole;               /* it covers whole lines there; if not it has to be repacked  */
} dgi_k_segment;

/* Successive segments that together fit the L1 cache once decoded. */
typedef struct dgi_k_block {
    int64_t position; /* padded elements of K before it */
    int32_t depth;    /* padded elements in it          */
    int32_t count;
    dgi_k_segment segments[DGI_BLOCK_SEGMENTS];
} dgi_k_block;

/* One operand's place along K: the column of its scales and where the next one begins. */
typedef struct dgi_scale_walk {
    int64_t column, next;
    int32_t block;
} dgi_scale_walk;

typedef struct dgi_k_walk {
    int64_t k, size, position;
    int64_t run, run_line; /* start of B's current scale along K, and its line in packed weights */
    dgi_scale_walk a, b;
} dgi_k_walk;

/* Walks K block by block: begin, then next until it returns false. */
dgi_k_walk dgi_k_begin(int64_t k, const dg_scale *scale_a, const dg_scale *scale_b);
bool dgi_k_next(dgi_k_walk *walk, dgi_k_block *block);

/* Lines in one panel of packed weights: each of B's scale blocks padded to whole lines. */
int64_t dgi_packed_lines(int64_t k, const dg_scale *scale_b);

/*
 * Byte offset of a line of a panel in packed weights of `panels` panels of `lines` lines, and the
 * distance between lines of that panel.
 */
int64_t dgi_packed_offset(int64_t panels, int64_t lines, int64_t panel, int64_t line,
                          int64_t *stride);

/* Where share `index` of `count` things dealt evenly to `shares` begins; index may be `shares`. */
static inline int64_t dgi_share(int64_t count, int64_t shares, int64_t index)
{
    int64_t rest = count % shares;
    return count / shares * index + (index < rest ? index : rest);
}

/* What the planner must know of a kernel. */
typedef struct dgi_cpu_tiling {
    int32_t tile_rows, tile_panels; /* of one call of the micro-kernel                      */
    int32_t element_bytes;          /* of a decoded element                                 */
    bool has_direct;                /* it can multiply packed codes without decoding first  */
} dgi_cpu_tiling;

typedef struct dgi_cpu_plan {
    int64_t m, n, k;
    int64_t panels;           /* of N                                                        */
    int64_t depth, segments;  /* of K, padded                                                */
    int64_t most_rows;        /* of A that may be decoded at a time                          */
    int64_t block_rows;       /* rows that are: M in even blocks                             */
    int32_t threads;          /* at most                                                     */
    int32_t parts_m, parts_n; /* parts of a row block that threads compute independently     */
    int32_t tile_rows, tile_panels;
    int32_t element_bytes;
    bool direct; /* decode B in registers rather than into the L1 cache                      */
} dgi_cpu_plan;

dgi_cpu_plan dgi_cpu_plan_make(int64_t m, int64_t n, int64_t k, const dg_scale *scale_a,
                               const dg_scale *scale_b, const dgi_cpu_tiling *tiling,
                               int32_t threads);

#endif
