/* SPDX-License-Identifier: MIT */
/* The planner for grouped products on Hopper. */
#include "core/plan_grouped_sm90.h"

#include "core/status.h"
#include "core/tuning_sm90.h"

const dgi_sm90_kernel dgi_sm90_grouped_kernels[] = {
#define DGI_SM90(name, a, b, ...) {#name, DG_##a, DG_##b, __VA_ARGS__},
#include "core/kernels_sm90_grouped.def"
#undef DGI_SM90
};
const int32_t dgi_sm90_grouped_kernel_count =
    sizeof dgi_sm90_grouped_kernels / sizeof dgi_sm90_grouped_kernels[0];

static int64_t ceil_div(int64_t size, int64_t step)
{
    return (size + step - 1) / step;
}

static double cycles(const dgi_sm90_kernel *kernel, const dg_gemm *gemm, int64_t products,
                     int64_t rows, int32_t units)
{
    const int64_t tiles = products * ceil_div(rows, kernel->tile_m) *
                          ceil_div(gemm->d.cols, (int64_t)kernel->tile_n * kernel->cluster);
    const int64_t rounds = ceil_div(tiles, units / kernel->cluster);
    return (double)rounds *
           ((double)ceil_div(gemm->a.cols, 128) * kernel->cycles + DGI_GROUPED_TILE_CYCLES);
}

dg_status dgi_sm90_choose_grouped(const dg_gemm *gemm, int64_t products, int64_t rows,
                                  int32_t units, int32_t *index)
{
    double best = 0.0;
    *index = -1;
    dg_status status = DG_UNSUPPORTED_TYPE;
    for (int32_t i = 0; i < dgi_sm90_grouped_kernel_count; i++) {
        const dgi_sm90_kernel *kernel = &dgi_sm90_grouped_kernels[i];
        const dg_status refusal = dgi_sm90_accepts(kernel, gemm);
        if (refusal != DG_OK) {
            status = refusal == DG_UNSUPPORTED_TYPE ? status : refusal;
            continue;
        }
        const double cost = cycles(kernel, gemm, products, rows, units);
        if (*index < 0 || cost < best) {
            best = cost;
            *index = i;
        }
    }
    if (*index >= 0)
        return DG_OK;
    return dgi_fail(status,
                    "no grouped CUDA kernel for a %s, b %s, M, N, K %lld, %lld, %lld, scale_a "
                    "(%d,%d) phase %d and scale_b (%d,%d) phase %d: blocks and phases along K must "
                    "be multiples of 32",
                    dg_dtype_name(gemm->a.dtype), dg_dtype_name(gemm->b.dtype),
                    (long long)gemm->d.rows, (long long)gemm->d.cols, (long long)gemm->a.cols,
                    gemm->scale_a.block_rows, gemm->scale_a.block_cols, gemm->scale_a.col_phase,
                    gemm->scale_b.block_rows, gemm->scale_b.block_cols, gemm->scale_b.col_phase);
}
