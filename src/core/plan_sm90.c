/* SPDX-License-Identifier: MIT */
/* The planner for Hopper: which kernels can run a GEMM, and which of them is fastest. */
#include "core/plan_sm90.h"

#include "core/status.h"
#include "core/tuning_sm90.h"

#include <string.h>

const dgi_sm90_kernel dgi_sm90_kernels[] = {
#define DGI_SM90(name, a, b, ...) {#name, DG_##a, DG_##b, __VA_ARGS__},
#include "core/kernels_sm90.def"
#undef DGI_SM90
};
const int32_t dgi_sm90_kernel_count = sizeof dgi_sm90_kernels / sizeof dgi_sm90_kernels[0];

/* Coordinates are 32-bit on the device, and may pass the end of D by a cluster's tile. */
static const int64_t LARGEST_SIZE = INT32_MAX - 1024;

int32_t dgi_sm90_find(const char *name)
{
    for (int32_t i = 0; i < dgi_sm90_kernel_count; i++)
        if (strcmp(dgi_sm90_kernels[i].name, name) == 0)
            return i;
    return -1;
}

/* Whether each block of the scale, along one axis, covers whole steps of `step` elements. */
static bool blocks_cover(int64_t count, int32_t block, int32_t phase, int32_t step)
{
    return count <= 1 || block == 0 || (block % step == 0 && phase % step == 0);
}

static dg_status check_scales(const dgi_sm90_kernel *kernel, const dg_gemm *gemm)
{
    const dg_scale *a = &gemm->scale_a, *b = &gemm->scale_b;
    if (kernel->span == 0) {
        if (a->cols > 1 || b->cols > 1)
            return dgi_fail(DG_UNSUPPORTED_SCALE, "%s takes scales that are constant along K",
                            kernel->name);
        return DG_OK;
    }
    if (!blocks_cover(a->cols, a->block_cols, a->col_phase, kernel->promote_k) ||
        !blocks_cover(b->cols, b->block_cols, b->col_phase, kernel->promote_k))
        return dgi_fail(DG_UNSUPPORTED_SCALE,
                        "%s takes scales whose blocks and phases are multiples of %d along K, not "
                        "%d phase %d and %d phase %d",
                        kernel->name, kernel->promote_k, a->block_cols, a->col_phase, b->block_cols,
                        b->col_phase);
    if (kernel->rows > 1 && !blocks_cover(a->rows, a->block_rows, a->row_phase, kernel->rows))
        return dgi_fail(DG_UNSUPPORTED_SCALE,
                        "%s takes scale_a in blocks and phases that are multiples of %d rows, not "
                        "%d phase %d",
                        kernel->name, kernel->rows, a->block_rows, a->row_phase);
    if (!blocks_cover(b->rows, b->block_rows, b->row_phase, kernel->span))
        return dgi_fail(DG_UNSUPPORTED_SCALE,
                        "%s takes scale_b in blocks and phases that are multiples of %d rows, not "
                        "%d phase %d",
                        kernel->name, kernel->span, b->block_rows, b->row_phase);
    return DG_OK;
}

static int32_t ceil_div(int64_t size, int32_t step)
{
    return (int32_t)((size + step - 1) / step);
}

dg_status dgi_sm90_accepts(const dgi_sm90_kernel *kernel, const dg_gemm *gemm)
{
    int64_t m = gemm->d.rows, n = gemm->d.cols, k = gemm->a.cols;
    if (gemm->a.dtype != kernel->a || gemm->b.dtype != kernel->b)
        return dgi_fail(DG_UNSUPPORTED_TYPE, "%s takes %s x %s, not %s x %s", kernel->name,
                        dg_dtype_name(kernel->a), dg_dtype_name(kernel->b),
                        dg_dtype_name(gemm->a.dtype), dg_dtype_name(gemm->b.dtype));
    if (kernel->promote_k == 0 && gemm->accumulation != DG_ACCUMULATE_FAST)
        return dgi_fail(DG_UNSUPPORTED_TYPE, "%s accumulates fast, precise was asked for",
                        kernel->name);
    DGI_TRY(check_scales(kernel, gemm));
    if (m > LARGEST_SIZE || n > LARGEST_SIZE || k > LARGEST_SIZE)
        return dgi_fail(DG_UNSUPPORTED_SHAPE,
                        "M, N and K are %lld, %lld and %lld: %s takes up to "
                        "%lld each",
                        (long long)m, (long long)n, (long long)k, kernel->name,
                        (long long)LARGEST_SIZE);
    return DG_OK;
}

