/* SPDX-License-Identifier: MIT */
/* The grouped products that tests describe: given ones and random ones. See grouped_case.h. */
#include "grouped_case.h"
#include "test.h"

static bool along_k(const dg_groups *q)
{
    return q->grouping == DG_GROUPS_K_COLUMNS || q->grouping == DG_GROUPS_K_BLOCKS;
}

static bool one_d(const dg_groups *q)
{
    return q->grouping == DG_GROUPS_BY_END || q->grouping == DG_GROUPS_BY_ROW;
}

grouped_shape grouped_of(const recipe *recipe, dg_grouping grouping, int32_t count, int64_t rows,
                         int64_t n, int64_t k, dg_dtype d)
{
    grouped_shape made = {.gemm = gemm_of(recipe, rows, n, k, d)};
    made.groups = dg_groups_of(grouping, count, NULL, &made.gemm);
    return made;
}

/* Another number of rows for a matrix's scales, with room for `more` columns. */
static void resize_scale(dg_scale *s, int64_t rows, int64_t more)
{
    if (s->dtype == DG_NONE)
        return;
    const bool transposed = s->row_stride == 1 && s->col_stride != 1;
    s->rows = dg_scale_count(rows, s->block_rows, s->row_phase);
    s->cols += more;
    s->row_stride = transposed ? 1 : s->cols + 1;
    s->col_stride = transposed ? s->rows + 1 : 1;
}

static int64_t random_gap(rng *r)
{
    return rng_chance(r, 0.5) ? 0 : rng_range(r, 1, 70);
}

static void random_ends(rng *r, int32_t *sizes, int32_t count, int64_t rows)
{
    for (int32_t i = 0; i < count; i++) {
        const int64_t last = i == 0 ? 0 : sizes[i - 1];
        sizes[i] =
            (int32_t)(last +
                      (rng_chance(r, 0.25) ? 0 : rng_range(r, 0, 2 * rows / (count + 1) + 1)));
    }
    if (rng_chance(r, 0.5) && count != 0 && sizes[count - 1] < rows)
        sizes[count - 1] = (int32_t)rows;
    if (rng_chance(r, 0.1)) /* nonsense: still well defined */
        sizes[rng_range(r, 0, count - 1)] = (int32_t)rng_range(r, -5, rows + 5);
}

static void shuffle(rng *r, int32_t *values, int64_t count)
{
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t j = rng_range(r, 0, i);
        const int32_t spare = values[i];
        values[i] = values[j];
        values[j] = spare;
    }
}

/* Runs of the groups in any order, some left out, padding between them. */
static void random_row_groups(rng *r, int32_t *sizes, int32_t count, int64_t rows)
{
    int32_t order[16];
    assert_true(count <= 16);
    for (int32_t i = 0; i < count; i++)
        order[i] = i;
    shuffle(r, order, count);
    int64_t at = 0;
    for (int32_t i = 0; i <= count; i++) {
        const int32_t padding = rng_chance(r, 0.5) ? -1 : count; /* both are none */
        int64_t gap = rng_chance(r, 0.5) ? 0 : rng_range(r, 0, rows / 4);
        int64_t run = rng_chance(r, 0.2) ? 0 : rng_range(r, 0, 2 * rows / count + 1);
        for (; gap > 0 && at < rows; gap--)
            sizes[at++] = padding;
        for (; i < count && run > 0 && at < rows; run--)
            sizes[at++] = order[i];
    }
    while (at < rows)
        sizes[at++] = -1;
}

/* Rows of a larger A, and places in a larger D; some are outside. */
static void random_indices(rng *r, grouped_shape *s, int32_t *gather, int32_t *scatter)
{
    dg_gemm *g = &s->gemm;
    const int64_t rows = g->a.rows;
    if (rng_chance(r, 0.4)) {
        g->a.rows = rng_range(r, 1, rows + 10);
        resize_scale(&g->scale_a, g->a.rows, 0);
        s->groups.rows = rows;
        for (int64_t i = 0; i < rows; i++)
            gather[i] = (int32_t)(rng_chance(r, 0.1) ? rng_range(r, -1, g->a.rows)
                                                     : rng_range(r, 0, g->a.rows - 1));
        s->gather = gather;
    }
    if (rng_chance(r, 0.4)) {
        g->d.rows = rows + rng_range(r, 0, 10);
        if (g->c.dtype != DG_NONE)
            g->c.rows = g->d.rows;
        resize_scale(&g->scale_d, g->d.rows, 0);
        for (int64_t i = 0; i < rows; i++)
            scatter[i] = (int32_t)i;
        shuffle(r, scatter, rows);
        if (rng_chance(r, 0.3))
            scatter[rng_range(r, 0, rows - 1)] = -1;
        s->scatter = scatter;
    }
}

