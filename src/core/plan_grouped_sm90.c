/* SPDX-License-Identifier: MIT */
/* The planner for grouped products on Hopper. */
#include "core/plan_grouped_sm90.h"

#include "core/ceil_div.h"
#include "core/grouped_schedule.h"
#include "core/status.h"
#include "core/tile_order.h"
#include "core/tuning_sm90.h"

#include <math.h>
#include <string.h>

const dgi_sm90_kernel dgi_sm90_grouped_kernels[] = {
#define DGI_SM90(name, a, b, ...) {#name, DG_##a, DG_##b, __VA_ARGS__},
#include "core/kernels_sm90_grouped.def"
#undef DGI_SM90
};
const int32_t dgi_sm90_grouped_kernel_count =
    sizeof dgi_sm90_grouped_kernels / sizeof dgi_sm90_grouped_kernels[0];

int32_t dgi_sm90_grouped_find(const char *name)
{
    for (int32_t i = 0; i < dgi_sm90_grouped_kernel_count; i++)
        if (strcmp(dgi_sm90_grouped_kernels[i].name, name) == 0)
            return i;
    return -1;
}

/*
 * A warpgroup computes the blocks of 64 rows that it has, the others nothing; one that is alone has
 * nothing to hide its waits behind.
 */
double dgi_sm90_grouped_tile_cycles(const dgi_sm90_kernel *kernel, int64_t rows, int64_t k)
{
    const int32_t group_rows = kernel->tile_m / kernel->groups;
    const double share = (double)dgi_ceil_div(rows, group_rows) / kernel->groups;
    const double alone =
        (double)(DGI_GROUPED_ALONE * dgi_ceil_div(rows < group_rows ? rows : group_rows, 64));
    const double stage = fmin(kernel->cycles, fmax(alone, share * kernel->cycles));
    return (double)dgi_ceil_div(k, 128) * stage + DGI_GROUPED_TILE_CYCLES;
}

static int64_t cluster_cols(const dgi_sm90_kernel *kernel)
{
    return (int64_t)kernel->tile_n * kernel->cluster;
}

/*
 * Of the busiest cluster, for groups whose sizes lie evenly around the typical one; no less than
 * the memory needs for all of B. *rounds: of tiles over the clusters.
 */
static double cycles(const dgi_sm90_kernel *kernel, const dgi_typical *typical, int32_t units,
                     double *rounds)
{
    const dg_gemm *gemm = &typical->gemm;
    const int64_t cols = dgi_ceil_div(gemm->d.cols, cluster_cols(kernel)), k = gemm->a.cols;
    const int32_t clusters = units / kernel->cluster;
    double tiles = 0.0, work = 0.0;
    for (int i = 0; i < DGI_TYPICAL_SIZES; i++) {
        const int64_t rows = dgi_typical_rows(typical, i);
        const int64_t full = rows / kernel->tile_m, rest = rows % kernel->tile_m;
        const double share = (double)(typical->products * cols) / DGI_TYPICAL_SIZES;
        tiles += share * (double)(full + (rest > 0));
        work += share * (double)full * dgi_sm90_grouped_tile_cycles(kernel, kernel->tile_m, k);
        work += rest > 0 ? share * dgi_sm90_grouped_tile_cycles(kernel, rest, k) : 0.0;
    }
    const double read = (double)typical->products * (double)gemm->d.cols * (double)k;
    *rounds = ceil(tiles / clusters);
    return fmax(tiles > 0.0 ? *rounds * work / tiles : 0.0, read / DGI_MEMORY_BYTES);
}

double dgi_sm90_grouped_cycles(const dgi_sm90_kernel *kernel, const dgi_typical *typical,
                               int32_t units)
{
    double rounds;
    const double busiest = cycles(kernel, typical, units, &rounds);
    return busiest + rounds * DGI_GROUPED_ROUND_CYCLES;
}

