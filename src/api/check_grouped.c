/* SPDX-License-Identifier: MIT */
/* The argument checks of grouped products and of tables: see check.h. */
#include "api/check.h"
#include "api/region.h"

#include "core/grouped.h"

typedef long long ll; /* for printf */

/* ---- what the groups say ------------------------------------------------------------- */

static dg_status check_array(const void *array, const char *name, int64_t entries)
{
    if (entries != 0 && array == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL, but %lld entries are needed", name,
                        (ll)entries);
    if ((uintptr_t)array % sizeof(int32_t) != 0)
        return dgi_fail(DG_MISALIGNED, "%s is at %p: 32-bit integers are 4-byte aligned", name,
                        array);
    return DG_OK;
}

static dg_status check_fields(const dg_groups *q)
{
    if ((unsigned)q->grouping > DG_GROUPS_K_BLOCKS)
        return dgi_fail(DG_INVALID_ARGUMENT, "groups.grouping is %d, not a dg_grouping",
                        q->grouping);
    if ((unsigned)q->padding > DG_PADDING_ZERO)
        return dgi_fail(DG_INVALID_ARGUMENT, "groups.padding is %d, not a dg_padding", q->padding);
    if (q->padding != DG_PADDING_UNTOUCHED && dgi_groups_divide_k(q))
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "groups.padding is DG_PADDING_ZERO, but products grouped along K have no "
                        "padding rows");
    if (q->count < 0)
        return dgi_fail(DG_INVALID_ARGUMENT, "groups.count is %d: it cannot be negative", q->count);
    if (q->grouping == DG_GROUPS_BY_END && q->alignment < 1)
        return dgi_fail(DG_INVALID_ARGUMENT, "groups.alignment is %d: it must be 1 or more",
                        q->alignment);
    if (q->expected_rows < 0)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "groups.expected_rows is %lld: it cannot be negative (0: unknown)",
                        (ll)q->expected_rows);
    if (!dgi_groups_share_rows(q) && (q->gather != NULL || q->scatter != NULL))
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "groups.%s is given: only DG_GROUPS_BY_END and DG_GROUPS_BY_ROW take it",
                        q->gather != NULL ? "gather" : "scatter");
    return DG_OK;
}

static dg_status check_rows(const dg_gemm *g, const dg_groups *q)
{
    const int64_t rows = dgi_groups_rows(g, q);
    if (q->rows < 0 || rows > INT32_MAX)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "groups divide %lld rows: it must be 0 to 2^31-1, since row numbers have "
                        "32 bits",
                        (ll)(q->rows < 0 ? q->rows : rows));
    if (q->rows != 0 && q->gather == NULL && q->rows != g->a.rows)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "groups.rows is %lld, but without gather it is a.rows, %lld (or 0)",
                        (ll)q->rows, (ll)g->a.rows);
    if (dgi_groups_divide_k(q) && g->a.cols > INT32_MAX)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "a.cols is %lld: groups along K divide at most 2^31-1 columns",
                        (ll)g->a.cols);
    DGI_TRY(
        check_array(q->sizes, "groups.sizes", q->grouping == DG_GROUPS_BY_ROW ? rows : q->count));
    DGI_TRY(check_array(q->gather, "groups.gather", 0));
    return check_array(q->scatter, "groups.scatter", 0);
}

/* ---- packed weights ------------------------------------------------------------------ */

static bool same_kind(const dg_weights *x, const dg_weights *y)
{
    return x->b.rows == y->b.rows && x->b.cols == y->b.cols && x->b.dtype == y->b.dtype &&
           x->scale.dtype == y->scale.dtype && x->scale.block_rows == y->scale.block_rows &&
           x->scale.block_cols == y->scale.block_cols && x->scale.row_phase == y->scale.row_phase &&
           x->scale.col_phase == y->scale.col_phase && x->backend == y->backend &&
           x->device == y->device;
}

