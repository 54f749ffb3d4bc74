/* SPDX-License-Identifier: MIT */
/*
 * How much shared memory a GEMM kernel needs, from its constants in the kernel table: for the
 * kernel, the host that launches it, and the test that all of them fit.
 */
#ifndef DGI_GEMM_LAYOUT_H
#define DGI_GEMM_LAYOUT_H

/*
 * The kernel's shared memory, in this order: the stages' tiles of A and B, the panels in which the
 * epilogue assembles D, the stages' scales, the factors of two tiles' epilogues, the barriers.
 */
#define DGI_STAGE_BYTES(tile_m, tile_n)    (((tile_m) + (tile_n)) * 128)
/*
 * A warp's panel is 16 rows of 128 bytes. A warp has as many as make up its part of a 16-bit tile:
 * then it waits only for what it wrote a tile before.
 */
#define DGI_PANEL_BYTES                    (16 * 128)
#define DGI_PANELS(tile_m, tile_n, groups) ((tile_m) / (groups) / 64 * (((tile_n) + 63) / 64))
/*
 * Scales of one stage, for each part of K that is promoted: one a row and one a span of columns,
 * rounded up to an even number; or one for each block of `rows` rows and each span.
 */
#define DGI_STAGE_SCALES(tile_m, tile_n, promote_k, span, rows)                                    \
    ((span) == 0  ? 0                                                                              \
     : (rows) > 1 ? 128 / (promote_k) * ((tile_m) / (rows)) * ((tile_n) / ((span) + !(span)))      \
                  : 128 / (promote_k) * ((tile_m) + ((tile_n) / ((span) + !(span)) + 1) / 2 * 2))
/* Rows of a box of A in grouped kernels. */
#define DGI_RAGGED_BOX 32

#define DGI_FACTORS(tile_m, tile_n) ((tile_m) + 2 * (tile_n))
#define DGI_FACTOR_SETS             2
#define DGI_SHARED_BYTES(tile_m, tile_n, groups, stages, promote_k, span, rows)                    \
    ((stages)*DGI_STAGE_BYTES(tile_m, tile_n) +                                                    \
     (groups)*4 * DGI_PANELS(tile_m, tile_n, groups) * DGI_PANEL_BYTES +                           \
     ((stages)*DGI_STAGE_SCALES(tile_m, tile_n, promote_k, span, rows) +                           \
      DGI_FACTOR_SETS * DGI_FACTORS(tile_m, tile_n)) *                                             \
         4 +                                                                                       \
     2 * ((stages) + DGI_FACTOR_SETS) * 8)

/* What a CTA can have on compute capability 9.0. */
#define DGI_SHARED_LIMIT 232448
/* The same for two CTAs on one multiprocessor. */
#define DGI_SHARED_HALF  (DGI_SHARED_LIMIT / 2 - 512)

#endif
