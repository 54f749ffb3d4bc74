/* SPDX-License-Identifier: MIT */
/*
 * The GEMM driver: what is the same for every micro-kernel. For a block of rows of A at a time,
 * each thread decodes the rows that it needs; then it computes its part of D, panels of B by blocks
 * of K:
 *
 *     for each tile of columns          sums = 0
 *         for each block of K           fetch (pack, decode) B into the L1 cache
 *             for each tile of rows     micro-kernel: sums += scaled products
 *         epilogue: sums to D
 */
#include "cpu/cpu.h"
#include "cpu/operands.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* ---- workspace ----------------------------------------------------------------------- */

static size_t aligned(int64_t bytes)
{
    return ((size_t)bytes + DGI_WORKSPACE_ALIGNMENT - 1) / DGI_WORKSPACE_ALIGNMENT *
           DGI_WORKSPACE_ALIGNMENT;
}

/*
 * Each thread decodes the rows of A that it multiplies for itself while all these copies stay
 * within this size; beyond it threads share the work and one copy. A copy of its own saves a
 * barrier, and saves fetching what another core just wrote, which costs far more than decoding
 * where cores do not share a cache.
 */
static const size_t OWN_A_BYTES = 16 << 20;

/* Grows with M whatever the plan is, so that memory for one call serves every smaller one. */
static dgi_cpu_layout layout_of(const dgi_cpu_plan *plan)
{
    const int64_t columns = plan->tile_panels * DGI_PANEL, rows = plan->most_rows;
    const int64_t floats = sizeof(float);
    dgi_cpu_layout l;
    l.scale_a = aligned(rows * plan->depth * plan->element_bytes);
    l.a_bytes = l.scale_a + aligned(plan->segments * rows * floats);
    const size_t copies = (size_t)plan->threads * l.a_bytes;
    l.own_a = copies <= OWN_A_BYTES;
    l.threads = l.own_a ? copies : l.a_bytes > OWN_A_BYTES ? l.a_bytes : OWN_A_BYTES;
    l.decoded = aligned(columns * DGI_DEPTH);
    l.scale_b = l.decoded + aligned(columns * DGI_DEPTH * plan->element_bytes);
    l.sums = l.scale_b + aligned(DGI_BLOCK_SEGMENTS * columns * floats);
    l.thread_bytes = l.sums + aligned(rows * columns * floats);
    l.total = l.threads + (size_t)plan->threads * l.thread_bytes;
    return l;
}

/* ---- the product --------------------------------------------------------------------- */

/* A rectangle of D that one thread computes: rows of the block in work by panels. */
typedef struct area {
    int64_t row, rows, panel;
    int32_t panels, next_panels; /* of the area that the thread computes after this one, or 0 */
} area;

static void multiply_block(const dgi_cpu_job *job, const area *area, const dgi_k_block *block,
                           const dgi_cpu_stripes *next, const float *scale_a, char *scratch)
{
    const dgi_cpu_plan *plan = &job->plan;
    const dgi_cpu_layout at = job->at;
    const int64_t columns = area->panels * DGI_PANEL, column = area->panel * DGI_PANEL;
    const int64_t end = plan->n - column < columns ? plan->n : column + columns;
    const int64_t tiles = dgi_ceil_div(area->rows, plan->tile_rows);
    float *scale_b = (float *)(scratch + at.scale_b);
    dgi_cpu_tile tile = {.panels = area->panels,
                         .segments = block->count,
                         .segment = block->segments,
                         .a_stride = block->depth * plan->element_bytes,
                         .b_dtype = job->b_dtype,
                         .scale_a_stride = job->rows,
                         .scale_b = scale_b,
                         .sums_stride = columns};
    for (int i = 0; i < block->count; i++)
        dgi_cpu_spread_scales(&job->scale_b, column, end, block->segments[i].scale_b,
                              scale_b + i * columns);

    tile.b =
        dgi_cpu_fetch(job, area->panel, area->panels, block, (uint8_t *)scratch, &tile.b_stride);
    /* A kernel that reads packed weights itself fetches ahead itself. */
    const bool fetches = plan->direct && tile.b != (void *)scratch;
    if (!plan->direct) {
        job->kernel->decode_b(tile.b, tile.b_stride, job->b_dtype, area->panels,
                              block->depth / DGI_QUAD, scratch + at.decoded);
        tile.b = scratch + at.decoded;
    }
    for (int64_t t = 0; t < tiles; t++) {
        int64_t first = dgi_share(area->rows, tiles, t), row = area->row + first;
        if (!fetches)
            dgi_cpu_prefetch(next, tiles, t);
        tile.rows = (int32_t)(dgi_share(area->rows, tiles, t + 1) - first);
        tile.a = job->a + block->position * job->rows * plan->element_bytes + row * tile.a_stride;
        tile.scale_a = scale_a + row;
        tile.sums = (float *)(scratch + at.sums) + first * columns;
        (plan->direct ? job->kernel->direct : job->kernel->tile)(&tile);
    }
}