dg_status dgi_sm90_plan_with(const dg_gemm *gemm, int32_t units, int32_t index, dgi_sm90_plan *plan)
{
    const dgi_sm90_kernel *kernel = &dgi_sm90_kernels[index];
    int64_t m = gemm->d.rows, n = gemm->d.cols, k = gemm->a.cols;
    DGI_TRY(dgi_sm90_accepts(kernel, gemm));

    int32_t rows = ceil_div(m, kernel->tile_m);
    int32_t cols = ceil_div(n, kernel->tile_n * kernel->cluster);
    if ((int64_t)rows * cols > LARGEST_SIZE)
        return dgi_fail(DG_UNSUPPORTED_SHAPE, "D of %lld x %lld has more than %lld tiles",
                        (long long)m, (long long)n, (long long)LARGEST_SIZE);
    int32_t tiles = rows * cols, clusters = units / kernel->cluster;
    int32_t active = tiles < clusters ? tiles : clusters;
    /* CTAs that run together should cover a square of D: band^2 tile_m = active tile_n. */
    int32_t band = 1;
    while (band < rows && (int64_t)(band + 1) * (band + 1) * kernel->tile_m <=
                              (int64_t)active * kernel->tile_n * kernel->cluster)
        band++;
    *plan = (dgi_sm90_plan){
        .kernel = index,
        .tile_rows = rows,
        .tile_cols = cols,
        .band = band,
        .ctas = active * kernel->cluster,
        .cycles =
            DGI_START_CYCLES + (double)ceil_div(tiles, clusters) *
                                   ((double)ceil_div(k, 128) * kernel->cycles + DGI_TILE_CYCLES +
                                    DGI_ELEMENT_CYCLES * kernel->tile_m * kernel->tile_n),
    };
    return DG_OK;
}

dg_status dgi_sm90_choose(const dg_gemm *gemm, int32_t units, const char *forced,
                          dgi_sm90_plan *plan)
{
    if (forced != NULL) {
        int32_t index = dgi_sm90_find(forced);
        if (index < 0)
            return dgi_fail(DG_NOT_FOUND, "there is no CUDA kernel named %s", forced);
        return dgi_sm90_plan_with(gemm, units, index, plan);
    }
    dg_status status = DG_UNSUPPORTED_TYPE;
    int32_t telling = 0; /* the kernel whose refusal is `status` */
    bool found = false;
    for (int32_t i = 0; i < dgi_sm90_kernel_count; i++) {
        dgi_sm90_plan candidate;
        dg_status refusal = dgi_sm90_plan_with(gemm, units, i, &candidate);
        if (refusal == DG_OK && (!found || candidate.cycles < plan->cycles)) {
            *plan = candidate;
            found = true;
        }
        /* Of all refusals the one that came furthest says most: types are checked first. */
        if (refusal != DG_OK && refusal != DG_UNSUPPORTED_TYPE) {
            status = refusal;
            telling = i;
        }
    }
    if (found)
        return DG_OK;
    if (status == DG_UNSUPPORTED_SCALE)
        return dgi_fail(status,
                        "no CUDA kernel for scale_a (%d,%d) phase (%d,%d) with scale_b (%d,%d) "
                        "phase (%d,%d): blocks and phases along K must be multiples of 32",
                        gemm->scale_a.block_rows, gemm->scale_a.block_cols, gemm->scale_a.row_phase,
                        gemm->scale_a.col_phase, gemm->scale_b.block_rows, gemm->scale_b.block_cols,
                        gemm->scale_b.row_phase, gemm->scale_b.col_phase);
    if (status == DG_UNSUPPORTED_TYPE)
        return dgi_fail(status, "no CUDA kernel for a %s with b %s", dg_dtype_name(gemm->a.dtype),
                        dg_dtype_name(gemm->b.dtype));
    return dgi_sm90_plan_with(gemm, units, telling, plan);
}
