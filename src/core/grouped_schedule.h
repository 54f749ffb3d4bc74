/* SPDX-License-Identifier: MIT */
/*
 * How the tiles of many products are dealt to the clusters of CTAs of one persistent launch. Plain
 * C that the kernels, the planner and the tests compile, like tile_order.h. A launch does not
 * depend on any of it: it has a cluster for every few multiprocessors, whatever the sizes become.
 *
 * In turn: tiles are numbered through, product after product, and cluster c computes the tiles c,
 * c + clusters, c + 2 clusters, ... Where the longest come first, the work of any two clusters
 * differs by at most the longest tile.
 *
 * Stretched: where that would leave clusters idle, the longest tiles, about one for each cluster,
 * are laid end to end along K, and each cluster first computes a stretch of them, just so long that
 * with the other tiles, which it then computes in turn, it has the mean work. A tile on the border
 * of stretches is cut into parts of K, whose sums are added up in the order of K. A border is moved
 * to the nearest end of a piece, 8 stages of K or an eighth of a longer tile, so that no part is
 * shorter. Hence no cluster's work differs from the mean by more than two pieces, and what a tile
 * takes beside its stages.
 */
#ifndef DGI_GROUPED_SCHEDULE_H
#define DGI_GROUPED_SCHEDULE_H

#include "host_device.h"

#include <stdint.h>

/* Tiles of a product, as tile_order.h counts them. */
static DGI_HOST_DEVICE int32_t dgi_tile_rows(int32_t m, int32_t tile_m)
{
    return (m + tile_m - 1) / tile_m;
}

/* The tile that a cluster computes after those before `end`, when `tile` < `end` is one of its. */
static DGI_HOST_DEVICE int32_t dgi_next_tile(int32_t tile, int32_t end, int32_t clusters)
{
    return tile + (end - tile + clusters - 1) / clusters * clusters;
}

/*
 * Rows of tiles in a band (see tile_order.h): CTAs that run together should cover a square of D.
 */
static DGI_HOST_DEVICE int32_t dgi_band(int32_t tile_rows, int32_t tiles, int32_t clusters,
                                        int32_t tile_m, int32_t cluster_n)
{
    const int64_t active = tiles < clusters ? tiles : clusters;
    int32_t band = 1;
    while (band < tile_rows && (int64_t)(band + 1) * (band + 1) * tile_m <= active * cluster_n)
        band++;
    return band;
}

/* ---- work ---------------------------------------------------------------------------- */

/* Work is counted in units of so many cycles. */
enum { DGI_WORK_CYCLES = 64, DGI_WORK_HEIGHTS = 5 };

/* What a kernel's tiles take: the planner's account (plan_grouped_sm90.c). */
typedef struct dgi_rates {
    int32_t tile_m, cluster_n;       /* a tile of a cluster                               */
    int32_t stage[DGI_WORK_HEIGHTS]; /* a stage of a tile with so many times 64 rows      */
    int32_t tile;                    /* a tile of any size beside its stages              */
    int32_t cut;                     /* what parts of K must save a cluster to be made    */
} dgi_rates;

typedef struct dgi_product_work {
    int32_t tiles, stages; /* stages of 128 of K of each tile       */
    int32_t stage, tile;   /* what a stage and a whole tile take, in the mean of its tiles */
} dgi_product_work;

static DGI_HOST_DEVICE dgi_product_work dgi_work_of(const dgi_rates *rates, int32_t m, int32_t n,
                                                    int32_t k)
{
    dgi_product_work work = {0, (k + 127) / 128, 0, 0};
    const int32_t full = m / rates->tile_m, rest = m % rates->tile_m;
    const int32_t rows = full + (rest > 0);
    work.tiles = rows * ((n + rates->cluster_n - 1) / rates->cluster_n);
    if (work.tiles == 0) /* comes last */
        return work;
    work.stage = (full * rates->stage[rates->tile_m / 64] + rates->stage[(rest + 63) / 64]) / rows;
    work.tile = work.stages * work.stage + rates->tile;
    return work;
}

/* Whether product p comes before q: the longer tiles first, and of equal ones the first. */
static DGI_HOST_DEVICE int dgi_comes_before(int32_t tile_p, int32_t p, int32_t tile_q, int32_t q)
{
    return tile_p > tile_q || (tile_p == tile_q && p < q);
}

/* What the first of `clusters`, which has the most, gets of tiles that are dealt out in turn. */
static DGI_HOST_DEVICE int64_t dgi_most_in_turn(int32_t before, const dgi_product_work *work,
                                                int32_t clusters)
{
    const int32_t end = before + work->tiles;
    return (int64_t)((end + clusters - 1) / clusters - (before + clusters - 1) / clusters) *
           work->tile;
}