dg_status dgi_sm90_choose_grouped(const dgi_typical *typical, int32_t units, bool invariant,
                                  int32_t *index)
{
    const dg_gemm *gemm = &typical->gemm;
    double best = 0.0, rounds;
    bool best_fits = false;
    *index = -1;
    for (int32_t i = 0; i < dgi_sm90_grouped_kernel_count; i++) {
        const dgi_sm90_kernel *kernel = &dgi_sm90_grouped_kernels[i];
        if (!dgi_sm90_can_run(kernel, gemm))
            continue;
        const double cost = cycles(kernel, typical, units, &rounds);
        const bool fits = !invariant || dgi_sm90_is_invariant(kernel, gemm);
        if (*index < 0 || fits > best_fits || (fits == best_fits && cost < best)) {
            best = cost;
            best_fits = fits;
            *index = i;
        }
    }
    if (*index >= 0)
        return DG_OK;
    dg_status status = DG_UNSUPPORTED_TYPE;
    for (int32_t i = 0; i < dgi_sm90_grouped_kernel_count; i++) {
        const dg_status refusal = dgi_sm90_accepts(&dgi_sm90_grouped_kernels[i], gemm);
        status = refusal == DG_UNSUPPORTED_TYPE ? status : refusal;
    }
    return dgi_fail(status,
                    "no grouped CUDA kernel for a %s, b %s, M, N, K %lld, %lld, %lld, scale_a "
                    "(%d,%d) phase %d and scale_b (%d,%d) phase %d: blocks and phases along K must "
                    "be multiples of 32",
                    dg_dtype_name(gemm->a.dtype), dg_dtype_name(gemm->b.dtype),
                    (long long)gemm->d.rows, (long long)gemm->d.cols, (long long)gemm->a.cols,
                    gemm->scale_a.block_rows, gemm->scale_a.block_cols, gemm->scale_a.col_phase,
                    gemm->scale_b.block_rows, gemm->scale_b.block_cols, gemm->scale_b.col_phase);
}

void dgi_sm90_explain_grouped(const dgi_typical *typical, int32_t units, int32_t chosen, FILE *text)
{
    for (int32_t i = 0; i < dgi_sm90_grouped_kernel_count; i++) {
        const dgi_sm90_kernel *kernel = &dgi_sm90_grouped_kernels[i];
        if (dgi_sm90_accepts(kernel, &typical->gemm) != DG_OK)
            fprintf(text, "refused %s\n", dg_last_error());
        else
            fprintf(text, "%s %s: %.0f cycles predicted\n", i == chosen ? "kernel" : "slower",
                    kernel->name, dgi_sm90_grouped_cycles(kernel, typical, units));
    }
}

/* ---- the balance --------------------------------------------------------------------- */

dgi_rates dgi_sm90_rates(const dgi_sm90_kernel *kernel)
{
    dgi_rates rates = {.tile_m = kernel->tile_m,
                       .cluster_n = (int32_t)cluster_cols(kernel),
                       .tile = (int32_t)(DGI_GROUPED_TILE_CYCLES / DGI_WORK_CYCLES),
                       .cut = (int32_t)(DGI_GROUPED_CUT_CYCLES / DGI_WORK_CYCLES)};
    for (int32_t i = 1; i <= kernel->tile_m / 64; i++) {
        const double stage = dgi_sm90_grouped_tile_cycles(kernel, 64 * i, 128);
        rates.stage[i] = (int32_t)((stage - DGI_GROUPED_TILE_CYCLES) / DGI_WORK_CYCLES);
    }
    return rates;
}

/* What the tiles `first`, `first` + `step`, ... before `end` of a product take. */
static double work_of(const dgi_sm90_kernel *kernel, const dgi_product_size *p, int32_t clusters,
                      int32_t first, int32_t end, int32_t step)
{
    const int32_t tile_m = kernel->tile_m, rows = dgi_tile_rows(p->m, tile_m);
    const int32_t cols = (int32_t)dgi_ceil_div(p->n, cluster_cols(kernel));
    const int32_t band =
        dgi_band(rows, rows * cols, clusters, tile_m, (int32_t)cluster_cols(kernel));
    double work = 0.0;
    for (int32_t i = first; i < end; i += step) {
        const int32_t row = dgi_tile_at(i, rows, cols, band).row * tile_m;
        const int32_t height = p->m - row < tile_m ? p->m - row : tile_m;
        work += dgi_sm90_grouped_tile_cycles(kernel, height, p->k);
    }
    return work;
}

