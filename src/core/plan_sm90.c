/* SPDX-License-Identifier: MIT */
/* The planner for Hopper: which kernels can run a GEMM, and which of them is fastest. */
#include "core/plan_sm90.h"

#include "core/ceil_div.h"
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

static int32_t ceil_div(int64_t size, int32_t step)
{
    return (int32_t)dgi_ceil_div(size, step);
}

/* ---- which kernels can run ------------------------------------------------------------ */

/*
 * Why a kernel cannot run a GEMM. A search asks every kernel on every call, so the answer becomes
 * words (refuse) only where somebody reads them.
 */
typedef enum refusal {
    NONE,
    TYPES,
    PRECISE,
    ALONG_K,  /* a scale varies along K                            */
    BLOCKS_K, /* its blocks or phase there do not fit the kernel's */
    ROWS_A,
    ROWS_B,
    SIZES,
    TILES
} refusal;

/* Whether each block of the scale, along one axis, covers whole steps of `step` elements. */
static bool blocks_cover(int64_t count, int32_t block, int32_t phase, int32_t step)
{
    return count <= 1 || block == 0 || (block % step == 0 && phase % step == 0);
}

static refusal examine_scales(const dgi_sm90_kernel *kernel, const dg_gemm *gemm)
{
    const dg_scale *a = &gemm->scale_a, *b = &gemm->scale_b;
    if (kernel->span == 0)
        return a->cols > 1 || b->cols > 1 ? ALONG_K : NONE;
    if (!blocks_cover(a->cols, a->block_cols, a->col_phase, kernel->promote_k) ||
        !blocks_cover(b->cols, b->block_cols, b->col_phase, kernel->promote_k))
        return BLOCKS_K;
    if (kernel->rows > 1 && !blocks_cover(a->rows, a->block_rows, a->row_phase, kernel->rows))
        return ROWS_A;
    return blocks_cover(b->rows, b->block_rows, b->row_phase, kernel->span) ? NONE : ROWS_B;
}

static refusal examine(const dgi_sm90_kernel *kernel, const dg_gemm *gemm)
{
    const int64_t m = gemm->d.rows, n = gemm->d.cols, k = gemm->a.cols;
    if (gemm->a.dtype != kernel->a || gemm->b.dtype != kernel->b)
        return TYPES;
    if (kernel->promote_k == 0 && gemm->accumulation != DG_ACCUMULATE_FAST)
        return PRECISE;
    const refusal scales = examine_scales(kernel, gemm);
    if (scales != NONE)
        return scales;
    if (m > LARGEST_SIZE || n > LARGEST_SIZE || k > LARGEST_SIZE)
        return SIZES;
    const int64_t rows = ceil_div(m, kernel->tile_m);
    return rows * ceil_div(n, kernel->tile_n * kernel->cluster) > LARGEST_SIZE ? TILES : NONE;
}

static dg_status refuse(refusal why, const dgi_sm90_kernel *kernel, const dg_gemm *gemm)
{
    const dg_scale *a = &gemm->scale_a, *b = &gemm->scale_b;
    const long long m = gemm->d.rows, n = gemm->d.cols, k = gemm->a.cols, most = LARGEST_SIZE;
    switch (why) {
    case NONE:
        return DG_OK;
    case TYPES:
        return dgi_fail(DG_UNSUPPORTED_TYPE, "%s takes %s x %s, not %s x %s", kernel->name,
                        dg_dtype_name(kernel->a), dg_dtype_name(kernel->b),
                        dg_dtype_name(gemm->a.dtype), dg_dtype_name(gemm->b.dtype));
    case PRECISE:
        return dgi_fail(DG_UNSUPPORTED_TYPE, "%s accumulates fast, precise was asked for",
                        kernel->name);
    case ALONG_K:
        return dgi_fail(DG_UNSUPPORTED_SCALE, "%s takes scales that are constant along K",
                        kernel->name);
    case BLOCKS_K:
        return dgi_fail(DG_UNSUPPORTED_SCALE,
                        "%s takes scales whose blocks and phases are multiples of %d along K, not "
                        "%d phase %d and %d phase %d",
                        kernel->name, kernel->promote_k, a->block_cols, a->col_phase, b->block_cols,
                        b->col_phase);
    case ROWS_A:
        return dgi_fail(DG_UNSUPPORTED_SCALE,
                        "%s takes scale_a in blocks and phases that are multiples of %d rows, not "
                        "%d phase %d",
                        kernel->name, kernel->rows, a->block_rows, a->row_phase);
    case ROWS_B:
        return dgi_fail(DG_UNSUPPORTED_SCALE,
                        "%s takes scale_b in blocks and phases that are multiples of %d rows, not "
                        "%d phase %d",
                        kernel->name, kernel->span, b->block_rows, b->row_phase);
    case SIZES:
        return dgi_fail(DG_UNSUPPORTED_SHAPE,
                        "M, N and K are %lld, %lld and %lld: %s takes up to %lld each", m, n, k,
                        kernel->name, most);
    case TILES:
        return dgi_fail(DG_UNSUPPORTED_SHAPE, "D of %lld x %lld has more than %lld tiles", m, n,
                        most);
    }
    return DG_DRIVER_ERROR; /* there is no other reason */
}

