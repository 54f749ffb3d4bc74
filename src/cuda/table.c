/* SPDX-License-Identifier: MIT */
/*
 * Tables of problems on Hopper. The device has two arrays at fixed addresses: the problems as they
 * were described, and the records and schedule that grouped_setup makes of them.
 */
#include "cuda/grouped.h"

#include "core/copy_rules.h"

#include <stdlib.h>
#include <string.h>

typedef struct table_state {
    int32_t kernel;
    dgi_grouped_product *host; /* what an update copies to `described` */
    CUdeviceptr memory;        /* of all that follows */
    dgi_grouped_product *described;
    dgi_prepared prepared;
} table_state;

/* The device's context is current. */
static void release_memory(dgi_cuda *cuda, table_state *s)
{
    if (s->memory != 0)
        cuda->driver.cuMemFree(s->memory);
}

static void release_host(table_state *s)
{
    free(s->host);
    free(s);
}

static dg_status place(dgi_cuda *cuda, table_state *s, const dg_table *table)
{
    const dgi_sm90_kernel *kernel = &dgi_sm90_grouped_kernels[s->kernel];
    const int32_t problems = table->problems;
    const int64_t k = table->largest.a.cols;
    const size_t described = ((size_t)problems + 1) * sizeof *s->described; /* never nothing */
    const size_t bytes =
        described + dgi_cuda_prepare(cuda, kernel, problems, k, NULL, &s->prepared);
    DGI_TRY(dgi_driver_check(&cuda->driver, cuda->driver.cuMemAlloc(&s->memory, bytes),
                             "allocating a table"));
    char *memory = (char *)(uintptr_t)s->memory;
    s->described = (dgi_grouped_product *)memory;
    dgi_cuda_prepare(cuda, kernel, problems, k, memory + described, &s->prepared);
    /* Nothing is set: all problems are empty. */
    DGI_TRY(dgi_driver_check(
        &cuda->driver, cuda->driver.cuMemsetD8Async(s->memory, 0, bytes, CU_STREAM_PER_THREAD),
        "clearing a table"));
    DGI_TRY(dgi_driver_check(&cuda->driver, cuda->driver.cuStreamSynchronize(CU_STREAM_PER_THREAD),
                             "clearing a table"));
    CUfunction function;
    DGI_TRY(dgi_cuda_grouped_kernel(cuda, s->kernel, NULL, &function));
    return dgi_cuda_small_kernel(cuda, DGI_SMALL_grouped_setup, NULL, &function);
}

static dgi_typical typical_of(const dg_table *table)
{
    return (dgi_typical){table->largest, table->problems, table->largest.d.rows, 0.0};
}

dg_status dgi_cuda_table_open(dg_table *table)
{
    dgi_cuda *cuda = table->context->state;
    if (cuda->forced_grouped_few >= 0)
        return dgi_fail(DG_UNSUPPORTED_SHAPE, "%s takes groups only, no tables",
                        dgi_grouped_few_kernels[cuda->forced_grouped_few].name);
    int32_t kernel;
    const dgi_typical typical = typical_of(table);
    DGI_TRY(dgi_cuda_choose_grouped(cuda, &typical, &kernel));
    table_state *s = calloc(1, sizeof *s);
    const size_t problems = (size_t)table->problems;
    if (s != NULL)
        s->host = aligned_alloc(_Alignof(dgi_grouped_product), (problems + 1) * sizeof *s->host);
    if (s == NULL || s->host == NULL) {
        free(s);
        return dgi_fail(DG_OUT_OF_MEMORY, "no memory for %zu problems", problems);
    }
    memset(s->host, 0, (problems + 1) * sizeof *s->host);
    s->kernel = kernel;
    bool pushed;
    dg_status status = dgi_cuda_enter(cuda, &pushed);
    if (status == DG_OK) {
        status = place(cuda, s, table);
        if (status != DG_OK)
            release_memory(cuda, s);
        status = dgi_cuda_leave(cuda, pushed, status);
    }
    if (status != DG_OK) {
        release_host(s);
        return status;
    }
    table->state = s;
    return DG_OK;
}

void dgi_cuda_table_close(dg_table *table)
{
    dgi_cuda *cuda = table->context->state;
    bool pushed;
    if (dgi_cuda_enter(cuda, &pushed) != DG_OK)
        return;
    release_memory(cuda, table->state);
    dgi_cuda_leave(cuda, pushed, DG_OK);
    release_host(table->state);
}

static void grow_scale(dg_scale *scale, int64_t rows, int64_t cols)
{
    scale->rows = dg_scale_count(rows, scale->block_rows, scale->row_phase);
    scale->cols = dg_scale_count(cols, scale->block_cols, scale->col_phase);
}

/* The problem as large as the device may make it: its scales, by their phases, then change where
 * those of the largest problem need not. Packed weights keep their N and K. */
