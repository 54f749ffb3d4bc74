/* SPDX-License-Identifier: MIT */
/* The planner for few tokens on Hopper: which kernel, and how B is dealt out to multiprocessors. */
#include "core/plan_decode_sm90.h"

#include "core/ceil_div.h"
#include "core/packed_sm90.h"
#include "core/status.h"
#include "core/tuning_sm90.h"

#include <string.h>

const dgi_decode_kernel dgi_decode_kernels[] = {
#define DGI_SM90_DECODE(name, a, b, ...) {#name, DG_##a, DG_##b, __VA_ARGS__},
#include "core/kernels_sm90_decode.def"
#undef DGI_SM90_DECODE
};
const int32_t dgi_decode_kernel_count = sizeof dgi_decode_kernels / sizeof dgi_decode_kernels[0];

/* Coordinates are 32-bit on the device, and may pass the end of B by a tile. */
static const int64_t LARGEST_SIZE = INT32_MAX - 1024;

/* CTAs of a cluster: 16 where two kernels share a multiprocessor, else there are too few of them.
 */
enum { MOST_SPLIT = 16, TILE_ROWS = 128 };

int32_t dgi_decode_find(const char *name)
{
    for (int32_t i = 0; i < dgi_decode_kernel_count; i++)
        if (strcmp(dgi_decode_kernels[i].name, name) == 0)
            return i;
    return -1;
}

/* ---- which kernels can run ------------------------------------------------------------ */

/* As in plan_sm90.c: in words only where somebody reads them. */
typedef enum refusal { NONE, TYPES, ALONG_K, BLOCKS_K, TOKENS, SIZES } refusal;

/* Whether each block of the scale along K covers whole steps of `step` elements. */
static bool blocks_cover(const dg_scale *scale, int32_t step)
{
    return scale->cols <= 1 || scale->block_cols == 0 ||
           (scale->block_cols % step == 0 && scale->col_phase % step == 0);
}

/*
 * Rows of A that a kernel takes. Those for 64 also run with two tiles of tokens, which read the
 * same B side by side; not with scales for each 32 of K, where a CTA fills a multiprocessor.
 */
static int32_t most_tokens(const dgi_decode_kernel *kernel)
{
    return kernel->tokens == 64 && kernel->scale_k != 32 ? 2 * kernel->tokens : kernel->tokens;
}

static refusal examine(const dgi_decode_kernel *kernel, const dg_gemm *gemm)
{
    const dg_scale *a = &gemm->scale_a, *b = &gemm->scale_b;
    if (gemm->a.dtype != kernel->a || gemm->b.dtype != kernel->b)
        return TYPES;
    if (kernel->scale_k == 0 && (a->cols > 1 || b->cols > 1))
        return ALONG_K;
    if (kernel->scale_k != 0 &&
        (!blocks_cover(a, kernel->scale_k) || !blocks_cover(b, kernel->scale_k)))
        return BLOCKS_K;
    if (gemm->d.rows > most_tokens(kernel))
        return TOKENS;
    return gemm->d.cols > LARGEST_SIZE || gemm->a.cols > LARGEST_SIZE ? SIZES : NONE;
}

static dg_status refuse(refusal why, const dgi_decode_kernel *kernel, const dg_gemm *gemm)
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
    case ALONG_K:
        return dgi_fail(DG_UNSUPPORTED_SCALE, "%s takes scales that are constant along K",
                        kernel->name);
    case BLOCKS_K:
        return dgi_fail(DG_UNSUPPORTED_SCALE,
                        "%s takes scales whose blocks and phases are multiples of %d along K, not "
                        "%d phase %d and %d phase %d",
                        kernel->name, kernel->scale_k, a->block_cols, a->col_phase, b->block_cols,
                        b->col_phase);
    case TOKENS:
        return dgi_fail(DG_UNSUPPORTED_SHAPE, "M is %lld: %s takes up to %d", m, kernel->name,
                        most_tokens(kernel));
    case SIZES:
        return dgi_fail(DG_UNSUPPORTED_SHAPE, "N and K are %lld and %lld: %s takes up to %lld each",
                        n, k, kernel->name, most);
    }
    return DG_DRIVER_ERROR; /* there is no other reason */
}

dg_status dgi_decode_accepts(const dgi_decode_kernel *kernel, const dg_gemm *gemm)
{
    return refuse(examine(kernel, gemm), kernel, gemm);
}

bool dgi_decode_can_run(const dgi_decode_kernel *kernel, const dg_gemm *gemm)
{
    return examine(kernel, gemm) == NONE;
}

