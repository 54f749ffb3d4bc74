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
    dgi_varying vary;          /* whether scales change along K in the largest problem */
    CUdeviceptr memory;        /* of all that follows */
    dgi_grouped_product *described;
    dgi_prepared prepared;
} table_state;

static void release(dgi_cuda *cuda, table_state *s)
{
    if (s->memory != 0)
        cuda->driver.cuMemFree(s->memory);
    free(s->host);
    free(s);
}

static dg_status place(dgi_cuda *cuda, table_state *s, const dg_table *table)
{
    const dgi_sm90_kernel *kernel = &dgi_sm90_grouped_kernels[s->kernel];
    const int32_t problems = table->problems;
    const int64_t k = table->largest.a.cols;
    const size_t described = (size_t)problems * sizeof *s->described;
    const size_t bytes =
        described + dgi_cuda_prepare(cuda, kernel, problems, k, NULL, &s->prepared);
    DGI_TRY(dgi_driver_check(&cuda->driver, cuda->driver.cuMemAlloc(&s->memory, bytes),
                             "allocating a table"));
    char *memory = (char *)(uintptr_t)s->memory;
    s->described = (dgi_grouped_product *)memory;
    dgi_cuda_prepare(cuda, kernel, problems, k, memory + described, &s->prepared);
    /* Nothing is set: all problems are empty. */
    DGI_TRY(dgi_driver_check(&cuda->driver, cuda->driver.cuMemsetD8Async(s->memory, 0, bytes, NULL),
                             "clearing a table"));
    DGI_TRY(dgi_driver_check(&cuda->driver, cuda->driver.cuStreamSynchronize(NULL),
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
    const dg_gemm *largest = &table->largest;
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
    s->vary = dgi_cuda_varying(largest);
    bool pushed;
    dg_status status = dgi_cuda_enter(cuda, &pushed);
    if (status == DG_OK)
        status = dgi_cuda_leave(cuda, pushed, place(cuda, s, table));
    if (status != DG_OK) {
        release(cuda, s);
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
    release(cuda, table->state);
    dgi_cuda_leave(cuda, pushed, DG_OK);
}

/* What the copy engine and the kernel need of a problem, which the front does not know. */
static dg_status check(const table_state *s, const dg_gemm *g, int32_t index)
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
    return dgi_sm90_accepts(kernel, g);
}

/* As dg_gemm_run does, of operands that are not empty: an empty one may have any address. */
static dg_status check_pointers(dgi_cuda *cuda, const dg_gemm *g)
{
    const struct {
        const void *data;
        int64_t elements;
        const char *name;
    } operands[] = {
        {g->a.data, g->a.rows * g->a.cols, "a"},
        {g->b.data, g->weights == NULL ? g->b.rows * g->b.cols : 0, "b"},
        {g->c.data, g->beta != 0.0f ? g->c.rows * g->c.cols : 0, "c"},
        {g->d.data, g->d.rows * g->d.cols, "d"},
        {g->bias.data, g->bias.rows * g->bias.cols, "bias"},
        {g->scale_a.data, g->scale_a.rows * g->scale_a.cols, "scale_a"},
        {g->scale_b.data, g->scale_b.rows * g->scale_b.cols, "scale_b"},
        {g->scale_d.data, g->scale_d.rows * g->scale_d.cols, "scale_d"},
    };
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++)
        if (operands[i].elements > 0)
            DGI_TRY(dgi_cuda_check_pointer(cuda, operands[i].data, operands[i].name));
    return DG_OK;
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
        DGI_TRY(dgi_cuda_describe_product(cuda, kernel, &g, s->vary, &s->host[i]));
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
            DGI_TRY(check(table->state, &g, i));
    }
    if (table->problems == 0)
        return DG_OK;
    bool pushed;
    DGI_TRY(dgi_cuda_enter(cuda, &pushed));
    return dgi_cuda_leave(cuda, pushed, update(cuda, table, stream));
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
    return dgi_cuda_leave(cuda, pushed, setup(cuda, table, &values, stream));
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
