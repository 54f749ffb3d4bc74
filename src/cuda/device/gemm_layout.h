/* SPDX-License-Identifier: MIT */
/*
 * How much shared memory a GEMM kernel needs, from its constants in the kernel table: for the
 * kernel, the host that launches it, and the test that all of them fit.
 */
#ifndef DGI_GEMM_LAYOUT_H
#define DGI_GEMM_LAYOUT_H

/*
 * The kernel's shared memory, in this order: the stages' tiles of A and B, the panels in which the
 * epilogue assembles D, the stages' scales, the factors of the epilogue, the barriers.
 */
#define DGI_STAGE_BYTES(tile_m, tile_n) (((tile_m) + (tile_n)) * 128)
#define DGI_PANEL_BYTES                 (64 * 128) /* 64 rows of 64 16-bit elements */
/*
 * Scales of one stage: for each part of K that is promoted, one a row and one a span of columns. A
 * single span's scale is multiplied into those of the rows.
 */
#define DGI_STAGE_SCALES(tile_m, tile_n, promote_k, span)                                          \
    ((span) == 0 ? 0                                                                               \
                 : 128 / (promote_k) *                                                             \
                       ((tile_m) + ((span) < (tile_n) ? (tile_n) / ((span) + !(span)) : 0)))
#define DGI_FACTORS(tile_m, tile_n) ((tile_m) + 2 * (tile_n))
#define DGI_SHARED_BYTES(tile_m, tile_n, groups, panels, stages, promote_k, span)                  \
    ((stages)*DGI_STAGE_BYTES(tile_m, tile_n) + (groups) * (panels)*DGI_PANEL_BYTES +              \
     ((stages)*DGI_STAGE_SCALES(tile_m, tile_n, promote_k, span) + DGI_FACTORS(tile_m, tile_n)) *  \
         4 +                                                                                       \
     (2 * (stages) + 2) * 8)

/* What a CTA can have on compute capability 9.0. */
#define DGI_SHARED_LIMIT 232448

#endif
