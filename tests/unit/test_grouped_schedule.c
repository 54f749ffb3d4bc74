/* SPDX-License-Identifier: MIT */
/*
 * The schedule of grouped products, simulated: what grouped_setup writes and what each cluster of
 * CTAs then walks over, with the functions that the kernels compile.
 */
#include "core/plan_grouped_sm90.h"
#include "core/tile_order.h"
#include "cuda/device/gemm_layout.h"
#include "gemm_case.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 40, TILE_M = 128, CLUSTER_N = 256 };

/* A kernel of such tiles. */
static const dgi_sm90_kernel kernel = {
    .tile_m = TILE_M, .tile_n = CLUSTER_N / 2, .groups = 2, .cluster = 2, .cycles = 1000};

/* Plans of a few products or of many, of long ones or of short ones. */
static int32_t random_products(rng *r, dgi_product_size *products)
{
    const int32_t count = (int32_t)rng_range(r, 0, rng_chance(r, 0.5) ? 4 : MOST);
    const int64_t most_m = rng_chance(r, 0.5) ? 200 : 1500;
    const int64_t most_k = rng_chance(r, 0.5) ? 65536 : 8192;
    for (int32_t i = 0; i < count; i++) {
        products[i].m = rng_chance(r, 0.2) ? 0 : (int32_t)rng_range(r, 1, most_m);
        products[i].n = rng_chance(r, 0.1) ? 0 : (int32_t)rng_range(r, 1, 3000);
        products[i].k = rng_chance(r, 0.1) ? 0 : (int32_t)rng_range(r, 1, most_k);
        products[i].k /= rng_chance(r, 0.8) ? 8 : 1;
    }
    return count;
}

/* What has been computed of a plan: clusters come in order, and so do the parts of a tile. */
typedef struct progress {
    const dgi_product_size *products;
    const dgi_schedule *s;
    int32_t first[MOST];         /* of each product, in the order of the schedule: tiles before */
    int32_t *stages, *parts;     /* of each tile, so far                                        */
    int32_t count[160], at[160]; /* of each slot's part: of how many, of which tile             */
    int64_t work;                /* of the cluster at work: by the schedule's account           */
    double cycles;               /* by the planner's, which knows the height of each tile       */
} progress;

/* One tile, or a part of it, by tile_walk and join_parts. */
static void compute(progress *p, int32_t rank, int32_t index, int32_t begin, int32_t end,
                    int32_t part, int32_t parts, int32_t slot)
{
    const dgi_product_size *size = &p->products[p->s->turns[rank].product];
    const dgi_product_work *work = &p->s->work[rank];
    const int32_t rows = dgi_tile_rows(size->m, TILE_M);
    const int32_t cols = (size->n + CLUSTER_N - 1) / CLUSTER_N;
    const dgi_tile place = dgi_tile_at(
        index, rows, cols, dgi_band(rows, rows * cols, p->s->clusters, TILE_M, CLUSTER_N));
    assert_in_range(index, 0, rows * cols - 1);
    assert_in_range(place.row, 0, rows - 1);
    assert_in_range(place.col, 0, cols - 1);
    const int32_t tile = p->first[rank] + place.row * cols + place.col;
    assert_int_equal(p->stages[tile], begin);
    assert_int_equal(p->parts[tile], part);
    p->stages[tile] = end;
    p->parts[tile]++;
    if (parts > 1) {
        assert_in_range(slot, 0, dgi_slots(p->s->clusters) - parts);
        assert_in_range(end - begin, dgi_piece(work->stages), work->stages);
        for (int32_t i = 0; i < parts; i++) { /* no other tile's parts lie there */
            assert_true(p->count[slot + i] == 0 || p->at[slot + i] == tile);
            p->count[slot + i] = parts;
            p->at[slot + i] = tile;
        }
    }
    const int32_t height = size->m - place.row * TILE_M;
    const double share = work->stages == 0 ? 1.0 : (double)(end - begin) / work->stages;
    p->work += (int64_t)(end - begin) * work->stage;
    if (end == work->stages) {
        assert_int_equal(part, parts - 1);
        p->work += work->tile - (int64_t)work->stages * work->stage;
    }
    p->cycles +=
        share * dgi_sm90_grouped_tile_cycles(&kernel, height < TILE_M ? height : TILE_M, size->k);
}

/* What cluster `cluster` does, as product_walk does it. */
static void walk(progress *p, int32_t cluster)
{
    const dgi_schedule *s = p->s;
    const dgi_cut *from = &s->cuts[cluster], *to = from + 1;
    const bool none = from->rank == to->rank && from->tile == to->tile && from->stage == to->stage;
    p->work = 0;
    p->cycles = 0.0;
    for (int32_t rank = from->rank; !none && rank <= to->rank; rank++) {
        const int32_t first = rank == from->rank ? from->tile : 0;
        const int32_t last = rank == to->rank ? to->tile : s->turns[rank].tiles;
        const bool is_cut = rank == to->rank && to->stage > 0;
        for (int32_t i = first; i < last + is_cut; i++) {
            const bool head = rank == from->rank && i == first && from->stage > 0;
            const bool tail = is_cut && i == last;
            const int32_t begin = head ? from->stage : 0;
            const int32_t end = tail ? to->stage : s->work[rank].stages;
            if (head)
                compute(p, rank, i, begin, end, from->part, from->parts, from->slot);
            else if (tail)
                compute(p, rank, i, begin, end, to->part - 1, to->parts, to->slot);
            else
                compute(p, rank, i, begin, end, 0, 1, 0);
        }
    }
    int32_t tile = cluster;
    for (int32_t rank = 0; rank < s->count; rank++) {
        const dgi_turn *turn = &s->turns[rank];
        for (; tile < turn->end; tile = dgi_next_tile(tile, tile + 1, s->clusters))
            compute(p, rank, tile - turn->offset, 0, s->work[rank].stages, 0, 1, 0);
    }
}

