/* SPDX-License-Identifier: MIT */
/* A grouped product under test: see grouped_case.h. */
#include "grouped_case.h"

#include "core/formats.h"
#include "oracle.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INPUT_FILL = 0xFF, OUTPUT_FILL = 0xFF }; /* a NaN in every type */

static bool along_k(const dg_groups *q)
{
    return q->grouping == DG_GROUPS_K_COLUMNS || q->grouping == DG_GROUPS_K_BLOCKS;
}

static bool one_d(const dg_groups *q)
{
    return q->grouping == DG_GROUPS_BY_END || q->grouping == DG_GROUPS_BY_ROW;
}

static int64_t product_rows(const grouped_case *c)
{
    return c->groups.gather != NULL ? c->groups.rows : c->gemm.a.rows;
}

/* ---- what belongs to a group --------------------------------------------------------- */

static int64_t clamped(int64_t size, int64_t most)
{
    return size < 0 ? 0 : size > most ? most : size;
}

static void *moved(void *data, int64_t elements, dg_dtype dtype)
{
    return data == NULL ? NULL : (char *)data + elements * (int64_t)dg_dtype_bytes(dtype);
}

dg_gemm grouped_case_group(const grouped_case *c, int32_t group)
{
    const dg_groups *q = &c->groups;
    dg_gemm g = c->gemm;
    g.bias.data = moved(g.bias.data, q->bias_stride * group, g.bias.dtype);
    if (!one_d(q)) {
        g.c.data = moved(g.c.data, q->c_stride * group, g.c.dtype);
        g.d.data = moved(g.d.data, q->d_stride * group, g.d.dtype);
        g.scale_d.data = moved(g.scale_d.data, q->scale_d_stride * group, g.scale_d.dtype);
    }
    if (q->grouping == DG_GROUPS_MASKED) {
        g.a.data = moved(g.a.data, q->a_stride * group, g.a.dtype);
        g.scale_a.data = moved(g.scale_a.data, q->scale_a_stride * group, g.scale_a.dtype);
    }
    if (!along_k(q)) {
        g.b.data = moved(g.b.data, q->b_stride * group, g.b.dtype);
        g.scale_b.data = moved(g.scale_b.data, q->scale_b_stride * group, g.scale_b.dtype);
        return g;
    }
    int64_t k = 0, a_scale = 0, b_scale = 0, size = 0;
    for (int32_t i = 0; i <= group; i++) {
        k += size;
        a_scale += g.scale_a.block_cols == 0 ? 0 : dg_scale_count(size, g.scale_a.block_cols, 0);
        b_scale += g.scale_b.block_cols == 0 ? 0 : dg_scale_count(size, g.scale_b.block_cols, 0);
        size = clamped(q->sizes[i], c->gemm.a.cols - k);
    }
    const bool blocks = q->grouping == DG_GROUPS_K_BLOCKS;
    g.a.data = moved(g.a.data, blocks ? k * g.a.rows : k, g.a.dtype);
    g.b.data = moved(g.b.data, blocks ? k * g.b.rows : k, g.b.dtype);
    g.a.cols = g.b.cols = size;
    if (blocks)
        g.a.ld = g.b.ld = size;
    g.scale_a.data = moved(g.scale_a.data, a_scale * g.scale_a.col_stride, g.scale_a.dtype);
    g.scale_b.data = moved(g.scale_b.data, b_scale * g.scale_b.col_stride, g.scale_b.dtype);
    g.scale_a.cols = dg_scale_count(size, g.scale_a.block_cols, 0);
    g.scale_b.cols = dg_scale_count(size, g.scale_b.block_cols, 0);
    return g;
}

static void add_row(grouped_case *c, int32_t group, int64_t row)
{
    const dg_groups *q = &c->groups;
    grouped_row made = {group, row, row};
    if (q->gather != NULL) {
        made.a = q->gather[row];
        if (made.a < 0 || made.a >= c->gemm.a.rows)
            made.group = -1;
    }
    if (q->scatter != NULL) {
        made.d = q->scatter[row];
        if (made.d < 0 || made.d >= c->gemm.d.rows)
            made.d = -1;
    }
    c->rows[c->row_count++] = made;
}