/* Sums to D: all rows at once, or each to where it belongs. */
static void store_area(const dgi_cpu_job *job, const area *area, int64_t valid, const float *sums)
{
    const int64_t columns = area->panels * DGI_PANEL, row = job->first_row + area->row;
    dgi_cpu_result result = {job->gemm, row,    area->panel * DGI_PANEL, area->rows, valid,
                             sums,      columns};
    if (job->scatter == NULL) {
        job->kernel->finish(&result);
        return;
    }
    result.rows = 1;
    for (int64_t r = 0; r < area->rows; r++, result.sums += columns) {
        result.row = job->scatter[row + r];
        if (result.row >= 0 && result.row < job->gemm->d.rows)
            job->kernel->finish(&result);
    }
}

static void multiply_area(const dgi_cpu_job *job, const area *area, char *scratch)
{
    const dgi_cpu_plan *plan = &job->plan;
    const int64_t columns = area->panels * DGI_PANEL, column = area->panel * DGI_PANEL;
    const int64_t valid = plan->n - column < columns ? plan->n - column : columns;
    float *sums = (float *)(scratch + job->at.sums);
    const float *scale_a = job->scale_a;

    memset(sums, 0, (size_t)(area->rows * columns) * sizeof *sums);
    dgi_k_walk walk = dgi_k_begin(plan->k, &job->gemm->scale_a, &job->scale_b);
    dgi_k_block pair[2], *block = &pair[0], *next = &pair[1];
    bool more = dgi_k_next(&walk, block);
    const dgi_cpu_stripes next_area =
        more ? dgi_cpu_stripes_of(job, area->panel + area->panels, area->next_panels, block)
             : (dgi_cpu_stripes){0};
    while (more) {
        more = dgi_k_next(&walk, next);
        dgi_cpu_stripes ahead =
            more ? dgi_cpu_stripes_of(job, area->panel, area->panels, next) : next_area;
        if (more)
            dgi_cpu_prefetch_scales(&job->scale_b, column, column + valid, next);
        multiply_block(job, area, block, &ahead, scale_a, scratch);
        scale_a += block->count * job->rows;
        dgi_k_block *spare = block;
        block = next;
        next = spare;
    }
    store_area(job, area, valid, sums);
}

/* How many of the panels from `panel` to `end` form an area: a tile's, of one strip. */
static int32_t area_panels(const dgi_cpu_plan *plan, int64_t panel, int64_t end)
{
    int64_t strip_end = (panel / DGI_STRIP + 1) * DGI_STRIP;
    int64_t left = (strip_end < end ? strip_end : end) - panel;
    return (int32_t)(left < plan->tile_panels ? left : plan->tile_panels);
}

/* Panels `panel` to `end` of some rows of the block in work. */
static void compute_panels(const dgi_cpu_job *job, int64_t row, int64_t rows, int64_t panel,
                           int64_t end, char *scratch)
{
    area area = {.row = row, .rows = rows, .panel = panel};
    area.panels = area_panels(&job->plan, panel, end);
    for (; area.panels != 0 && rows != 0; area.panels = area.next_panels) {
        area.next_panels = area_panels(&job->plan, area.panel + area.panels, end);
        multiply_area(job, &area, scratch);
        area.panel += area.panels;
    }
}

/* Part `part` of the block of rows in work. */
static void compute_part(dgi_cpu_job job, int32_t part, char *scratch)
{
    const dgi_cpu_plan *plan = &job.plan;
    const int32_t part_m = part / plan->parts_n, part_n = part % plan->parts_n;
    int64_t row = dgi_share(job.rows, plan->parts_m, part_m);
    const int64_t rows = dgi_share(job.rows, plan->parts_m, part_m + 1) - row;
    if (job.at.own_a) { /* the part's rows become the rows in work */
        job.first_row += row;
        job.rows = rows;
        row = 0;
        dgi_cpu_decode_rows(&job, 0, rows);
    }
    compute_panels(&job, row, rows, dgi_share(plan->panels, plan->parts_n, part_n),
                   dgi_share(plan->panels, plan->parts_n, part_n + 1), scratch);
}

void dgi_cpu_compute_piece(dgi_cpu_job *job, int64_t row, int64_t rows, int64_t panel, int64_t end,
                           char *memory)
{
    job->a = memory;
    job->scale_a = (float *)(memory + job->at.scale_a);
    job->first_row = row;
    job->rows = rows;
    dgi_cpu_decode_rows(job, 0, rows);
    compute_panels(job, 0, rows, panel, end, memory + job->at.threads);
}