/* Whether the longest tiles are cut: `most` is the sum of dgi_most_in_turn(), `all` that of all. */
static DGI_HOST_DEVICE int dgi_must_stretch(int64_t most, int64_t all, const dgi_rates *rates,
                                            int32_t clusters)
{
    return most > all / clusters + rates->cut;
}

/* ---- stretches ------------------------------------------------------------------------- */

/*
 * How many of a product's tiles lie in stretches, where the longer tiles make up `before` of work:
 * as many as it takes to have one of the first tile that is left for each cluster. So no cluster
 * gets more in turn than the mean.
 */
static DGI_HOST_DEVICE int32_t dgi_stretched_tiles(int64_t before, const dgi_product_work *work,
                                                   int32_t clusters)
{
    const int64_t missing = (int64_t)clusters * work->tile - before;
    if (missing <= 0)
        return 0;
    const int64_t tiles = (missing + work->tile - 1) / work->tile;
    return tiles < work->tiles ? (int32_t)tiles : work->tiles;
}

/* Stages of a part of K are a multiple of this, but for the last one, which may have more. */
static DGI_HOST_DEVICE int32_t dgi_piece(int32_t stages)
{
    return stages <= 64 ? 8 : (stages + 7) / 8;
}

/* Whether a tile of that K may be cut at all. */
static DGI_HOST_DEVICE int dgi_can_cut(int64_t k)
{
    return (k + 127) / 128 >= 16;
}

/* Where a cluster's stretch begins and the one before ends. */
typedef struct dgi_cut {
    int32_t rank;              /* the product's place in the schedule */
    int32_t product;           /* and which it is                     */
    int32_t tile, stage;       /* stage 0: no tile is cut             */
    int32_t part, parts, slot; /* which part of the tile begins here, of how many; where their sums
                                  lie: `parts` slots from here on     */
    int32_t unused;
} dgi_cut;

/*
 * The cut nearest to where so much work of a product's tiles comes before, but for its parts. No
 * part of a tile is shorter than a piece.
 */
static DGI_HOST_DEVICE dgi_cut dgi_cut_at(int64_t before, int32_t rank,
                                          const dgi_product_work *work)
{
    dgi_cut cut = {rank, 0, (int32_t)(before / work->tile), 0, 0, 1, 0, 0};
    const int64_t inside = before - (int64_t)cut.tile * work->tile;
    const int32_t piece = dgi_piece(work->stages);
    const int32_t last = work->stages / piece * piece - piece;
    int behind = 2 * inside >= work->tile;
    if (last > 0) {
        const int32_t stage = (int32_t)(inside / work->stage);
        cut.stage = (stage + piece / 2) / piece * piece;
        cut.stage = cut.stage < last ? cut.stage : last;
        behind = 2 * stage >= last + work->stages;
    }
    if (behind) {
        cut.tile++;
        cut.stage = 0;
    }
    return cut;
}

static DGI_HOST_DEVICE int dgi_same_tile(const dgi_cut *x, const dgi_cut *y)
{
    return x->rank == y->rank && x->tile == y->tile && x->stage > 0 && y->stage > 0;
}

/* Which part begins at cuts[at], of how many, from its neighbours among `count` cuts. */
static DGI_HOST_DEVICE void dgi_find_parts(const dgi_cut *cuts, int32_t at, int32_t count,
                                           dgi_cut *cut)
{
    int32_t first = at;
    if (cut->stage == 0)
        return;
    for (cut->part = 1; first > 0 && dgi_same_tile(&cuts[first - 1], cut); first--)
        cut->part += cuts[first - 1].stage != cuts[first].stage;
    cut->parts = cut->part + 1;
    for (int32_t i = at + 1; i < count && dgi_same_tile(&cuts[i], cut); i++)
        cut->parts += cuts[i].stage != cuts[i - 1].stage;
    cut->slot = 2 * (first - 1); /* n cuts make n + 1 parts, no more than 2 n */
}

/* Slots that the parts need; the first and the last border of `clusters` + 1 cut no tile. */
static DGI_HOST_DEVICE int32_t dgi_slots(int32_t clusters)
{
    return 2 * (clusters - 1);
}

/* A place in the schedule: the tiles of a product that are dealt out in turn. */
typedef struct dgi_turn {
    int32_t end;     /* its last tile's number + 1, counted through all products */
    int32_t offset;  /* number of a tile - its index in the product              */
    int32_t product; /* which one                                                */
    int32_t tiles;   /* of the product, those in stretches too                   */
} dgi_turn;

#endif