dg_status dgi_sm90_accepts(const dgi_sm90_kernel *kernel, const dg_gemm *gemm)
{
    return refuse(examine(kernel, gemm), kernel, gemm);
}

bool dgi_sm90_can_run(const dgi_sm90_kernel *kernel, const dg_gemm *gemm)
{
    return examine(kernel, gemm) == NONE;
}

/* ---- which of them is fastest ----------------------------------------------------------- */

static dgi_sm90_plan plan_of(const dg_gemm *gemm, int32_t units, int32_t index)
{
    const dgi_sm90_kernel *kernel = &dgi_sm90_kernels[index];
    const int64_t k = gemm->a.cols;
    const int32_t rows = ceil_div(gemm->d.rows, kernel->tile_m);
    const int32_t cols = ceil_div(gemm->d.cols, kernel->tile_n * kernel->cluster);
    const int32_t tiles = rows * cols, clusters = units / kernel->cluster;
    const int32_t active = tiles < clusters ? tiles : clusters;
    /* CTAs that run together should cover a square of D: band^2 tile_m = active tile_n. */
    int32_t band = 1;
    while (band < rows && (int64_t)(band + 1) * (band + 1) * kernel->tile_m <=
                              (int64_t)active * kernel->tile_n * kernel->cluster)
        band++;
    return (dgi_sm90_plan){
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
}

dg_status dgi_sm90_plan_with(const dg_gemm *gemm, int32_t units, int32_t index, dgi_sm90_plan *plan)
{
    DGI_TRY(dgi_sm90_accepts(&dgi_sm90_kernels[index], gemm));
    *plan = plan_of(gemm, units, index);
    return DG_OK;
}

static bool varies_along_k(const dg_scale *scale)
{
    return scale->cols > 1 && scale->block_cols != 0;
}

bool dgi_sm90_is_invariant(const dgi_sm90_kernel *kernel, const dg_gemm *gemm)
{
    const dg_scale *a = &gemm->scale_a, *b = &gemm->scale_b;
    const bool constant = !varies_along_k(a) && !varies_along_k(b);
    const bool whole = blocks_cover(a->cols, a->block_cols, a->col_phase, 128) &&
                       blocks_cover(b->cols, b->block_cols, b->col_phase, 128);
    return kernel->promote_k == (whole ? 128 : 32) && (kernel->span == 0) == constant;
}

dg_status dgi_sm90_choose(const dg_gemm *gemm, int32_t units, bool invariant, dgi_sm90_plan *plan)
{
    refusal furthest = NONE;
    int32_t telling = 0; /* the kernel whose refusal that is */
    bool found = false, best_fits = false;
    for (int32_t i = 0; i < dgi_sm90_kernel_count; i++) {
        const refusal why = examine(&dgi_sm90_kernels[i], gemm);
        if (why > furthest) { /* the one that comes last in the checks says most */
            furthest = why;
            telling = i;
        }
        if (why != NONE)
            continue;
        const bool fits = !invariant || dgi_sm90_is_invariant(&dgi_sm90_kernels[i], gemm);
        const dgi_sm90_plan candidate = plan_of(gemm, units, i);
        if (!found || fits > best_fits || (fits == best_fits && candidate.cycles < plan->cycles)) {
            *plan = candidate;
            best_fits = fits;
        }
        found = true;
    }
    if (found)
        return DG_OK;
    if (furthest <= PRECISE)
        return dgi_fail(DG_UNSUPPORTED_TYPE, "no CUDA kernel for a %s with b %s",
                        dg_dtype_name(gemm->a.dtype), dg_dtype_name(gemm->b.dtype));
    if (furthest <= ROWS_B)
        return dgi_fail(DG_UNSUPPORTED_SCALE,
                        "no CUDA kernel for scale_a (%d,%d) phase (%d,%d) with scale_b (%d,%d) "
                        "phase (%d,%d): blocks and phases along K must be multiples of 32",
                        gemm->scale_a.block_rows, gemm->scale_a.block_cols, gemm->scale_a.row_phase,
                        gemm->scale_a.col_phase, gemm->scale_b.block_rows, gemm->scale_b.block_cols,
                        gemm->scale_b.row_phase, gemm->scale_b.col_phase);
    return refuse(furthest, &dgi_sm90_kernels[telling], gemm);
}