/* Each tile once, or each of its parts, and the bounds that grouped_schedule.h states. */
static void check_plan(const dgi_product_size *products, int32_t count, int32_t clusters,
                       bool may_cut, int *stretched)
{
    const dgi_rates rates = dgi_sm90_rates(&kernel);
    dgi_schedule s;
    assert_ok(dgi_schedule_make(&s, &rates, products, count, clusters, may_cut));
    progress p = {.products = products, .s = &s};
    int32_t tiles = 0;
    int64_t all = 0, longest = 0, pieces = 0;
    for (int32_t i = 0; i < count; i++) {
        const dgi_product_work *w = &s.work[i];
        const int64_t moved = 2 * (int64_t)dgi_piece(w->stages) * w->stage + rates.tile;
        p.first[i] = tiles;
        tiles += w->tiles;
        all += (int64_t)w->tiles * w->tile;
        longest = w->tiles > 0 && w->tile > longest ? w->tile : longest;
        pieces = w->tiles > 0 && moved > pieces ? moved : pieces;
    }
    p.stages = calloc((size_t)tiles + 1, sizeof *p.stages);
    p.parts = calloc((size_t)tiles + 1, sizeof *p.parts);
    assert_true(p.stages != NULL && p.parts != NULL);
    const bool stretch = s.cuts[clusters].rank > 0 || s.cuts[clusters].tile > 0;
    int64_t busiest = 0, idlest = INT64_MAX;
    double most = 0.0, least = INFINITY;
    for (int32_t i = 0; i < clusters; i++) {
        walk(&p, i);
        most = fmax(most, p.cycles);
        least = fmin(least, p.cycles);
        busiest = p.work > busiest ? p.work : busiest;
        idlest = p.work < idlest ? p.work : idlest;
    }
    for (int32_t i = 0; i < count; i++)
        for (int32_t j = 0; j < s.work[i].tiles; j++) {
            assert_int_equal(p.stages[p.first[i] + j], s.work[i].stages);
            assert_in_range(p.parts[p.first[i] + j], 1, may_cut ? clusters : 1);
        }
    const int64_t mean = all / clusters, rounding = 1;
    if (busiest - idlest > (stretch ? 2 * pieces : longest))
        fail_msg("the busiest of %d clusters has %lld, the idlest %lld, the longest tile %lld",
                 clusters, (long long)busiest, (long long)idlest, (long long)longest);
    if (may_cut && busiest > mean + rounding + (stretch ? pieces : rates.cut))
        fail_msg("the busiest of %d clusters has %lld, the mean is %lld", clusters,
                 (long long)busiest, (long long)mean);
    /* The planner's account, for its explanation, is what the walk finds. */
    dgi_balance balance;
    assert_ok(dgi_sm90_balance(&kernel, products, count, 2 * clusters, may_cut, &balance));
    assert_float_equal(balance.busiest, most, 0.5);
    assert_float_equal(balance.idlest, least, 0.5);
    assert_true(balance.mean >= balance.idlest * (1 - 1e-9)); /* a sum of rounded shares */
    assert_true(balance.mean <= balance.busiest * (1 + 1e-9));
    assert_int_equal(balance.tiles, tiles);
    *stretched += stretch;
    free(p.stages);
    free(p.parts);
    dgi_schedule_release(&s);
}

static void each_tile_once_and_balanced(void **state)
{
    (void)state;
    rng r = rng_new(1);
    int stretched = 0, never = 0;
    for (int round = 0; round < 10000; round++) {
        dgi_product_size products[MOST];
        const int32_t count = random_products(&r, products);
        const int32_t clusters = (int32_t)rng_range(&r, 1, 66);
        check_plan(products, count, clusters, true, &stretched);
        check_plan(products, count, clusters, false, &never);
    }
    assert_in_range(stretched, 2000, 9000); /* of 10000; both kinds are well tried */
    assert_int_equal(never, 0);
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
        assert_ok(dgi_sm90_choose_grouped(&any, 132, false, &index));
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
        assert_ok(dgi_sm90_choose_grouped(&t, 132, false, &index));
        assert_in_range(dgi_sm90_grouped_kernels[index].tile_m, tiles[i].lowest, tiles[i].highest);
    }
    dgi_typical odd = {gemm_of(recipe_named("block128"), 64, 64, 256, DG_BF16), 8, 64, 0.0};
    odd.gemm.scale_a = scale_of(DG_F32, 64, 256, 1, 100, 0, 0);
    assert_refused(dgi_sm90_choose_grouped(&odd, 132, false, &index), DG_UNSUPPORTED_SCALE,
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