/* ---- how B is dealt out ----------------------------------------------------------------- */

static int32_t ceil_div(int64_t size, int64_t step)
{
    return (int32_t)dgi_ceil_div(size, step);
}

/*
 * Up to 64 tokens two fit on a multiprocessor. With two tiles of tokens two there were slower,
 * as both tiles read all of B out of L2.
 */
int32_t dgi_decode_most_ctas(int32_t tokens, int32_t units, int32_t split)
{
    const int32_t places = tokens > 64 ? units : 2 * units;
    return split <= 2 ? places : (int32_t)(places * DGI_FEW_LARGE_CLUSTERS);
}

/* Cycles of the busiest CTA. */
static double busiest(const dg_gemm *gemm, const dgi_decode_plan *plan, int32_t units)
{
    const dgi_decode_kernel *kernel = &dgi_decode_kernels[plan->kernel];
    const double m = gemm->d.rows < kernel->tokens ? (double)gemm->d.rows : kernel->tokens;
    const int32_t stages = ceil_div(ceil_div(gemm->a.cols, DGI_PACKED_K), plan->split);
    const int32_t ctas = plan->clusters * plan->split * plan->token_tiles;
    const double crowd = ctas > units ? (double)ctas / units : 1.0;
    const double stage = kernel->tokens > 64 && kernel->scale_k != 0 ? DGI_FEW_SCALED_STAGE_CYCLES
                                                                     : DGI_FEW_STAGE_CYCLES;
    double cycles = stages * stage * crowd;
    for (int32_t split = 1; split < plan->split; split *= 2)
        cycles += DGI_FEW_EXCHANGE_CYCLES + DGI_FEW_EXCHANGE_TOKEN_CYCLES * m;
    cycles += (DGI_FEW_TILE_CYCLES + DGI_FEW_TILE_TOKEN_CYCLES * m) / plan->split;
    return ceil_div(plan->tiles, plan->clusters) * cycles;
}

static dgi_decode_plan plan_of(const dg_gemm *gemm, int32_t units, bool may_split, int32_t index)
{
    const dgi_decode_kernel *kernel = &dgi_decode_kernels[index];
    const int32_t stages = ceil_div(gemm->a.cols, DGI_PACKED_K);
    const int32_t most = !may_split ? 1 : kernel->tokens < 64 ? MOST_SPLIT : MOST_SPLIT / 2;
    dgi_decode_plan plan = {0};
    for (int32_t split = 1; split <= most && (split == 1 || split <= stages); split *= 2) {
        dgi_decode_plan candidate = {
            .kernel = index,
            .tiles = ceil_div(gemm->d.cols, TILE_ROWS),
            .split = split,
            .token_tiles = ceil_div(gemm->d.rows, kernel->tokens),
        };
        /* All CTAs run at the same time, and no cluster has more tiles than it must. */
        const int32_t tokens = kernel->tokens * candidate.token_tiles;
        int32_t room = dgi_decode_most_ctas(tokens, units, split) / (split * candidate.token_tiles);
        room = room > 0 ? room : 1;
        candidate.clusters = ceil_div(candidate.tiles, ceil_div(candidate.tiles, room));
        candidate.cycles = busiest(gemm, &candidate, units);
        if (split == 1 || candidate.cycles < plan.cycles)
            plan = candidate;
    }
    return plan;
}

dg_status dgi_decode_plan_with(const dg_gemm *gemm, int32_t units, bool may_split, int32_t index,
                               dgi_decode_plan *plan)
{
    const dgi_decode_kernel *kernel = &dgi_decode_kernels[index];
    DGI_TRY(dgi_decode_accepts(kernel, gemm));
    *plan = plan_of(gemm, units, may_split, index);
    return DG_OK;
}

bool dgi_decode_choose(const dg_gemm *gemm, int32_t units, bool may_split, dgi_decode_plan *plan)
{
    bool found = false;
    for (int32_t i = 0; i < dgi_decode_kernel_count; i++)
        if (dgi_decode_can_run(&dgi_decode_kernels[i], gemm)) {
            const dgi_decode_plan candidate = plan_of(gemm, units, may_split, i);
            if (!found || candidate.cycles < plan->cycles)
                *plan = candidate;
            found = true;
        }
    return found;
}

bool dgi_decode_is_faster(const dgi_decode_plan *few, const dgi_sm90_plan *many)
{
    return few->cycles <= many->cycles;
}