/* K divided: scales begin anew with each group. */
static void random_depths(rng *r, grouped_shape *s, int32_t *sizes)
{
    dg_gemm *g = &s->gemm;
    dg_groups *q = &s->groups;
    int64_t k = 0;
    for (int32_t i = 0; i < q->count; i++) {
        sizes[i] = (int32_t)(rng_chance(r, 0.25) ? 0 : rng_range(r, 1, g->a.cols));
        /* A GPU reads columns from multiples of 16 on. */
        const bool begins_another = i + 1 < q->count && test_device() != DG_CPU;
        if (q->grouping == DG_GROUPS_K_BLOCKS || begins_another)
            sizes[i] = (sizes[i] + 15) / 16 * 16;
        k += sizes[i];
    }
    g->a.cols = g->b.cols = k;
    g->a.ld = k + random_gap(r);
    g->b.ld = k + random_gap(r);
    dg_scale *scales[] = {&g->scale_a, &g->scale_b};
    for (int i = 0; i < 2; i++) {
        dg_scale *scale = scales[i];
        scale->col_phase = 0;
        scale->cols = dg_scale_count(k, scale->block_cols, 0);
        resize_scale(scale, i == 0 ? g->a.rows : g->b.rows,
                     scale->block_cols == 0 || q->count == 0 ? 0 : q->count - 1);
    }
}

grouped_case *grouped_case_random(rng *r, int64_t largest)
{
    static const dg_grouping groupings[] = {DG_GROUPS_BY_END, DG_GROUPS_BY_ROW, DG_GROUPS_MASKED,
                                            DG_GROUPS_K_COLUMNS, DG_GROUPS_K_BLOCKS};
    int32_t sizes[1024], gather[1024], scatter[1024];
    grouped_shape s = {.gemm = gemm_random(r, largest), .sizes = sizes};
    dg_gemm *g = &s.gemm;
    const dg_grouping grouping = groupings[rng_range(r, 0, 4)];
    const int32_t count = (int32_t)rng_range(r, 1, 6);
    assert_true(largest <= 1000);
    s.groups = dg_groups_of(grouping, count, NULL, g);
    dg_groups *q = &s.groups;
    s.in_place = g->d.dtype != DG_E4M3 && g->d.dtype != DG_E5M2 && rng_chance(r, 0.3);
    if (grouping == DG_GROUPS_BY_END) {
        q->alignment = (int32_t)(rng_chance(r, 0.5) ? 1 : rng_range(r, 2, 20));
        random_ends(r, sizes, count, g->a.rows);
    } else if (grouping == DG_GROUPS_BY_ROW) {
        random_row_groups(r, sizes, count, g->a.rows);
    } else if (grouping == DG_GROUPS_MASKED) {
        for (int32_t i = 0; i < count; i++)
            sizes[i] = (int32_t)rng_range(r, -1, g->a.rows + 1);
    } else {
        random_depths(r, &s, sizes);
    }
    if (one_d(q))
        random_indices(r, &s, gather, scatter);
    if (!along_k(q) && rng_chance(r, 0.5))
        q->padding = DG_PADDING_ZERO;
    q->a_stride += random_gap(r);
    q->b_stride += random_gap(r);
    q->c_stride += random_gap(r);
    q->d_stride += random_gap(r);
    q->bias_stride += random_gap(r);
    q->scale_a_stride += random_gap(r);
    q->scale_b_stride += random_gap(r);
    q->scale_d_stride = dg_scale_stride(&g->scale_d) + random_gap(r);
    return grouped_case_new(r, &s);
}