static dg_gemm at_largest(const dg_gemm *largest, const dg_gemm *g)
{
    dg_gemm most = *g;
    most.a.rows = most.d.rows = largest->d.rows;
    if (g->weights == NULL) {
        most.b.rows = most.d.cols = largest->d.cols;
        most.a.cols = most.b.cols = largest->a.cols;
    }
    grow_scale(&most.scale_a, most.a.rows, most.a.cols);
    grow_scale(&most.scale_b, most.b.rows, most.b.cols);
    return most;
}

/* What the copy engine and the kernel need of a problem, which the front does not know. */
static dg_status check(const table_state *s, const dg_gemm *largest, const dg_gemm *g,
                       int32_t index)
{
    const dgi_sm90_kernel *kernel = &dgi_sm90_grouped_kernels[s->kernel];
    const dg_matrix *operands[] = {&g->a, &g->b};
    for (int i = 0; i < (g->weights != NULL ? 1 : 2); i++) {
        /* An ld that no row uses yet must be right too: the device may make them more. */
        const uint64_t address = operands[i]->rows != 0 ? (uintptr_t)operands[i]->data : 0;
        if (operands[i]->cols != 0 && !dgi_can_map(address, INT64_MAX, operands[i]->ld))
            return dgi_fail(DG_MISALIGNED,
                            "problem %d has %s at %p with ld %lld: in tables on CUDA devices both "
                            "are multiples of 16",
                            index, i == 0 ? "a" : "b", operands[i]->data,
                            (long long)operands[i]->ld);
    }
    DGI_TRY(dgi_cuda_check_scale(&g->scale_a, "scale_a"));
    DGI_TRY(dgi_cuda_check_scale(&g->scale_b, "scale_b"));
    DGI_TRY(dgi_cuda_check_scale(&g->scale_d, "scale_d"));
    const dg_gemm most = at_largest(largest, g);
    return dgi_sm90_accepts(kernel, &most);
}

/* As dg_gemm_run does, of operands that are not empty: an empty one may have any address. */
static dg_status check_pointers(dgi_cuda *cuda, const dg_gemm *g)
{
    const bool rows = g->weights == NULL;
    const dgi_cuda_operand operands[] = {
        {g->a.data, g->a.dtype, g->a.rows * g->a.cols > 0, "a"},
        {g->b.data, g->b.dtype, rows && g->b.rows * g->b.cols > 0, "b"},
        {g->c.data, g->c.dtype, g->beta != 0.0f && g->c.rows * g->c.cols > 0, "c"},
        {g->d.data, g->d.dtype, g->d.rows * g->d.cols > 0, "d"},
        {g->bias.data, g->bias.dtype, g->bias.rows * g->bias.cols > 0, "bias"},
        {g->scale_a.data, g->scale_a.dtype, g->scale_a.rows * g->scale_a.cols > 0, "scale_a"},
        {g->scale_b.data, g->scale_b.dtype, g->scale_b.rows * g->scale_b.cols > 0, "scale_b"},
        {g->scale_d.data, g->scale_d.dtype, g->scale_d.rows * g->scale_d.cols > 0, "scale_d"},
    };
    return dgi_cuda_check_operands(cuda, operands, sizeof operands / sizeof operands[0]);
}

static dg_status setup(dgi_cuda *cuda, dg_table *table, const dgi_device_values *values,
                       CUstream stream)
{
    table_state *s = table->state;
    const dgi_sm90_kernel *kernel = &dgi_sm90_grouped_kernels[s->kernel];
    dgi_grouped_setup_args args = {
        .groups = {.grouping = DGI_DEVICE_TABLE, .count = table->problems},
        .like.gemm.args.m = (int32_t)table->largest.d.rows,
        .like.gemm.args.n = (int32_t)table->largest.d.cols,
        .like.gemm.args.k = (int32_t)table->largest.a.cols,
        .problems = s->described,
        .values = *values,
    };
    return dgi_cuda_launch_setup(cuda, kernel, &s->prepared, &args, stream);
}