static dg_status check_weights(const dg_gemm *g, const dg_groups *q)
{
    if (g->weights != NULL)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "gemm.weights is given: groups take packed weights as groups.weights");
    if (q->weights == NULL)
        return DG_OK;
    if (dgi_groups_divide_k(q))
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "groups.weights is given: products grouped along K take b and scale_b");
    if (q->count == 0)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "groups.weights is given, but groups.count is 0: give b and scale_b");
    for (int32_t i = 0; i < q->count; i++) {
        if (q->weights[i] == NULL)
            return dgi_fail(DG_INVALID_ARGUMENT, "groups.weights[%d] is NULL", i);
        if (!same_kind(q->weights[i], q->weights[0]))
            return dgi_fail(DG_INVALID_ARGUMENT,
                            "groups.weights[%d] differs from the first in shape, type, scales or "
                            "device",
                            i);
    }
    return DG_OK;
}

/* ---- scales along K ------------------------------------------------------------------ */

/* Makes *scale the one that all of K needs: a group may begin with a column of its own. */
static dg_status take_k_scale(dg_scale *scale, const char *name, int64_t k, int32_t groups)
{
    if (scale->block_cols <= 0)
        return DG_OK;
    if (scale->col_phase != 0)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "%s.col_phase is %d: it is 0 where groups divide K, since each begins with "
                        "a scale of its own",
                        name, scale->col_phase);
    const int64_t least = dg_scale_count(k, scale->block_cols, 0);
    const int64_t most = least + (groups > 1 ? groups - 1 : 0);
    if (scale->cols < least || scale->cols > most)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "%s.cols is %lld, but %d groups of together %lld columns in blocks of %d "
                        "need %lld to %lld",
                        name, (ll)scale->cols, groups, (ll)k, scale->block_cols, (ll)least,
                        (ll)most);
    return DG_OK;
}

/* ---- memory -------------------------------------------------------------------------- */

/* The same operand of all groups, as one region. */
static dg_status spread(dgi_region first, const char *name, int64_t stride, size_t element,
                        int32_t groups, dgi_region *all)
{
    int64_t bytes = 0, extent = 0;
    if (stride < 0)
        return dgi_fail(DG_INVALID_ARGUMENT, "groups.%s_stride is %lld: it cannot be negative",
                        name, (ll)stride);
    *all = first;
    if (groups <= 1 || first.rows == 0)
        return DG_OK;
    if (__builtin_mul_overflow(stride, (int64_t)element, &bytes) ||
        __builtin_mul_overflow(bytes, (int64_t)(groups - 1), &bytes) ||
        __builtin_add_overflow(bytes, (first.rows - 1) * first.pitch + first.run_bytes, &extent) ||
        first.start > UINTPTR_MAX - (uintptr_t)extent)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "groups.%s_stride is %lld: %d groups pass the end of the address space",
                        name, (ll)stride, groups);
    *all = (dgi_region){first.start, 1, extent, extent};
    return DG_OK;
}

static dg_status spread_matrix(const dg_matrix *m, const char *name, int64_t stride, int32_t groups,
                               dgi_region *all)
{
    return spread(dgi_matrix_region(m), name, stride, dg_dtype_bytes(m->dtype), groups, all);
}

static dg_status spread_scale(const dg_scale *s, const char *name, int64_t stride, int32_t groups,
                              dgi_region *all)
{
    return spread(dgi_scale_region(s), name, stride, dg_dtype_bytes(s->dtype), groups, all);
}

/* No two groups' D may meet: all lie the same distance apart. */
static dg_status check_disjoint(const dg_matrix *d, int64_t stride, int32_t groups)
{
    const dgi_region first = dgi_matrix_region(d);
    dgi_region other = first;
    for (int32_t i = 1; i < groups; i++) {
        other.start += (uintptr_t)stride * dg_dtype_bytes(d->dtype);
        if (dgi_overlap(first, other))
            return dgi_fail(DG_INVALID_ARGUMENT,
                            "groups.d_stride is %lld: the D of group 0, %lld x %lld with ld %lld, "
                            "overlaps that of group %d",
                            (ll)stride, (ll)d->rows, (ll)d->cols, (ll)d->ld, i);
        if (other.start >= first.start + (uintptr_t)(first.rows * first.pitch))
            break;
    }
    return DG_OK;
}

