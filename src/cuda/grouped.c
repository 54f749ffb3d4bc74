/* SPDX-License-Identifier: MIT */
/* Grouped products and tables on a GPU: not there yet, and every call says so. */
#include "cuda/context.h"

static dg_status refuse(void)
{
    return dgi_fail(DG_UNSUPPORTED_DEVICE,
                    "grouped products and tables run on the CPU (DG_CPU) only in this version");
}

dg_status dgi_cuda_grouped(dg_context *context, const dg_gemm *gemm, const dg_groups *groups,
                           void *stream)
{
    (void)context, (void)gemm, (void)groups, (void)stream;
    return refuse();
}

dg_status dgi_cuda_grouped_prepare(dg_context *context, const dg_gemm *gemm,
                                   const dg_groups *groups)
{
    (void)context, (void)gemm, (void)groups;
    return refuse();
}

dg_status dgi_cuda_table_open(dg_table *table)
{
    (void)table;
    return refuse();
}

void dgi_cuda_table_close(dg_table *table)
{
    (void)table;
}

dg_status dgi_cuda_table_update(dg_table *table, void *stream)
{
    (void)table, (void)stream;
    return refuse();
}

dg_status dgi_cuda_table_update_device(dg_table *table, const dg_table_values *values, void *stream)
{
    (void)table, (void)values, (void)stream;
    return refuse();
}

dg_status dgi_cuda_table_run(dg_table *table, void *stream)
{
    (void)table, (void)stream;
    return refuse();
}
