/* SPDX-License-Identifier: MIT */
/* The planner for groups with few rows on Hopper. */
#include "core/plan_grouped_few_sm90.h"

#include "core/ceil_div.h"
#include "core/grouped_schedule.h"
#include "core/packed_sm90.h"
#include "core/status.h"
#include "core/tuning_sm90.h"

#include <math.h>
#include <string.h>

const dgi_decode_kernel dgi_grouped_few_kernels[] = {
#define DGI_SM90_DECODE(name, a, b, ...) {#name, DG_##a, DG_##b, __VA_ARGS__},
#include "core/kernels_sm90_grouped_few.def"
#undef DGI_SM90_DECODE
};
const int32_t dgi_grouped_few_kernel_count =
    sizeof dgi_grouped_few_kernels / sizeof dgi_grouped_few_kernels[0];

enum { TILE_ROWS = 128, MOST_SPLIT = 8, BOX_ROWS = 8 };

int32_t dgi_grouped_few_find(const char *name)
{
    for (int32_t i = 0; i < dgi_grouped_few_kernel_count; i++)
        if (strcmp(dgi_grouped_few_kernels[i].name, name) == 0)
            return i;
    return -1;
}

/* What all groups together are likely to be. */
typedef struct work {
    double units;   /* tiles of D            */
    double a_bytes; /* of a stage, on average */
} work;

static work work_of(const dgi_decode_kernel *kernel, const dgi_typical *typical)
{
    const double share =
        (double)(typical->products * dgi_ceil_div(typical->gemm.d.cols, TILE_ROWS)) /
        DGI_TYPICAL_SIZES;
    work w = {0};
    for (int i = 0; i < DGI_TYPICAL_SIZES; i++) {
        const int64_t rows = dgi_typical_rows(typical, i);
        w.units += share * (double)dgi_ceil_div(rows, kernel->tokens);
        w.a_bytes += share * (double)dgi_ceil_div(rows, BOX_ROWS) * BOX_ROWS * DGI_PACKED_K;
    }
    if (w.units > 0.0)
        w.a_bytes /= w.units;
    return w;
}

/*
 * Rounds of units over the clusters. In a full one all CTAs share what the memory gives, or L2
 * where A adds to it; in the last one fewer share it, and each takes more, but not all of it. The
 * end of a unit delays the stages that follow, the more the fewer there are to hide it.
 */
static double cycles(const dgi_decode_kernel *kernel, const dgi_typical *typical,
                     const dgi_decode_plan *plan)
{
    const work w = work_of(kernel, typical);
    if (w.units == 0.0)
        return DGI_GROUPED_FEW_START;
    const double stages =
        (double)dgi_ceil_div(dgi_ceil_div(typical->gemm.a.cols, DGI_PACKED_K), plan->split);
    const double ctas = (double)plan->clusters * plan->split, b_bytes = TILE_ROWS * DGI_PACKED_K;
    const double read = (double)(typical->products * plan->tiles) / w.units; /* once for all rows */
    const double stage = ctas * fmax(b_bytes * read / DGI_GROUPED_FEW_MEMORY_BYTES,
                                     (b_bytes + w.a_bytes) / DGI_GROUPED_FEW_L2_BYTES);
    const double rounds = w.units / plan->clusters, full = floor(rounds), rest = rounds - full;
    const double alone = fmin(DGI_GROUPED_FEW_ALONE, stage);
    const double last = rest > 0.0 ? alone + rest * (stage - alone) : 0.0;
    return DGI_GROUPED_FEW_START + (full * stage + last) * stages +
           ceil(rounds) * DGI_GROUPED_FEW_END / fmax(stages, 1.0);
}

static dgi_decode_plan plan_of(const dgi_typical *typical, int32_t units, bool may_split,
                               int32_t index)
{
    const dgi_decode_kernel *kernel = &dgi_grouped_few_kernels[index];
    const int64_t stages = dgi_ceil_div(typical->gemm.a.cols, DGI_PACKED_K);
    dgi_decode_plan plan = {0};
    for (int32_t split = 1; split == 1 || (may_split && split <= MOST_SPLIT && split <= stages);
         split *= 2) {
        const int32_t clusters = dgi_decode_most_ctas(kernel->tokens, units, split) / split;
        dgi_decode_plan candidate = {
            .kernel = index,
            .tiles = (int32_t)dgi_ceil_div(typical->gemm.d.cols, TILE_ROWS),
            .split = split,
            .clusters = clusters > 0 ? clusters : 1,
        };
        candidate.cycles = cycles(kernel, typical, &candidate);
        if (split == 1 || candidate.cycles < plan.cycles)
            plan = candidate;
    }
    return plan;
}

