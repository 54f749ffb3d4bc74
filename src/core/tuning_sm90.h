/* SPDX-License-Identifier: MIT */
/*
 * What the planners assume of the kernels' speed: every measured constant they use, and nothing
 * else. All were measured on one H200 (132 multiprocessors, driver 580, CUDA 13.0) in short runs,
 * in which the clock is 1560 to 1800 MHz; docs/hopper-log.md and docs/decode-log.md have the runs.
 * `deepgemm tune` says by which factors they are off on another chip or after a change.
 */
#ifndef DGI_TUNING_SM90_H
#define DGI_TUNING_SM90_H

/* ---- kernels for many tokens (plan_sm90.c) ---------------------------------------------- */

/*
 * Cycles of one stage, 128 of K, of one tile: the last column of kernels_sm90.def. Where a log
 * gives the cycles C of a whole product, they are ((C - start) / rounds of tiles - tile - element *
 * elements of a tile) / stages of a tile. test_plan_sm90 holds them against the measured times.
 */
enum {
    /* 2048x8192x8192, all kernels in turn */
    DGI_FAST_128x256 = 1130,
    DGI_PRECISE_256x128 = 1175,
    DGI_PRECISE_192x128 = 880,
    DGI_PRECISE_128x128 = 650,
    DGI_BLOCK128_256x128 = 1230,
    DGI_BLOCK128_192x128 = 920,
    DGI_BLOCK128_128x128 = 700,
    DGI_COLUMN128_128x128 = 930,
    DGI_BLOCK32_128x128 = 1080,
    DGI_COLUMN32_128x128 = 2700,
    /* 4096x576x7168, a round of 64 or 96 tiles */
    DGI_PRECISE_128x192 = 920,
    DGI_PRECISE_128x144 = 740,
    DGI_BLOCK128_128x192 = 990,
    DGI_BLOCK128_128x144 = 865,
    /* against the precise ones, eight shapes */
    DGI_FAST_128x128 = 630,
    DGI_FAST_128x192 = 850,
    DGI_FAST_128x144 = 700,
};
/* Cycles until the first tile's first bytes arrive, traced inside the kernel. */
#define DGI_START_CYCLES   3000.0
/* Of a tile, and of each of its elements, from its last product to the next tile's first. */
#define DGI_TILE_CYCLES    600.0
#define DGI_ELEMENT_CYCLES 0.06

/* ---- grouped kernels (plan_grouped_sm90.c) ---------------------------------------------- */

/*
 * As above, the last column of kernels_sm90_grouped.def, of a tile with rows for all warpgroups.
 * None was measured on its own: 192x128 is a little more than the dense kernel's by the ratio that
 * 256x128 has, so that full tiles stay with that one.
 */
enum {
    DGI_GROUPED_PRECISE_64x128 = 700,
    DGI_GROUPED_PRECISE_128x128 = 700,
    DGI_GROUPED_PRECISE_192x128 = 990,
    DGI_GROUPED_BLOCK128_64x128 = 700,
    DGI_GROUPED_BLOCK128_128x128 = 750,
    DGI_GROUPED_BLOCK128_192x128 = 1040,
    DGI_GROUPED_BLOCK128_256x128 = 1380,
    DGI_GROUPED_COLUMN128_128x128 = 1020,
    DGI_GROUPED_BLOCK32_128x128 = 1370,
    DGI_GROUPED_COLUMN32_64x128 = 2700,
};
/*
 * Of a stage of 64 rows that a warpgroup multiplies alone, with nobody to hide behind. The times of
 * 32 groups of about 64 rows (docs/benchmarks.md) say 670 to 830.
 */
enum { DGI_GROUPED_ALONE = 700 };
/* Cycles of a tile beside its stages, of any size. */
#define DGI_GROUPED_TILE_CYCLES  2500.0
/*
 * Of each round of tiles beside, in a comparison with the kernels for few rows. Six of eight times
 * of 6 and 32 groups of about 20 rows are then within 4 %, two are 9 and 12 % too long; the groups
 * of about 64 rows within 4 %.
 */
#define DGI_GROUPED_ROUND_CYCLES 4200.0
/*
 * What cutting tiles along K must save the busiest cluster: it leaves the sums of two parts in
 * memory and adds up about one tile's. On an H200 savings of 26000 cycles gave a loss of 6000, of
 * 98000 a gain of 53000, by this account; and an update takes up to 10000 longer.
 */
#define DGI_GROUPED_CUT_CYCLES   40000.0
/* Bytes of B a cycle that the memory gives to all multiprocessors together. */
#define DGI_MEMORY_BYTES         2500.0

/* ---- kernels for groups with few rows (plan_grouped_few_sm90.c) -------------------------- */

/*
 * Fitted to 27 times of 6 and 32 groups of about 20 rows, four weights each, K split 1 to 8 ways
 * (docs/grouped.md): all are predicted to within 4.3 %, and the split that is chosen is within 2 %
 * of the best.
 */
#define DGI_GROUPED_FEW_START        10800.0 /* of a call: the launch, the first and the last stage */
#define DGI_GROUPED_FEW_MEMORY_BYTES 2440.0 /* of B a cycle, to all multiprocessors together */
#define DGI_GROUPED_FEW_ALONE        830.0  /* of a stage of a CTA that reads alone          */
#define DGI_GROUPED_FEW_END          3600.0 /* of a unit, divided by its stages              */
/* Bytes a cycle that L2 gives: 32 groups of about 64 rows say 2900 and 3300. */
#define DGI_GROUPED_FEW_L2_BYTES     3000.0

/* ---- kernels for few tokens (plan_decode_sm90.c) ---------------------------------------- */

/*
 * Fitted to the times of several splits of K for eight weights of 4 to 117 MB, M = 1 to 128
 * (docs/decode-log.md): the split that is chosen is within 5 % of the best. All are cycles of one
 * CTA, with a part that each token adds. In a chain of small products, which overlap, a product
 * takes down to half of what is predicted.
 */
#define DGI_FEW_STAGE_CYCLES          1000.0 /* of a stage: 128 of K, 128 rows of B         */
#define DGI_FEW_SCALED_STAGE_CYCLES   1300.0 /* the same with scales of 128 tokens           */
#define DGI_FEW_TILE_CYCLES           1200.0 /* of a tile's end, which a cluster's CTAs share */
#define DGI_FEW_TILE_TOKEN_CYCLES     40.0
#define DGI_FEW_EXCHANGE_CYCLES       1600.0 /* of each doubling of the CTAs that share a tile */
#define DGI_FEW_EXCHANGE_TOKEN_CYCLES 15.0
/*
 * Of all places for CTAs, the part that clusters of 4 and more can take at the same time: a cluster
 * lies within a group of multiprocessors whose number need not be a multiple of its own. (The
 * times say that 28 clusters of 4 fit on 132 of them, and 32 do not.)
 */
#define DGI_FEW_LARGE_CLUSTERS        0.9

/* ---- between the two families (cuda/gemm.c) --------------------------------------------- */

/* Up to so many tokens the kernels for few run, whatever is predicted: they were always faster. */
enum { DGI_ALWAYS_FEW = 64 };

#endif