/* Which rows there are, as the header describes each grouping. */
static void list_rows(grouped_case *c)
{
    const dg_groups *q = &c->groups;
    const int64_t rows = product_rows(c);
    c->rows = malloc((size_t)(rows * (q->count + 1) + 1) * sizeof *c->rows);
    assert_non_null(c->rows);
    if (q->grouping == DG_GROUPS_BY_ROW) {
        for (int64_t r = 0; r < rows; r++)
            add_row(c, q->sizes[r] >= 0 && q->sizes[r] < q->count ? q->sizes[r] : -1, r);
    } else if (q->grouping == DG_GROUPS_BY_END) {
        int64_t r = 0, end = 0;
        for (int32_t g = 0; g < q->count; g++) {
            const int64_t begin = (end + q->alignment - 1) / q->alignment * q->alignment;
            end = q->sizes[g] > begin ? q->sizes[g] : begin;
            for (; r < begin && r < rows; r++)
                add_row(c, -1, r);
            for (; r < end && r < rows; r++)
                add_row(c, g, r);
        }
        for (; r < rows; r++)
            add_row(c, -1, r);
    } else {
        for (int32_t g = 0; g < q->count; g++) {
            const int64_t used = along_k(q) ? rows : clamped(q->sizes[g], rows);
            for (int64_t r = 0; r < used; r++)
                add_row(c, g, r);
        }
    }
}

/* ---- memory -------------------------------------------------------------------------- */

static size_t spread_bytes(int64_t elements, int64_t stride, int32_t groups, dg_dtype dtype)
{
    if (dtype == DG_NONE || elements == 0 || groups == 0)
        return 0;
    return (size_t)(elements + stride * (groups - 1)) * dg_dtype_bytes(dtype);
}

static guard matrix_memory(rng *r, dg_matrix *m, int64_t stride, int32_t groups, int fill)
{
    int64_t elements =
        m->rows == 0 || m->cols == 0 ? 0 : (m->rows > 1 ? (m->rows - 1) * m->ld : 0) + m->cols;
    guard g = guard_new(spread_bytes(elements, stride, groups, m->dtype),
                        rng_chance(r, 0.7) ? GUARD_AFTER : GUARD_BEFORE, fill);
    m->data = g.data;
    return g;
}

static guard scale_memory(rng *r, dg_scale *s, int64_t stride, int32_t groups)
{
    int64_t elements = s->rows == 0 || s->cols == 0
                           ? 0
                           : (s->rows - 1) * s->row_stride + (s->cols - 1) * s->col_stride + 1;
    guard g = guard_new(spread_bytes(elements, stride, groups, s->dtype),
                        rng_chance(r, 0.7) ? GUARD_AFTER : GUARD_BEFORE, INPUT_FILL);
    s->data = g.data;
    return g;
}

static guard array_memory(const int32_t *values, int64_t count)
{
    guard g = guard_new(values == NULL ? 0 : (size_t)count * sizeof *values, GUARD_AFTER, 0);
    if (g.bytes != 0)
        memcpy(g.data, values, g.bytes);
    return g;
}

static void fill_row(rng *r, const dg_matrix *m, int64_t row, double deviation)
{
    void *data = moved(m->data, row * m->ld, m->dtype);
    if (m->cols == 0)
        return;
    if (deviation == 0.0)
        rng_fill_codes(r, data, m->dtype, m->cols);
    else
        rng_fill_normal(r, data, m->dtype, m->cols, deviation);
}

/* The scales of one matrix row. */
static void fill_scale_row(rng *r, const dg_scale *s, int64_t row)
{
    if (s->dtype == DG_NONE)
        return;
    const int64_t at = s->block_rows == 0 ? 0 : (row + s->row_phase) / s->block_rows;
    for (int64_t col = 0; col < s->cols; col++)
        rng_fill_scales(r, moved(s->data, at * s->row_stride + col * s->col_stride, s->dtype),
                        s->dtype, 1);
}

