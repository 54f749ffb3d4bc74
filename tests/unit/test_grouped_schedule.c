/* SPDX-License-Identifier: MIT */
/*
 * The schedule of grouped products, simulated: what grouped_setup writes and what each cluster of
 * CTAs then walks over, with the functions that the kernels compile.
 */
#include "core/grouped_schedule.h"
#include "core/plan_grouped_sm90.h"
#include "core/tile_order.h"
#include "cuda/device/gemm_layout.h"
#include "gemm_case.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 40, TILE_M = 128, CLUSTER_N = 256, TILE_K = 128 };

typedef struct product {
    int32_t m, n, k;
} product;

/* A plan: the products in the order of their records, and the tiles before each. */
typedef struct schedule {
    int32_t count, before[MOST + 1];
    product products[MOST];
} schedule;

static int32_t tile_cols(const product *p)
{
    return (p->n + CLUSTER_N - 1) / CLUSTER_N;
}

static schedule schedule_of(const product *products, int32_t count)
{
    schedule s = {.count = count};
    for (int32_t i = 0; i < count; i++) {
        int32_t rank = 0;
        for (int32_t j = 0; j < count; j++)
            rank += dgi_comes_before(products[j].k, j, products[i].k, i);
        s.products[rank] = products[i];
    }
    for (int32_t i = 0; i < count; i++)
        s.before[i + 1] =
            s.before[i] + dgi_tile_rows(s.products[i].m, TILE_M) * tile_cols(&s.products[i]);
    return s;
}

static int64_t cost(const product *p)
{
    return (p->k + TILE_K - 1) / TILE_K + 1; /* stages, and the epilogue */
}

/* What cluster `cluster` of `clusters` does, as product_walk and tile_walk do it. */
static int64_t walk(const schedule *s, int32_t cluster, int32_t clusters, char *seen)
{
    int64_t work = 0;
    int32_t tile = cluster, at = 0;
    for (;;) {
        while (at < s->count && s->before[at + 1] <= tile)
            at++;
        if (at == s->count)
            return work;
        const product *p = &s->products[at];
        const int32_t rows = dgi_tile_rows(p->m, TILE_M), cols = tile_cols(p);
        const int32_t band = dgi_band(rows, rows * cols, clusters, TILE_M, CLUSTER_N);
        const int32_t first =
            dgi_first_tile(cluster, dgi_first_cluster(s->before[at], clusters), clusters);
        assert_int_equal(s->before[at] + first, tile);
        for (int32_t i = first; i < rows * cols; i += clusters) {
            const dgi_tile place = dgi_tile_at(i, rows, cols, band);
            assert_in_range(place.row, 0, rows - 1);
            assert_in_range(place.col, 0, cols - 1);
            assert_int_equal(seen[s->before[at] + place.row * cols + place.col]++, 0);
            work += cost(p);
        }
        tile = dgi_next_tile(tile, s->before[at + 1], clusters);
        at++;
    }
}

static void each_tile_once_and_balanced(void **state)
{
    (void)state;
    rng r = rng_new(1);
    for (int round = 0; round < 10000; round++) {
        product products[MOST];
        const int32_t count = (int32_t)rng_range(&r, 0, MOST);
        const int32_t clusters = (int32_t)rng_range(&r, 1, 66);
        int64_t longest = 0;
        for (int32_t i = 0; i < count; i++) {
            products[i].m = rng_chance(&r, 0.2) ? 0 : (int32_t)rng_range(&r, 1, 1500);
            products[i].n = rng_chance(&r, 0.1) ? 0 : (int32_t)rng_range(&r, 1, 3000);
            products[i].k = (int32_t)rng_range(&r, 0, 8192);
            if (products[i].m != 0 && products[i].n != 0 && cost(&products[i]) > longest)
                longest = cost(&products[i]);
        }
        const schedule s = schedule_of(products, count);
        char *seen = calloc((size_t)s.before[count] + 1, 1);
        assert_non_null(seen);
        int64_t busiest = 0, idlest = INT64_MAX;
        for (int32_t i = 0; i < clusters; i++) {
            const int64_t work = walk(&s, i, clusters, seen);
            busiest = work > busiest ? work : busiest;
            idlest = work < idlest ? work : idlest;
        }
        for (int32_t i = 0; i < s.before[count]; i++)
            assert_int_equal(seen[i], 1);
        if (busiest - idlest > longest)
            fail_msg("the busiest of %d clusters has %lld, the idlest %lld, the longest tile %lld",
                     clusters, (long long)busiest, (long long)idlest, (long long)longest);
        free(seen);
    }
}

static void kernels_fit_shared_memory(void **state)
{
    (void)state;
    for (int32_t i = 0; i < dgi_sm90_grouped_kernel_count; i++) {
        const dgi_sm90_kernel *k = &dgi_sm90_grouped_kernels[i];
        assert_in_range(DGI_SHARED_BYTES(k->tile_m, k->tile_n, k->groups, k->stages, k->promote_k,
                                         k->span, k->rows),
                        1, DGI_SHARED_LIMIT);
    }
}

/* All recipes have a kernel; few rows get a low tile, many a high one. */
static void every_recipe_has_a_kernel(void **state)
{
    (void)state;
    int32_t index;
    for (int i = 0; i < recipe_count; i++) {
        const dg_gemm g = gemm_of(&recipes[i], 1000, 4096, 4096, DG_BF16);
        assert_ok(dgi_sm90_choose_grouped(&g, 8, 1000, 132, &index));
    }
    const dg_gemm g = gemm_of(recipe_named("block128"), 4096, 4096, 7168, DG_BF16);
    assert_ok(dgi_sm90_choose_grouped(&g, 32, 20, 132, &index));
    assert_int_equal(dgi_sm90_grouped_kernels[index].tile_m, 64);
    assert_ok(dgi_sm90_choose_grouped(&g, 8, 4096, 132, &index));
    assert_in_range(dgi_sm90_grouped_kernels[index].tile_m, 128, 256);
    dg_gemm odd = gemm_of(recipe_named("block128"), 64, 64, 256, DG_BF16);
    odd.scale_a = scale_of(DG_F32, 64, 256, 1, 100, 0, 0);
    assert_refused(dgi_sm90_choose_grouped(&odd, 8, 64, 132, &index), DG_UNSUPPORTED_SCALE,
                   "multiples of 32");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_tile_once_and_balanced),
        cmocka_unit_test(kernels_fit_shared_memory),
        cmocka_unit_test(every_recipe_has_a_kernel),
    };
    return test_run(argc, argv, tests);
}