static dgi_region array_region(const int32_t *array, int64_t entries)
{
    const int64_t bytes = entries * (int64_t)sizeof *array;
    return (dgi_region){(uintptr_t)array, array == NULL || entries == 0 ? 0 : 1, bytes, bytes};
}

static dg_status check_memory(const dg_gemm *g, const dg_groups *q)
{
    const bool own_rows = !dgi_groups_share_rows(q), own_a = q->grouping == DG_GROUPS_MASKED;
    const int32_t groups = q->count, d_groups = own_rows ? groups : 1,
                  a_groups = own_a ? groups : 1;
    const int32_t b_groups = dgi_groups_divide_k(q) ? 1 : groups;
    const int64_t rows = dgi_groups_rows(g, q);
    const bool reads_c = g->beta != 0.0f;
    dgi_region d, c, inputs[9];
    static const char *const names[] = {"a",
                                        "scale_a",
                                        "b",
                                        "scale_b",
                                        "bias",
                                        "scale_d",
                                        "groups.sizes",
                                        "groups.gather",
                                        "groups.scatter"};
    DGI_TRY(spread_matrix(&g->d, "d", q->d_stride, d_groups, &d));
    DGI_TRY(spread_matrix(&g->c, "c", q->c_stride, d_groups, &c));
    DGI_TRY(spread_matrix(&g->a, "a", q->a_stride, a_groups, &inputs[0]));
    DGI_TRY(spread_scale(&g->scale_a, "scale_a", q->scale_a_stride, a_groups, &inputs[1]));
    DGI_TRY(spread_matrix(&g->b, "b", q->b_stride, b_groups, &inputs[2]));
    DGI_TRY(spread_scale(&g->scale_b, "scale_b", q->scale_b_stride, b_groups, &inputs[3]));
    DGI_TRY(spread_matrix(&g->bias, "bias", q->bias_stride, groups, &inputs[4]));
    DGI_TRY(spread_scale(&g->scale_d, "scale_d", q->scale_d_stride, d_groups, &inputs[5]));
    inputs[6] = array_region(q->sizes, q->grouping == DG_GROUPS_BY_ROW ? rows : groups);
    inputs[7] = array_region(q->gather, rows);
    inputs[8] = array_region(q->scatter, rows);
    DGI_TRY(check_disjoint(&g->d, q->d_stride, d_groups));
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        if (dgi_overlap(d, inputs[i]))
            return dgi_fail(DG_INVALID_ARGUMENT, "d overlaps %s", names[i]);
    for (int32_t i = 0; q->weights != NULL && i < groups; i++)
        if (dgi_overlap(d, dgi_packed_region(q->weights[i])))
            return dgi_fail(DG_INVALID_ARGUMENT, "d overlaps groups.weights[%d]", i);
    if (!reads_c)
        return DG_OK;
    bool in_place = g->c.data == g->d.data && g->c.dtype == g->d.dtype &&
                    (g->c.ld == g->d.ld || g->d.rows <= 1) &&
                    (q->c_stride == q->d_stride || d_groups <= 1);
    if (!in_place && dgi_overlap(d, c))
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "d overlaps c: c may be d itself (same data, dtype, ld and stride), or "
                        "apart");
    return DG_OK;
}

/* ---- calls --------------------------------------------------------------------------- */

dg_status dgi_check_groups(const dg_gemm *gemm, const dg_groups *q, const dg_context *context)
{
    dg_gemm g = *gemm, placed = *gemm;
    DGI_TRY(check_fields(q));
    DGI_TRY(check_weights(gemm, q));
    if (g.workspace != NULL)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "gemm.workspace is given: grouped calls take scratch memory from the "
                        "context");
    if (q->weights != NULL)
        g.weights = q->weights[0];
    if (q->grouping == DG_GROUPS_K_BLOCKS) { /* all blocks together */
        g.a.ld = placed.a.ld = g.a.cols;
        g.b.ld = placed.b.ld = g.b.cols;
    }
    if (dgi_groups_divide_k(
            q)) { /* scales: their number first, then all else as if it were exact */
        DGI_TRY(take_k_scale(&g.scale_a, "scale_a", g.a.cols, q->count));
        DGI_TRY(take_k_scale(&g.scale_b, "scale_b", g.b.cols, q->count));
        g.scale_a.cols = dg_scale_count(g.a.cols, g.scale_a.block_cols, 0);
        g.scale_b.cols = dg_scale_count(g.b.cols, g.scale_b.block_cols, 0);
    }
    DGI_TRY(check_rows(&g, q));
    const int64_t d_rows = q->scatter != NULL ? g.d.rows : dgi_groups_rows(&g, q);
    DGI_TRY(dgi_check_product(&g, d_rows, q->count != 0, context));
    if (q->count == 0 && q->padding == DG_PADDING_ZERO && dgi_groups_share_rows(q) &&
        d_rows * g.d.cols != 0 && g.d.data == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "d.data is NULL, but all of its rows become zero");
    return check_memory(&placed, q);
}