/* The product of one of the groups' rows: any number of rows may follow. */
static dg_gemm one_row(const dgi_typical *typical)
{
    dg_gemm gemm = typical->gemm;
    gemm.d.rows = 1;
    return gemm;
}

dg_status dgi_grouped_few_plan_with(const dgi_typical *typical, int32_t units, bool may_split,
                                    int32_t index, dgi_decode_plan *plan)
{
    const dgi_decode_kernel *kernel = &dgi_grouped_few_kernels[index];
    const dg_gemm gemm = one_row(typical);
    DGI_TRY(dgi_decode_accepts(kernel, &gemm));
    /* The device counts tiles in 32 bits. */
    const double most = (double)typical->products *
                        ((double)typical->gemm.d.rows / kernel->tokens + 1) *
                        (double)dgi_ceil_div(typical->gemm.d.cols, TILE_ROWS);
    if (most > INT32_MAX)
        return dgi_fail(DG_UNSUPPORTED_SHAPE, "%.0f tiles may be needed: %s takes up to %d", most,
                        kernel->name, INT32_MAX);
    *plan = plan_of(typical, units, may_split, index);
    return DG_OK;
}

bool dgi_grouped_few_choose(const dgi_typical *typical, int32_t units, bool may_split,
                            dgi_decode_plan *plan)
{
    const dg_gemm gemm = one_row(typical);
    bool found = false;
    for (int32_t i = 0; i < dgi_grouped_few_kernel_count; i++) {
        dgi_decode_plan other;
        /* Of those that promote least often: all of them add up in the same order. */
        if (found &&
            dgi_grouped_few_kernels[i].scale_k != dgi_grouped_few_kernels[plan->kernel].scale_k)
            continue;
        if (!dgi_decode_can_run(&dgi_grouped_few_kernels[i], &gemm) ||
            dgi_grouped_few_plan_with(typical, units, may_split, i, &other) != DG_OK)
            continue;
        if (!found || other.cycles < plan->cycles)
            *plan = other;
        found = true;
    }
    return found;
}

bool dgi_grouped_few_is_faster(const dgi_decode_plan *few, const dgi_sm90_kernel *many,
                               const dgi_typical *typical, int32_t units)
{
    return few->cycles < dgi_sm90_grouped_cycles(many, typical, units);
}

void dgi_grouped_few_explain(const dgi_typical *typical, int32_t units, bool may_split, bool joined,
                             int32_t chosen, FILE *text)
{
    for (int32_t i = 0; i < dgi_grouped_few_kernel_count; i++) {
        const char *name = dgi_grouped_few_kernels[i].name;
        dgi_decode_plan plan;
        if (dgi_grouped_few_plan_with(typical, units, may_split, i, &plan) != DG_OK)
            fprintf(text, "refused %s\n", dg_last_error());
        else if (!joined)
            fprintf(text, "refused %s takes groups that need one launch only\n", name);
        else
            fprintf(text, "%s %s: %.0f cycles predicted, %d CTAs share the K of a tile\n",
                    i == chosen ? "kernel" : "slower", name, plan.cycles, plan.split);
    }
}

/* All units take the same K. */
void dgi_grouped_few_explain_balance(const dgi_decode_plan *plan, const dgi_product_size *products,
                                     int32_t count, FILE *text)
{
    const dgi_decode_kernel *kernel = &dgi_grouped_few_kernels[plan->kernel];
    int64_t units = 0;
    for (int32_t i = 0; i < count; i++)
        units += (int64_t)dgi_tile_rows(products[i].m, kernel->tokens) * plan->tiles;
    const double mean = units > 0 ? (double)units / plan->clusters : 1.0;
    const int64_t most = dgi_ceil_div(units, plan->clusters), least = units / plan->clusters;
    fprintf(text, "tiles %lld of %d x %d for %d clusters of %d CTAs\n", (long long)units,
            kernel->tokens, TILE_ROWS, plan->clusters, plan->split);
    fprintf(text, DGI_BALANCE_LINE, (double)most / mean, (double)least / mean, "cluster");
}
