/* SPDX-License-Identifier: MIT */
/*
 * How the tiles of many products are dealt to the clusters of CTAs of one persistent launch. Plain
 * C that the kernels and the tests compile, like tile_order.h.
 *
 * The products stand in a row, those with the longest tiles (the largest K) first, and their tiles
 * are numbered through: product p has tiles before[p] to before[p + 1]. Cluster c computes the
 * tiles c, c + clusters, c + 2 clusters, ... Since no tile is longer than one before it, the work
 * of any two clusters differs by at most one tile, the longest. Nothing but `before` depends on the
 * sizes, so one launch serves whatever they become.
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

/* Which of `clusters` computes the first tile of a product behind `before` tiles of others. */
static DGI_HOST_DEVICE int32_t dgi_first_cluster(int32_t before, int32_t clusters)
{
    return before % clusters;
}

/* The first of a product's tiles, counted in the product, that `cluster` computes. */
static DGI_HOST_DEVICE int32_t dgi_first_tile(int32_t cluster, int32_t first_cluster,
                                              int32_t clusters)
{
    return cluster >= first_cluster ? cluster - first_cluster : cluster - first_cluster + clusters;
}

/* The tile that a cluster computes after those before `end`, when `tile` < `end` is one of its. */
static DGI_HOST_DEVICE int32_t dgi_next_tile(int32_t tile, int32_t end, int32_t clusters)
{
    return tile + (end - tile + clusters - 1) / clusters * clusters;
}

/* Whether product p comes before q: the larger K first, and of equal ones the first. */
static DGI_HOST_DEVICE int dgi_comes_before(int32_t k_p, int32_t p, int32_t k_q, int32_t q)
{
    return k_p > k_q || (k_p == k_q && p < q);
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

#endif