static void compute(const dgi_cpu_job *shared, char *memory)
{
    const dgi_cpu_plan *plan = &shared->plan;
    const dgi_cpu_layout *at = &shared->at;
    const int32_t parts = plan->parts_m * plan->parts_n;
#pragma omp parallel num_threads(parts)
    {
        const int32_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        char *scratch = memory + at->threads + (size_t)thread * at->thread_bytes;
        dgi_cpu_job job = *shared;
        job.a = memory + (at->own_a ? (size_t)thread * at->a_bytes : 0);
        job.scale_a = (float *)(job.a + at->scale_a);
        for (job.first_row = 0; job.first_row < plan->m; job.first_row += job.rows) {
            int64_t left = plan->m - job.first_row;
            job.rows = left < plan->block_rows ? left : plan->block_rows;
            if (!at->own_a) {
#pragma omp barrier
                dgi_cpu_decode_rows(&job, dgi_share(job.rows, threads, thread),
                                    dgi_share(job.rows, threads, thread + 1));
#pragma omp barrier
            }
            for (int32_t part = thread; part < parts; part += threads)
                compute_part(job, part, scratch);
        }
    }
}

/* ---- the backend's functions --------------------------------------------------------- */

dgi_cpu_job dgi_cpu_job_of(const dgi_cpu *cpu, const dg_gemm *g, int64_t rows, int32_t threads)
{
    dgi_cpu_job job = {.gemm = g, .kernel = cpu->kernel};
    if (g->weights != NULL) {
        job.packed = true;
        job.b = g->weights->data;
        job.b_dtype = g->weights->b.dtype;
        job.scale_b = dgi_cpu_packed_scale(g->weights);
        job.lines = dgi_packed_lines(g->a.cols, &job.scale_b);
    } else {
        job.b = g->b.data;
        job.b_dtype = g->b.dtype;
        job.scale_b = g->scale_b;
        job.ldb = g->b.ld;
    }
    const dgi_cpu_tiling tiling = {cpu->info->tile_m, cpu->info->tile_n / DGI_PANEL,
                                   cpu->kernel->element_bytes, cpu->kernel->direct != NULL};
    job.plan =
        dgi_cpu_plan_make(rows, g->d.cols, g->a.cols, &g->scale_a, &job.scale_b, &tiling, threads);
    job.at = layout_of(&job.plan);
    return job;
}

static dgi_cpu_job job_of(const dgi_cpu *cpu, const dg_gemm *g)
{
    return dgi_cpu_job_of(cpu, g, g->d.rows, cpu->threads);
}

dg_status dgi_cpu_gemm(dg_context *context, const dg_gemm *gemm, void *stream)
{
    (void)stream;
    dgi_cpu *cpu = context->state;
    dgi_cpu_job job = job_of(cpu, gemm);
    void *memory = gemm->workspace;
    if (memory == NULL)
        DGI_TRY(dgi_workspace_take(&cpu->workspaces, job.at.total, &memory));
    compute(&job, memory);
    if (gemm->workspace == NULL)
        dgi_workspace_give_back(&cpu->workspaces, memory);
    return DG_OK;
}

dg_status dgi_cpu_gemm_workspace(dg_context *context, const dg_gemm *gemm, size_t *bytes)
{
    dgi_cpu_job job = job_of(context->state, gemm);
    *bytes = job.at.total;
    return DG_OK;
}

dg_status dgi_cpu_gemm_prepare(dg_context *context, const dg_gemm *gemm)
{
    dgi_cpu *cpu = context->state;
    dgi_cpu_job job = job_of(cpu, gemm);
    void *memory;
    DGI_TRY(dgi_workspace_take(&cpu->workspaces, job.at.total, &memory));
    dgi_workspace_give_back(&cpu->workspaces, memory);
    return DG_OK;
}

dg_status dgi_cpu_gemm_explain(dg_context *context, const dg_gemm *gemm, FILE *text)
{
    const dgi_cpu *cpu = context->state;
    dgi_cpu_job job = job_of(cpu, gemm);
    const dgi_cpu_plan *plan = &job.plan;
    dgi_cpu_explain_choice(cpu, text);
    fprintf(text, "tile %d x %d of D, %s\n", plan->tile_rows, plan->tile_panels * DGI_PANEL,
            plan->direct ? "weights decoded in registers" : "weights decoded into the L1 cache");
    fprintf(text, "weights %s, K in %lld segments\n",
            job.packed ? "packed" : "row-major: packed on the fly", (long long)plan->segments);
    fprintf(text, "threads %d over N x %d over M, %lld rows at a time\n", plan->parts_n,
            plan->parts_m, (long long)plan->block_rows);
    return DG_OK;
}
