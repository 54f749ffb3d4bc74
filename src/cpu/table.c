/* SPDX-License-Identifier: MIT */
/* Tables of problems on the CPU: "the device's table" is a copy of what was set. */
#include "core/grouped.h"
#include "cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

dg_status dgi_cpu_table_open(dg_table *table)
{
    table->state = calloc((size_t)table->problems + 1, sizeof *table->set);
    if (table->state == NULL)
        return dgi_fail(DG_OUT_OF_MEMORY, "no memory for %d problems", table->problems);
    return DG_OK;
}

void dgi_cpu_table_close(dg_table *table)
{
    free(table->state);
}

dg_status dgi_cpu_table_update(dg_table *table, void *stream)
{
    (void)stream;
    memcpy(table->state, table->set, (size_t)table->problems * sizeof *table->set);
    return DG_OK;
}

/* The sizes of all operands and scales follow from M, N and K. */
static void resize(dg_gemm *g, int64_t m, int64_t n, int64_t k)
{
    dg_scale *a = &g->scale_a, *b = &g->scale_b, *d = &g->scale_d;
    g->a.rows = g->c.rows = g->d.rows = m;
    g->b.rows = g->c.cols = g->d.cols = g->bias.cols = n;
    g->a.cols = g->b.cols = k;
    a->rows = dg_scale_count(m, a->block_rows, a->row_phase);
    a->cols = dg_scale_count(k, a->block_cols, a->col_phase);
    b->rows = dg_scale_count(n, b->block_rows, b->row_phase);
    b->cols = dg_scale_count(k, b->block_cols, b->col_phase);
    d->rows = dg_scale_count(m, d->block_rows, d->row_phase);
    d->cols = dg_scale_count(n, d->block_cols, d->col_phase);
}

static int64_t new_size(const int32_t *sizes, int32_t index, int64_t old, int64_t most)
{
    return sizes == NULL ? old : dgi_clamp_size(sizes[index], most);
}

static void new_address(void *const *addresses, int32_t index, void **data)
{
    if (addresses != NULL)
        *data = addresses[index];
}

static void change(dg_gemm *g, const dg_gemm *largest, const dg_table_values *v, int32_t i)
{
    const int64_t m = new_size(v->m, i, g->d.rows, largest->d.rows);
    int64_t n = g->d.cols, k = g->a.cols;
    if (g->weights == NULL) {
        n = new_size(v->n, i, n, largest->d.cols);
        k = new_size(v->k, i, k, largest->a.cols);
        new_address(v->b, i, &g->b.data);
        new_address(v->scale_b, i, &g->scale_b.data);
    }
    new_address(v->a, i, &g->a.data);
    new_address(v->c, i, &g->c.data);
    new_address(v->d, i, &g->d.data);
    new_address(v->bias, i, &g->bias.data);
    new_address(v->scale_a, i, &g->scale_a.data);
    new_address(v->scale_d, i, &g->scale_d.data);
    resize(g, m, n, k);
}

dg_status dgi_cpu_table_update_device(dg_table *table, const dg_table_values *values, void *stream)
{
    (void)stream;
    dg_gemm *problems = table->state;
    for (int32_t i = 0; i < table->problems; i++)
        if (problems[i].d.dtype != DG_NONE) /* it was set */
            change(&problems[i], &table->largest, values, i);
    return DG_OK;
}

dg_status dgi_cpu_table_run(dg_table *table, void *stream)
{
    (void)stream;
    return dgi_cpu_many(table->context->state, table->state, table->problems);
}

dg_status dgi_cpu_table_explain(dg_table *table, FILE *text)
{
    return dgi_cpu_explain_many(table->context->state, table->set, table->problems, text);
}
