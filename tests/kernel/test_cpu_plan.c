/* SPDX-License-Identifier: MIT */
/* The CPU planner: how K is cut into segments, and D into parts. */
#include "core/cpu_plan.h"
#include "core/formats.h"
#include "random.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

static dg_scale random_granularity(rng *r)
{
    const int32_t blocks[] = {0, 1, 2, 3, 5, 16, 32, 37, 64, 100, 128, 130, 256, 1000};
    dg_scale s = {.block_cols = blocks[rng_range(r, 0, 13)]};
    s.col_phase = s.block_cols == 0 ? 0 : (int32_t)rng_range(r, 0, s.block_cols - 1);
    return s;
}

/* Each element of K once, in order, with the right scales; each line of packed weights likewise. */
static void segments_cover_k(void **state)
{
    (void)state;
    rng r = rng_new(41);
    for (int i = 0; i < 2000; i++) {
        int64_t size = rng_range(&r, 0, rng_chance(&r, 0.9) ? 600 : 20000);
        dg_scale a = random_granularity(&r), b = random_granularity(&r);
        dgi_k_walk walk = dgi_k_begin(size, &a, &b);
        int64_t k = 0, position = 0, run = 0, run_line = 0, column = 0;
        for (dgi_k_block block; dgi_k_next(&walk, &block);) {
            assert_int_equal(block.position, position);
            int32_t depth = 0;
            for (int s = 0; s < block.count; s++) {
                const dgi_k_segment *segment = &block.segments[s];
                int64_t last = segment->k + segment->length - 1;
                assert_int_equal(segment->k, k);
                assert_true(segment->length >= 1 && segment->length <= DGI_DEPTH);
                assert_int_equal(segment->quads, (segment->length + DGI_QUAD - 1) / DGI_QUAD);
                assert_int_equal(segment->scale_a, dgi_scale_index(k, a.block_cols, a.col_phase));
                assert_int_equal(segment->scale_a,
                                 dgi_scale_index(last, a.block_cols, a.col_phase));
                assert_int_equal(segment->scale_b, dgi_scale_index(k, b.block_cols, b.col_phase));
                assert_int_equal(segment->scale_b,
                                 dgi_scale_index(last, b.block_cols, b.col_phase));
                if (segment->scale_b != column) { /* a new scale of B begins a new line */
                    run_line += (k - run + DGI_QUAD - 1) / DGI_QUAD;
                    run = k;
                    column = segment->scale_b;
                }
                assert_int_equal(segment->packed_line, run_line + (k - run) / DGI_QUAD);
                assert_int_equal(segment->packed_skip, (k - run) % DGI_QUAD);
                bool ends_line = (last + 1 - run) % DGI_QUAD == 0 || last + 1 == size ||
                                 dgi_scale_index(last + 1, b.block_cols, b.col_phase) != column;
                assert_int_equal(segment->whole, (k - run) % DGI_QUAD == 0 && ends_line);
                k += segment->length;
                depth += segment->quads * DGI_QUAD;
            }
            assert_int_equal(block.depth, depth);
            assert_true(depth <= DGI_DEPTH);
            position += depth;
        }
        assert_int_equal(k, size);
        assert_int_equal(dgi_packed_lines(size, &b),
                         run_line + (size - run + DGI_QUAD - 1) / DGI_QUAD);
    }
}

/* Where no scale changes the order of summation is the same for all granularities. */
static void segments_depend_on_scales_alone(void **state)
{
    (void)state;
    dg_scale none = {.block_cols = 0}, blocks = {.block_cols = 128};
    dgi_k_walk x = dgi_k_begin(1000, &none, &none), y = dgi_k_begin(1000, &blocks, &blocks);
    for (dgi_k_block p, q; dgi_k_next(&x, &p);) {
        assert_true(dgi_k_next(&y, &q));
        assert_int_equal(p.count, 1);
        assert_int_equal(q.count, 1);
        assert_int_equal(p.segments[0].k, q.segments[0].k);
        assert_int_equal(p.segments[0].length, q.segments[0].length);
    }
}

/* The parts of a plan are shares of rows and panels: each element of D once, evenly. */
static void parts_cover_d(void **state)
{
    (void)state;
    rng r = rng_new(42);
    const dgi_cpu_tiling tilings[] = {{6, 4, 2, true}, {12, 2, 4, false}, {2, 1, 4, false}};
    for (int i = 0; i < 2000; i++) {
        const dgi_cpu_tiling *tiling = &tilings[rng_range(&r, 0, 2)];
        int64_t m = rng_range(&r, 1, 3000), n = rng_range(&r, 1, 5000), k = rng_range(&r, 0, 9000);
        int32_t threads = (int32_t)rng_range(&r, 1, 64);
        dg_scale a = random_granularity(&r), b = random_granularity(&r);
        dgi_cpu_plan plan = dgi_cpu_plan_make(m, n, k, &a, &b, tiling, threads);

        assert_true(plan.parts_m >= 1 && plan.parts_n >= 1);
        assert_true(plan.parts_m * plan.parts_n <= threads);
        assert_true(plan.parts_n <= plan.panels && plan.parts_m <= plan.block_rows);
        assert_true(plan.panels * DGI_PANEL >= n && (plan.panels - 1) * DGI_PANEL < n);
        assert_true(plan.block_rows >= 1 && plan.block_rows <= m);
        assert_true(plan.tile_rows >= 1 && plan.tile_rows <= tiling->tile_rows);
        assert_true(plan.tile_panels >= 1 && plan.tile_panels <= tiling->tile_panels);
        assert_true(plan.depth >= k);
        assert_true(!plan.direct || tiling->has_direct);

        int64_t next = 0, least = plan.panels, most = 0;
        for (int32_t part = 0; part < plan.parts_n; part++) {
            int64_t begin = dgi_share(plan.panels, plan.parts_n, part);
            int64_t end = dgi_share(plan.panels, plan.parts_n, part + 1);
            assert_int_equal(begin, next);
            least = end - begin < least ? end - begin : least;
            most = end - begin > most ? end - begin : most;
            next = end;
        }
        assert_int_equal(next, plan.panels);
        assert_true(most - least <= 1);
    }
}

/* The workspace is bounded whatever M is. */
static void blocks_of_rows_are_bounded(void **state)
{
    (void)state;
    const dgi_cpu_tiling tiling = {6, 4, 2, true};
    dg_scale none = {.block_cols = 0};
    for (int64_t m = 1; m < 100000; m = m * 3 / 2 + 1) {
        dgi_cpu_plan plan = dgi_cpu_plan_make(m, 4096, 4096, &none, &none, &tiling, 2);
        assert_true(plan.most_rows * plan.depth * plan.element_bytes <= 8 << 20);
        assert_true(plan.block_rows <= plan.most_rows);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_cover_k),
        cmocka_unit_test(segments_depend_on_scales_alone),
        cmocka_unit_test(parts_cover_d),
        cmocka_unit_test(blocks_of_rows_are_bounded),
    };
    return test_run(argc, argv, tests);
}
