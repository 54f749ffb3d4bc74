/* SPDX-License-Identifier: MIT */
/*
 * The schedule of grouped products, simulated: what grouped_setup writes and what each cluster of
 * CTAs then walks over, with the functions that the kernels compile.
 */
#include "core/grouped_schedule.h"
#include "core/plan_grouped_sm90.h"
#include "core/tile_order.h"
#include "core/tuning_sm90.h"
#include "cuda/device/gemm_layout.h"
#include "gemm_case.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* CYCLES: what the planner adds for a tile, and here those of a stage */
enum { MOST = 40, TILE_M = 128, CLUSTER_N = 256, TILE_K = 128 };
enum { CYCLES = (int)DGI_GROUPED_TILE_CYCLES };

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

/* A kernel of such tiles, for the planner's account of its work. */
static const dgi_sm90_kernel kernel = {
    .tile_m = TILE_M, .tile_n = CLUSTER_N / 2, .groups = 2, .cluster = 2, .cycles = CYCLES};

/* Of a tile with all its rows. */
static int64_t cost(const product *p)
{
    return (p->k + TILE_K - 1) / TILE_K + 1; /* stages, and the epilogue */
}

/*
 * What cluster `cluster` of `clusters` does, as product_walk and tile_walk do it: with all tiles
 * full, and in *cycles what the planner says that it takes.
 */
static int64_t walk(const schedule *s, int32_t cluster, int32_t clusters, char *seen,
                    double *cycles)
{
    int64_t work = 0;
    *cycles = 0;
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
            const int32_t height = p->m - place.row * TILE_M;
            *cycles +=
                dgi_sm90_grouped_tile_cycles(&kernel, height < TILE_M ? height : TILE_M, p->k);
        }
        tile = dgi_next_tile(tile, s->before[at + 1], clusters);
        at++;
    }
}

/* The planner's account of the schedule, for its explanation, is what the walk over it finds. */
static void check_account(const product *products, int32_t count, int32_t clusters, double busiest,
                          double idlest)
{
    dgi_product_size sizes[MOST];
    dgi_balance balance;
    for (int32_t i = 0; i < count; i++)
        sizes[i] = (dgi_product_size){products[i].m, products[i].n, products[i].k};
    assert_ok(dgi_sm90_balance(&kernel, sizes, count, 2 * clusters, &balance));
    assert_float_equal(balance.busiest, busiest, 0.5);
    assert_float_equal(balance.idlest, idlest, 0.5);
    assert_true(balance.mean >= balance.idlest * (1 - 1e-9)); /* a sum of rounded shares */
    assert_true(balance.mean <= balance.busiest * (1 + 1e-9));
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
        double most = 0.0, least = INFINITY, cycles;
        for (int32_t i = 0; i < clusters; i++) {
            const int64_t work = walk(&s, i, clusters, seen, &cycles);
            assert_true(cycles <= (double)work * CYCLES); /* rows that are not there cost nothing */
            most = cycles > most ? cycles : most;
            least = cycles < least ? cycles : least;
            busiest = work > busiest ? work : busiest;
            idlest = work < idlest ? work : idlest;
        }
        for (int32_t i = 0; i < s.before[count]; i++)
            assert_int_equal(seen[i], 1);
        if (busiest - idlest > longest)
            fail_msg("the busiest of %d clusters has %lld, the idlest %lld, the longest tile %lld",
                     clusters, (long long)busiest, (long long)idlest, (long long)longest);
        check_account(products, count, clusters, most, least);
        free(seen);
    }
}

/* What the sizes of each form mean; tests/api/ compares results, this is what explanations count.
 */
static void sizes_become_products(void **state)
{
    (void)state;
    enum { COUNT = 4 };
    static const int32_t ends[] = {3, 3, 200, 7}, rows[] = {2, 2, -1, 0, 2, 9, 3, 3, 3, 1};
    static const int32_t masked[] = {-1, 4, 99, 0}, along_k[] = {32, -5, 900, 16};
    static const struct {
        dg_grouping grouping;
        int32_t alignment;
        const int32_t *sizes;
        int32_t expected[COUNT];
    } cases[] = {
        {DG_GROUPS_BY_END, 1, ends, {3, 0, 7, 0}},
        {DG_GROUPS_BY_END, 4, ends, {3, 0, 6, 0}},
        {DG_GROUPS_BY_ROW, 1, rows, {1, 1, 2, 3}},
        {DG_GROUPS_MASKED, 1, masked, {0, 4, 10, 0}},
        {DG_GROUPS_K_COLUMNS, 1, along_k, {32, 0, 224, 0}},
        {DG_GROUPS_K_BLOCKS, 1, along_k, {32, 0, 224, 0}},
    };
    const dg_gemm g = gemm_of(recipe_named("block128"), 10, 24, 256, DG_BF16);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dg_groups q = dg_groups_of(cases[i].grouping, COUNT, cases[i].sizes, &g);
        dgi_product_size products[COUNT];
        q.alignment = cases[i].alignment;
        dgi_groups_products(&g, &q, cases[i].sizes, products);
        const bool along = cases[i].sizes == along_k;
        for (int j = 0; j < COUNT; j++) {
            assert_int_equal(products[j].m, along ? 10 : cases[i].expected[j]);
            assert_int_equal(products[j].n, 24);
            assert_int_equal(products[j].k, along ? cases[i].expected[j] : 256);
        }
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
        const dgi_typical any = {gemm_of(&recipes[i], 1000, 4096, 4096, DG_BF16), 8, 1000, 0.3};
        assert_ok(dgi_sm90_choose_grouped(&any, 132, &index));
    }
    /* A group's rows are computed once wherever one tile of a kernel holds most groups. */
    static const struct {
        int64_t products, rows;
        int32_t lowest, highest;
    } tiles[] = {{32, 20, 64, 64},    {6, 20, 64, 64},     {32, 64, 128, 128},  {8, 130, 192, 192},
                 {32, 190, 128, 256}, {8, 4096, 128, 256}, {1, 4096, 128, 256}, {256, 1, 64, 64}};
    for (size_t i = 0; i < sizeof tiles / sizeof tiles[0]; i++) {
        const dgi_typical t = {gemm_of(recipe_named("block128"), 4096, 6144, 7168, DG_BF16),
                               tiles[i].products, tiles[i].rows, 0.3};
        assert_ok(dgi_sm90_choose_grouped(&t, 132, &index));
        assert_in_range(dgi_sm90_grouped_kernels[index].tile_m, tiles[i].lowest, tiles[i].highest);
    }
    dgi_typical odd = {gemm_of(recipe_named("block128"), 64, 64, 256, DG_BF16), 8, 64, 0.0};
    odd.gemm.scale_a = scale_of(DG_F32, 64, 256, 1, 100, 0, 0);
    assert_refused(dgi_sm90_choose_grouped(&odd, 132, &index), DG_UNSUPPORTED_SCALE,
                   "multiples of 32");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_tile_once_and_balanced),
        cmocka_unit_test(sizes_become_products),
        cmocka_unit_test(kernels_fit_shared_memory),
        cmocka_unit_test(every_recipe_has_a_kernel),
    };
    return test_run(argc, argv, tests);
}