static dg_status update(dgi_cuda *cuda, dg_table *table, CUstream stream)
{
    table_state *s = table->state;
    const dgi_sm90_kernel *kernel = &dgi_sm90_grouped_kernels[s->kernel];
    bool captured;
    DGI_TRY(dgi_cuda_is_captured(cuda, stream, &captured));
    if (captured) /* a replay would read memory of the host */
        return dgi_fail(DG_NOT_PREPARED,
                        "dg_table_update() cannot be captured: call it before the capture, or "
                        "capture dg_table_update_device()");
    for (int32_t i = 0; i < table->problems; i++) {
        const dg_gemm g = dgi_cuda_with_weights(&table->set[i]);
        if (g.d.dtype == DG_NONE) {
            s->host[i] = (dgi_grouped_product){.gemm.args.m = 0};
            continue;
        }
        DGI_TRY(check_pointers(cuda, &g));
        const dg_gemm most = at_largest(&table->largest, &g);
        DGI_TRY(dgi_cuda_describe_product(cuda, kernel, &g, dgi_cuda_varying(&most), &s->host[i]));
    }
    CUresult result = cuda->driver.cuMemcpyAsync((CUdeviceptr)(uintptr_t)s->described,
                                                 (CUdeviceptr)(uintptr_t)s->host,
                                                 (size_t)table->problems * sizeof *s->host, stream);
    DGI_TRY(dgi_driver_check(&cuda->driver, result, "copying a table"));
    const dgi_device_values none = {NULL};
    return setup(cuda, table, &none, stream);
}

dg_status dgi_cuda_table_update(dg_table *table, void *stream)
{
    dgi_cuda *cuda = table->context->state;
    for (int32_t i = 0; i < table->problems; i++) {
        const dg_gemm g = dgi_cuda_with_weights(&table->set[i]);
        if (g.d.dtype != DG_NONE)
            DGI_TRY(check(table->state, &table->largest, &g, i));
    }
    if (table->problems == 0)
        return DG_OK;
    bool pushed;
    DGI_TRY(dgi_cuda_enter(cuda, &pushed));
    return dgi_cuda_leave(cuda, pushed, update(cuda, table, stream));
}

/* Memory of the host or of another device would fault in grouped_setup. */
static dg_status check_values(dgi_cuda *cuda, const dg_table_values *v)
{
    const dgi_cuda_operand operands[] = {
        {v->m, DG_NONE, v->m != NULL, "values.m"},
        {v->n, DG_NONE, v->n != NULL, "values.n"},
        {v->k, DG_NONE, v->k != NULL, "values.k"},
        {v->a, DG_NONE, v->a != NULL, "values.a"},
        {v->b, DG_NONE, v->b != NULL, "values.b"},
        {v->c, DG_NONE, v->c != NULL, "values.c"},
        {v->d, DG_NONE, v->d != NULL, "values.d"},
        {v->bias, DG_NONE, v->bias != NULL, "values.bias"},
        {v->scale_a, DG_NONE, v->scale_a != NULL, "values.scale_a"},
        {v->scale_b, DG_NONE, v->scale_b != NULL, "values.scale_b"},
        {v->scale_d, DG_NONE, v->scale_d != NULL, "values.scale_d"},
    };
    return dgi_cuda_check_operands(cuda, operands, sizeof operands / sizeof operands[0]);
}

dg_status dgi_cuda_table_update_device(dg_table *table, const dg_table_values *v, void *stream)
{
    dgi_cuda *cuda = table->context->state;
    const dgi_device_values values = {v->m, v->n,    v->k,       v->a,       v->b,      v->c,
                                      v->d, v->bias, v->scale_a, v->scale_b, v->scale_d};
    if (table->problems == 0)
        return DG_OK;
    bool pushed;
    DGI_TRY(dgi_cuda_enter(cuda, &pushed));
    dg_status status = check_values(cuda, v);
    if (status == DG_OK)
        status = setup(cuda, table, &values, stream);
    return dgi_cuda_leave(cuda, pushed, status);
}

dg_status dgi_cuda_table_run(dg_table *table, void *stream)
{
    dgi_cuda *cuda = table->context->state;
    const table_state *s = table->state;
    if (table->problems == 0)
        return DG_OK;
    bool pushed;
    DGI_TRY(dgi_cuda_enter(cuda, &pushed));
    return dgi_cuda_leave(cuda, pushed,
                          dgi_cuda_launch_records(cuda, s->kernel, &s->prepared, stream));
}

dg_status dgi_cuda_table_explain(dg_table *table, FILE *text)
{
    const dgi_cuda *cuda = table->context->state;
    const table_state *s = table->state;
    const dgi_typical typical = typical_of(table);
    const size_t problems = (size_t)table->problems;
    dgi_product_size *products = malloc((problems + 1) * sizeof *products);
    if (products == NULL)
        return dgi_fail(DG_OUT_OF_MEMORY, "no memory for the sizes of %zu problems", problems);
    for (size_t i = 0; i < problems; i++) {
        const dg_gemm *g = &table->set[i];
        products[i] =
            (dgi_product_size){(int32_t)g->d.rows, (int32_t)g->d.cols, (int32_t)g->a.cols};
    }
    dgi_sm90_explain_grouped(&typical, cuda->units, s->kernel, text);
    dg_status status =
        dgi_sm90_explain_balance(&dgi_sm90_grouped_kernels[s->kernel], products, table->problems,
                                 cuda->units, !cuda->batch_invariant, text);
    free(products);
    return status;
}