/* A cluster's stretch. A part of a tile takes its share of the whole. */
static double work_of_stretch(const dgi_sm90_kernel *kernel, const dgi_product_size *products,
                              const dgi_schedule *s, int32_t cluster)
{
    const dgi_cut *from = &s->cuts[cluster], *to = from + 1;
    double work = 0.0;
    for (int32_t rank = from->rank; rank <= to->rank && rank < s->count; rank++) {
        const dgi_product_size *p = &products[s->turns[rank].product];
        const double stages = (double)s->work[rank].stages;
        const int32_t first = rank == from->rank ? from->tile : 0;
        const int32_t end = rank == to->rank ? to->tile : s->turns[rank].tiles;
        work += work_of(kernel, p, s->clusters, first, end, 1);
        if (rank == from->rank && from->stage > 0)
            work -= work_of(kernel, p, s->clusters, first, first + 1, 1) * from->stage / stages;
        if (rank == to->rank && to->stage > 0)
            work += work_of(kernel, p, s->clusters, end, end + 1, 1) * to->stage / stages;
    }
    return work;
}

static double work_in_turn(const dgi_sm90_kernel *kernel, const dgi_product_size *products,
                           const dgi_schedule *s, int32_t cluster)
{
    double work = 0.0;
    for (int32_t i = 0, tile = cluster; i < s->count; i++) {
        const dgi_turn *turn = &s->turns[i];
        if (tile >= turn->end)
            continue;
        work += work_of(kernel, &products[turn->product], s->clusters, tile - turn->offset,
                        turn->tiles, s->clusters);
        tile = dgi_next_tile(tile, turn->end, s->clusters);
    }
    return work;
}

dg_status dgi_sm90_balance(const dgi_sm90_kernel *kernel, const dgi_product_size *products,
                           int32_t count, int32_t units, bool may_cut, dgi_balance *balance)
{
    const dgi_rates rates = dgi_sm90_rates(kernel);
    dgi_schedule s;
    dg_status status =
        dgi_schedule_make(&s, &rates, products, count, units / kernel->cluster, may_cut);
    *balance = (dgi_balance){.idlest = INFINITY};
    for (int32_t c = 0; status == DG_OK && c < s.clusters; c++) {
        const double work =
            work_of_stretch(kernel, products, &s, c) + work_in_turn(kernel, products, &s, c);
        balance->busiest = fmax(balance->busiest, work);
        balance->idlest = fmin(balance->idlest, work);
        balance->mean += work / s.clusters;
        balance->cut += s.cuts[c].part == 1;
    }
    for (int32_t i = 0; status == DG_OK && i < count; i++)
        balance->tiles += s.turns[i].tiles;
    dgi_schedule_release(&s);
    return status;
}

dg_status dgi_sm90_explain_balance(const dgi_sm90_kernel *kernel, const dgi_product_size *products,
                                   int32_t count, int32_t units, bool may_cut, FILE *text)
{
    dgi_balance b;
    DGI_TRY(dgi_sm90_balance(kernel, products, count, units, may_cut, &b));
    const double mean = b.mean > 0.0 ? b.mean : 1.0;
    fprintf(text, "tiles %lld of %d x %lld for %d clusters of CTAs, %lld of them cut along K\n",
            (long long)b.tiles, kernel->tile_m, (long long)cluster_cols(kernel),
            units / kernel->cluster, (long long)b.cut);
    fprintf(text, DGI_BALANCE_LINE, b.busiest / mean, b.idlest / mean, "cluster");
    return DG_OK;
}