static bool same_blocks(const dg_scale *x, const dg_scale *y)
{
    return x->block_rows == y->block_rows && x->block_cols == y->block_cols;
}

dg_status dgi_check_table_problem(const dg_gemm *g, const dg_gemm *largest,
                                  const dg_context *context)
{
    DGI_TRY(dgi_check_gemm(g, context));
    if (g->workspace != NULL)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "gemm.workspace is given: tables take scratch memory from the context");
    const dg_matrix *b = g->weights != NULL ? &g->weights->b : &g->b;
    const dg_scale *scale_b = g->weights != NULL ? &g->weights->scale : &g->scale_b;
    if (g->d.rows > largest->d.rows || g->d.cols > largest->d.cols || g->a.cols > largest->a.cols)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "gemm has M, N, K of %lld, %lld, %lld, but the table was made for at most "
                        "%lld, %lld, %lld",
                        (ll)g->d.rows, (ll)g->d.cols, (ll)g->a.cols, (ll)largest->d.rows,
                        (ll)largest->d.cols, (ll)largest->a.cols);
    if (g->a.dtype != largest->a.dtype || b->dtype != largest->b.dtype ||
        g->d.dtype != largest->d.dtype)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "gemm has a, b, d of %s, %s, %s, but the table was made for %s, %s, %s",
                        dg_dtype_name(g->a.dtype), dg_dtype_name(b->dtype),
                        dg_dtype_name(g->d.dtype), dg_dtype_name(largest->a.dtype),
                        dg_dtype_name(largest->b.dtype), dg_dtype_name(largest->d.dtype));
    if (!same_blocks(&g->scale_a, &largest->scale_a) || !same_blocks(scale_b, &largest->scale_b))
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "gemm has scales (%d,%d) and (%d,%d), but the table was made for (%d,%d) "
                        "and (%d,%d)",
                        g->scale_a.block_rows, g->scale_a.block_cols, scale_b->block_rows,
                        scale_b->block_cols, largest->scale_a.block_rows,
                        largest->scale_a.block_cols, largest->scale_b.block_rows,
                        largest->scale_b.block_cols);
    if (g->accumulation != largest->accumulation)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "gemm.accumulation is %d, but the table was made for %d", g->accumulation,
                        largest->accumulation);
    return DG_OK;
}

dg_status dgi_check_table_values(const dg_table_values *v)
{
    const struct {
        const char *name;
        const void *array;
        size_t alignment;
    } arrays[] = {
        {"m", v->m, sizeof *v->m},
        {"n", v->n, sizeof *v->n},
        {"k", v->k, sizeof *v->k},
        {"a", v->a, sizeof *v->a},
        {"b", v->b, sizeof *v->b},
        {"c", v->c, sizeof *v->c},
        {"d", v->d, sizeof *v->d},
        {"bias", v->bias, sizeof *v->bias},
        {"scale_a", v->scale_a, sizeof *v->scale_a},
        {"scale_b", v->scale_b, sizeof *v->scale_b},
        {"scale_d", v->scale_d, sizeof *v->scale_d},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        if ((uintptr_t)arrays[i].array % arrays[i].alignment != 0)
            return dgi_fail(DG_MISALIGNED, "values.%s is at %p: its entries are %zu-byte aligned",
                            arrays[i].name, arrays[i].array, arrays[i].alignment);
    return DG_OK;
}