/* Fills what the products read, and nothing else. */
static void fill(rng *r, grouped_case *c, bool in_place)
{
    const double deviation = rng_chance(r, 0.25) ? 0.0 : 1.0;
    const double typical = sqrt((double)c->gemm.a.cols + 1.0);
    for (int32_t group = 0; group < c->groups.count; group++) {
        const dg_gemm g = grouped_case_group(c, group);
        for (int64_t n = 0; n < g.b.rows; n++) {
            fill_row(r, &g.b, n, deviation);
            if (g.b.cols != 0)
                fill_scale_row(r, &g.scale_b, n);
        }
        if (g.bias.dtype != DG_NONE)
            fill_row(r, &g.bias, 0, typical);
    }
    for (int64_t i = 0; i < c->row_count; i++) {
        const grouped_row *row = &c->rows[i];
        if (row->group < 0)
            continue;
        const dg_gemm g = grouped_case_group(c, row->group);
        fill_row(r, &g.a, row->a, deviation);
        if (g.a.cols != 0)
            fill_scale_row(r, &g.scale_a, row->a);
        if (row->d < 0)
            continue;
        fill_scale_row(r, &g.scale_d, row->d);
        if (g.beta != 0.0f)
            fill_row(r, in_place ? &g.d : &g.c, row->d, typical);
    }
}

grouped_case *grouped_case_new(rng *r, const grouped_shape *shape)
{
    grouped_case *c = calloc(1, sizeof *c);
    assert_non_null(c);
    c->gemm = shape->gemm;
    c->groups = shape->groups;
    dg_gemm *g = &c->gemm;
    dg_groups *q = &c->groups;
    const int64_t rows = shape->gather != NULL ? q->rows : g->a.rows;
    const int32_t all = q->count, own_d = one_d(q) ? 1 : all;
    const int32_t own_a = q->grouping == DG_GROUPS_MASKED ? all : 1, own_b = along_k(q) ? 1 : all;
    c->sizes = array_memory(shape->sizes, q->grouping == DG_GROUPS_BY_ROW ? rows : all);
    c->gather = array_memory(shape->gather, rows);
    c->scatter = array_memory(shape->scatter, rows);
    q->sizes = c->sizes.data;
    q->gather = shape->gather == NULL ? NULL : c->gather.data;
    q->scatter = shape->scatter == NULL ? NULL : c->scatter.data;

    c->a = matrix_memory(r, &g->a, q->a_stride, own_a, INPUT_FILL);
    c->b = matrix_memory(r, &g->b, q->b_stride, own_b, INPUT_FILL);
    c->bias = matrix_memory(r, &g->bias, q->bias_stride, all, INPUT_FILL);
    c->d = matrix_memory(r, &g->d, q->d_stride, own_d, OUTPUT_FILL);
    c->scale_a = scale_memory(r, &g->scale_a, q->scale_a_stride, own_a);
    c->scale_b = scale_memory(r, &g->scale_b, q->scale_b_stride, own_b);
    c->scale_d = scale_memory(r, &g->scale_d, q->scale_d_stride, own_d);
    if (shape->in_place) {
        g->c = g->d;
        q->c_stride = q->d_stride;
    } else {
        c->c = matrix_memory(r, &g->c, q->c_stride, own_d, INPUT_FILL);
    }
    list_rows(c);
    fill(r, c, shape->in_place);
    c->d_before = guard_new(c->d.bytes, GUARD_AFTER, 0);
    if (c->d.bytes != 0)
        memcpy(c->d_before.data, c->d.data, c->d.bytes);
    return c;
}

void grouped_case_free(grouped_case *c)
{
    guard *guards[] = {&c->a,       &c->b,    &c->c,     &c->d,      &c->scale_a, &c->scale_b,
                       &c->scale_d, &c->bias, &c->sizes, &c->gather, &c->scatter, &c->d_before};
    for (size_t i = 0; i < sizeof guards / sizeof guards[0]; i++)
        guard_free(guards[i]);
    free(c->rows);
    free(c);
}

/* ---- running ------------------------------------------------------------------------- */

/* Packs each group's weights; `gemm` and `groups` then name them. */
static dg_status pack(dg_context *context, dg_gemm *gemm, dg_groups *groups, dg_weights **weights)
{
    for (int32_t i = 0; i < groups->count; i++) {
        dg_matrix b = gemm->b;
        dg_scale scale = gemm->scale_b;
        b.data = moved(b.data, groups->b_stride * i, b.dtype);
        scale.data = moved(scale.data, groups->scale_b_stride * i, scale.dtype);
        dg_status status = dg_weights_pack(context, &b, &scale, NULL, 0, NULL, &weights[i]);
        if (status != DG_OK)
            return status;
    }
    groups->weights = (const dg_weights *const *)weights;
    gemm->b = (dg_matrix){0};
    gemm->scale_b = (dg_scale){0};
    return DG_OK;
}

dg_status grouped_case_run(grouped_case *c, dg_context *context, bool packed)
{
    if (c->d.bytes != 0)
        memcpy(c->d.data, c->d_before.data, c->d.bytes);
    dg_gemm g = c->gemm;
    dg_groups q = c->groups;
    const bool in_place = g.c.dtype != DG_NONE && g.c.data == g.d.data;
    void *sizes = NULL, *gather = NULL, *scatter = NULL;
    struct {
        guard *memory;
        void **data;
        void *device;
    } operands[] = {
        {&c->a, &g.a.data, NULL},      {&c->b, &g.b.data, NULL},
        {&c->c, &g.c.data, NULL},      {&c->scale_a, &g.scale_a.data, NULL},
        {&c->sizes, &sizes, NULL},     {&c->scale_b, &g.scale_b.data, NULL},
        {&c->gather, &gather, NULL},   {&c->scale_d, &g.scale_d.data, NULL},
        {&c->scatter, &scatter, NULL}, {&c->bias, &g.bias.data, NULL},
        {&c->d, &g.d.data, NULL},
    };
    enum { OPERANDS = sizeof operands / sizeof operands[0] };
    for (size_t i = 0; i < OPERANDS; i++)
        *operands[i].data = operands[i].device =
            test_to_device(context, operands[i].memory->data, operands[i].memory->bytes);
    if (in_place)
        g.c.data = g.d.data;
    q.sizes = sizes;
    q.gather = c->groups.gather == NULL ? NULL : gather;
    q.scatter = c->groups.scatter == NULL ? NULL : scatter;

    dg_weights **weights = calloc((size_t)q.count + 1, sizeof(dg_weights *));
    assert_non_null(weights);
    dg_status status = packed ? pack(context, &g, &q, weights) : DG_OK;
    if (status == DG_OK)
        status = dg_grouped_run(context, &g, &q, NULL);
    if (status == DG_OK)
        status = dg_synchronize(context, NULL);
    for (size_t i = 0; i + 1 < OPERANDS; i++)
        test_release(context, operands[i].device, operands[i].memory->data);
    test_from_device(context, operands[OPERANDS - 1].device, c->d.data, c->d.bytes);
    for (int32_t i = 0; i < q.count; i++)
        dg_weights_destroy(weights[i]);
    free(weights);
    return status;
}

/* ---- checking ------------------------------------------------------------------------ */

/* The row of a group's GEMM that a row of the product is, as a GEMM of M = 1. */
static dg_gemm row_gemm(const dg_gemm *group, const grouped_row *row)
{
    dg_gemm made = gemm_part(group, row->a, 1, 0, group->d.cols);
    const dg_gemm of_d = gemm_part(group, row->d, 1, 0, group->d.cols);
    made.c = of_d.c;
    made.d = of_d.d;
    made.scale_d = of_d.scale_d;
    return made;
}

/* C's row as it was before the call, when C is D. */
static void use_c_before(const grouped_case *c, dg_gemm *row)
{
    if (row->c.dtype != DG_NONE && c->gemm.c.data == c->gemm.d.data)
        row->c.data = (char *)c->d_before.data + ((char *)row->d.data - (char *)c->d.data);
}

static double element_limit(void)
{
    return test_device() == DG_CPU ? 1e-5 : 8e-3; /* as in gemm_case.c */
}

/* `b`: the group's, dequantised. */
static void check_row(const grouped_case *c, int64_t index, const dg_gemm *row, const double *b)
{
    const int64_t n = row->d.cols;
    double *reference = malloc((size_t)(2 * n) * sizeof *reference);
    assert_non_null(reference);
    oracle_gemm_of(row, b, reference, reference + n);
    for (int64_t j = 0; j < n; j++) {
        const double out = dgi_load_f32(row->d.data, row->d.dtype, j);
        const double tolerance = element_limit() * reference[n + j];
        if (!oracle_close(out, row->d.dtype, reference[j], tolerance))
            fail_msg("grouping %d, %d groups, row %lld (group %d, row %lld of A), column %lld is "
                     "%.9g, should be %.9g +- %.3g: %s",
                     c->groups.grouping, c->groups.count, (long long)index, c->rows[index].group,
                     (long long)c->rows[index].a, (long long)j, out, reference[j], tolerance,
                     gemm_text(&c->gemm));
    }
    free(reference);
}

/* Marks a row of some D: what its bytes should be. */
enum { UNTOUCHED = 0, RESULT, ZERO };
static void mark(const grouped_case *c, unsigned char *marks, const dg_matrix *d, int64_t row,
                 int as)
{
    const size_t element = dg_dtype_bytes(d->dtype);
    const size_t at =
        (size_t)((char *)d->data - (char *)c->d.data) + (size_t)(row * d->ld) * element;
    if (d->cols != 0)
        memset(marks + at, as, (size_t)d->cols * element);
}

void grouped_case_check(const grouped_case *c)
{
    const dg_groups *q = &c->groups;
    unsigned char *marks = calloc(c->d.bytes + 1, 1);
    const size_t most = (size_t)(c->gemm.d.cols * c->gemm.a.cols + 1);
    double *b = malloc(most * sizeof *b);
    int32_t b_group = -1; /* whose it is */
    assert_non_null(marks);
    assert_non_null(b);
    if (q->padding == DG_PADDING_ZERO && q->grouping == DG_GROUPS_MASKED)
        for (int32_t group = 0; group < q->count; group++) {
            const dg_gemm g = grouped_case_group(c, group);
            for (int64_t row = 0; row < g.d.rows; row++)
                mark(c, marks, &g.d, row, ZERO);
        }
    for (int64_t i = 0; i < c->row_count; i++) {
        const grouped_row *row = &c->rows[i];
        if (row->d < 0 || c->gemm.d.cols == 0)
            continue;
        if (row->group < 0) {
            mark(c, marks, &c->gemm.d, row->d, q->padding == DG_PADDING_ZERO ? ZERO : UNTOUCHED);
            continue;
        }
        const dg_gemm g = grouped_case_group(c, row->group);
        mark(c, marks, &g.d, row->d, RESULT);
        if (row->group != b_group)
            oracle_dequantize(&g.b, &g.scale_b, b);
        b_group = row->group;
        dg_gemm alone = row_gemm(&g, row);
        use_c_before(c, &alone);
        check_row(c, i, &alone, b);
    }
    const unsigned char *now = c->d.data, *before = c->d_before.data;
    for (size_t i = 0; i < c->d.bytes; i++)
        if (marks[i] != RESULT && now[i] != (marks[i] == ZERO ? 0 : before[i]))
            fail_msg("grouping %d, %d groups: byte %zu of D should be %s: %s", q->grouping,
                     q->count, i, marks[i] == ZERO ? "zero" : "untouched", gemm_text(&c->gemm));
    free(b);
    free(marks);
}

void grouped_case_check_untouched(const grouped_case *c)
{
    if (c->d.bytes != 0)
        assert_memory_equal(c->d.data, c->d_before.data, c->d.bytes);
}

void grouped_case_check_bits(const grouped_case *c, dg_context *context)
{
    const size_t bytes = (size_t)c->gemm.d.cols * dg_dtype_bytes(c->gemm.d.dtype);
    void *copy = malloc(bytes + 1);
    assert_non_null(copy);
    for (int64_t i = 0; i < c->row_count; i++) {
        const grouped_row *row = &c->rows[i];
        if (row->group < 0 || row->d < 0)
            continue;
        const dg_gemm g = grouped_case_group(c, row->group);
        dg_gemm alone = row_gemm(&g, row);
        use_c_before(c, &alone);
        const void *grouped = alone.d.data;
        alone.d.data = copy;
        assert_ok(dg_gemm_run(context, &alone, NULL));
        if (memcmp(copy, grouped, bytes) != 0)
            fail_msg("row %lld differs in bits from the same row alone: %s", (long long)i,
                     gemm_text(&c->gemm));
    }
    free(copy);
}
