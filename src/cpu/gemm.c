/* SPDX-License-Identifier: MIT */
/*
 * The GEMM driver: what is the same for every micro-kernel. For a block of rows of A at a time, all
 * threads decode it; then each computes its part of D, panels of B by blocks of K:
 *
 *     for each tile of columns          sums = 0
 *         for each block of K           fetch (pack, decode) B into the L1 cache
 *             for each tile of rows     micro-kernel: sums += scaled products
 *         epilogue: sums to D
 */
#include "core/formats.h"
#include "cpu/cpu.h"

#include <omp.h>
#include <stdlib.h>

#define INLINE static inline __attribute__((always_inline))

/* Byte offsets into the workspace, and within one thread's scratch memory. */
typedef struct layout {
    size_t scale_a, threads, total;
    size_t decoded, scale_b, sums, thread_bytes;
} layout;

typedef struct job {
    const dg_gemm *gemm;
    const dgi_cpu_kernel *kernel;
    dgi_cpu_plan plan;
    layout at;
    /* B: packed panels of `lines` lines, or else rows `ldb` apart. */
    const uint8_t *b;
    bool packed;
    int64_t lines, ldb;
    dg_dtype b_dtype;
    dg_scale scale_b;
    /* The rows of A in work: decoded, block by block of K, and their scales [segment][row]. */
    int64_t first_row, rows;
    char *a;
    float *scale_a;
    char *threads; /* each thread's scratch memory */
} job;

/* ---- workspace ----------------------------------------------------------------------- */

static size_t aligned(int64_t bytes)
{
    return ((size_t)bytes + DGI_WORKSPACE_ALIGNMENT - 1) / DGI_WORKSPACE_ALIGNMENT *
           DGI_WORKSPACE_ALIGNMENT;
}

static layout layout_of(const dgi_cpu_plan *plan)
{
    const int64_t columns = plan->tile_panels * DGI_PANEL;
    layout l;
    l.scale_a = aligned(plan->block_rows * plan->depth * plan->element_bytes);
    l.threads = l.scale_a + aligned(plan->segments * plan->block_rows * (int64_t)sizeof(float));
    l.decoded = aligned(columns * DGI_DEPTH);
    l.scale_b = l.decoded + aligned(plan->direct ? 0 : columns * DGI_DEPTH * plan->element_bytes);
    l.sums = l.scale_b + aligned(DGI_BLOCK_SEGMENTS * columns * (int64_t)sizeof(float));
    int64_t part_rows = dgi_ceil_div(plan->block_rows, plan->parts_m);
    l.thread_bytes = l.sums + aligned(part_rows * columns * (int64_t)sizeof(float));
    l.total = l.threads + (size_t)(plan->parts_m * plan->parts_n) * l.thread_bytes;
    return l;
}

/* ---- operands ------------------------------------------------------------------------ */

/* Decodes rows `first` to `last` of the block of rows in work, and spreads their scales. */
static void decode_rows(const job *job, int64_t first, int64_t last)
{
    const dg_matrix *a = &job->gemm->a;
    const dg_scale *scale = &job->gemm->scale_a;
    const int64_t bytes = job->kernel->element_bytes;
    float *scale_a = job->scale_a;
    dgi_k_walk walk = dgi_k_begin(a->cols, scale, &job->scale_b);
    for (dgi_k_block block; dgi_k_next(&walk, &block);) {
        for (int64_t r = first; r < last; r++) {
            int64_t row = job->first_row + r;
            const uint8_t *codes = (const uint8_t *)a->data + row * a->ld;
            char *out = job->a + (block.position * job->rows + r * block.depth) * bytes;
            int64_t scale_row = dgi_scale_index(row, scale->block_rows, scale->row_phase);
            const uint8_t *next = codes + block.segments[0].k + DGI_DEPTH;
            for (int byte = 0; byte < DGI_DEPTH; byte += DGI_LINE_BYTES)
                __builtin_prefetch(next + byte);
            for (int i = 0; i < block.count; i++) {
                const dgi_k_segment *s = &block.segments[i];
                job->kernel->decode_a(codes + s->k, a->dtype, s->length, out);
                out += s->quads * DGI_QUAD * bytes;
                scale_a[i * job->rows + r] = dgi_scale_at(scale, scale_row, s->scale_a);
            }
        }
        scale_a += block.count * job->rows;
    }
}

/* The scales of columns `first` to `last` of D at one column of the scale array. */
static void spread_scales(const dg_scale *scale, int64_t first, int64_t last, int64_t column,
                          float *restrict out)
{
    const int64_t count = last - first, block = scale->block_rows == 0 ? last : scale->block_rows;
    int64_t row = dgi_scale_index(first, scale->block_rows, scale->row_phase);
    if (block == 1 && scale->row_stride == 1) { /* as in packed weights */
        const int64_t at = row + column * scale->col_stride;
        if (scale->dtype == DG_F32)
            memcpy(out, (const char *)scale->data + at * (int64_t)sizeof *out,
                   (size_t)count * sizeof *out);
        else
            for (int64_t n = 0; n < count; n++)
                out[n] = dgi_f32_from_ue8m0(((const uint8_t *)scale->data)[at + n]);
        return;
    }
    int64_t end = (row + 1) * block - scale->row_phase - first;
    for (int64_t n = 0; n < count; row++, end += block) {
        const float value = dgi_scale_at(scale, row, column);
        const int64_t stop = end < count ? end : count;
        for (; n < stop; n++)
            out[n] = value;
    }
}

/*
 * Prefetches what spread_scales() will read of a block if each row of B has scales of its own,
 * which for small blocks are an eighth of all the bytes. Inlined by force like prefetch().
 */
INLINE void prefetch_scales(const dg_scale *scale, int64_t first, int64_t last,
                            const dgi_k_block *block)
{
    const int64_t bytes = (int64_t)dg_dtype_bytes(scale->dtype);
    if (scale->block_rows != 1 || scale->row_stride != 1)
        return;
    for (int i = 0; i < block->count; i++) {
        const char *from = (const char *)scale->data +
                           (first + block->segments[i].scale_b * scale->col_stride) * bytes;
        for (int64_t byte = 0; byte < (last - first) * bytes; byte += DGI_LINE_BYTES)
            __builtin_prefetch(from + byte);
    }
}

static const uint8_t *packed_line(const job *job, int64_t panel, const dgi_k_segment *segment,
                                  int64_t *stride)
{
    return job->b +
           dgi_packed_offset(job->plan.panels, job->lines, panel, segment->packed_line, stride);
}

/* The bytes of B behind one block of K of some panels: `count` stripes `stride` bytes apart. */
typedef struct stripes {
    const uint8_t *from;
    int64_t stride, count, bytes;
} stripes;

static stripes stripes_of(const job *job, int64_t panel, int32_t panels, const dgi_k_block *block)
{
    const dgi_k_segment *first = &block->segments[0];
    stripes s = {.count = 0};
    if (panels == 0)
        return s;
    if (job->packed) {
        s.from = packed_line(job, panel, first, &s.stride);
        s.count = block->depth / DGI_QUAD;
        s.bytes = panels * DGI_LINE_BYTES;
    } else {
        int64_t row = panel * DGI_PANEL, left = job->plan.n - row;
        s.from = job->b + row * job->ldb + first->k;
        s.stride = job->ldb;
        s.count = left < panels * DGI_PANEL ? left : panels * DGI_PANEL;
        s.bytes = block->depth;
    }
    return s;
}

/*
 * Prefetches share `index` of `shares` of them. Inlined by force: gcc takes a function whose only
 * effect is a prefetch for one without effect, and drops its calls.
 */
INLINE void prefetch(const stripes *s, int64_t shares, int64_t index)
{
    const int64_t end = dgi_share(s->count, shares, index + 1);
    for (int64_t i = dgi_share(s->count, shares, index); i < end; i++)
        for (int64_t byte = 0; byte < s->bytes; byte += DGI_LINE_BYTES)
            __builtin_prefetch(s->from + i * s->stride + byte);
}

static bool is_whole(const dgi_k_block *block)
{
    for (int i = 0; i < block->count; i++)
        if (!block->segments[i].whole)
            return false;
    return true;
}

/* Packs one block of K of `panels` panels into `lines`, a quad's lines side by side. */
static void pack(const job *job, int64_t panel, int32_t panels, const dgi_k_block *block,
                 uint8_t *lines)
{
    const int64_t stride = panels * DGI_LINE_BYTES;
    for (int32_t p = 0; p < panels; p++) {
        int64_t row = (panel + p) * DGI_PANEL;
        int64_t rows = job->plan.n - row < DGI_PANEL ? job->plan.n - row : DGI_PANEL;
        uint8_t *to = lines + p * DGI_LINE_BYTES;
        for (int i = 0; i < block->count; i++) {
            const dgi_k_segment *s = &block->segments[i];
            uint8_t unpacked[DGI_PANEL * DGI_DEPTH];
            const uint8_t *from = unpacked;
            int64_t ld = DGI_DEPTH;
            if (job->packed) {
                int64_t packed_stride;
                const uint8_t *packed = packed_line(job, panel + p, s, &packed_stride);
                dgi_cpu_unpack(packed, packed_stride, s->packed_skip, s->length, rows, unpacked,
                               ld);
            } else {
                from = job->b + row * job->ldb + s->k;
                ld = job->ldb;
            }
            job->kernel->pack(from, ld, rows, s->length, to, stride);
            to += s->quads * stride;
        }
    }
}

/* ---- the product --------------------------------------------------------------------- */

/* A rectangle of D that one thread computes: rows of the block in work by panels. */
typedef struct area {
    int64_t row, rows, panel;
    int32_t panels, next_panels; /* of the area that the thread computes after this one, or 0 */
} area;

static void multiply_block(const job *job, const area *area, const dgi_k_block *block,
                           const stripes *next, const float *scale_a, char *scratch)
{
    const dgi_cpu_plan *plan = &job->plan;
    const layout at = job->at;
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
        spread_scales(&job->scale_b, column, end, block->segments[i].scale_b,
                      scale_b + i * columns);

    const bool in_place = job->packed && is_whole(block);
    if (in_place) {
        tile.b = packed_line(job, area->panel, &block->segments[0], &tile.b_stride);
    } else {
        pack(job, area->panel, area->panels, block, (uint8_t *)scratch);
        tile.b = scratch;
        tile.b_stride = area->panels * DGI_LINE_BYTES;
    }
    if (!plan->direct) {
        job->kernel->decode_b(tile.b, tile.b_stride, job->b_dtype, area->panels,
                              block->depth / DGI_QUAD, scratch + at.decoded);
        tile.b = scratch + at.decoded;
    }
    for (int64_t t = 0; t < tiles; t++) {
        int64_t first = dgi_share(area->rows, tiles, t), row = area->row + first;
        if (!(plan->direct && in_place))
            prefetch(next, tiles, t);
        tile.rows = (int32_t)(dgi_share(area->rows, tiles, t + 1) - first);
        tile.a = job->a + block->position * job->rows * plan->element_bytes + row * tile.a_stride;
        tile.scale_a = scale_a + row;
        tile.sums = (float *)(scratch + at.sums) + first * columns;
        (plan->direct ? job->kernel->direct : job->kernel->tile)(&tile);
    }
}

static void multiply_area(const job *job, const area *area, char *scratch)
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
    const stripes next_area =
        more ? stripes_of(job, area->panel + area->panels, area->next_panels, block) : (stripes){0};
    while (more) {
        more = dgi_k_next(&walk, next);
        stripes ahead = more ? stripes_of(job, area->panel, area->panels, next) : next_area;
        if (more)
            prefetch_scales(&job->scale_b, column, column + valid, next);
        multiply_block(job, area, block, &ahead, scale_a, scratch);
        scale_a += block->count * job->rows;
        dgi_k_block *spare = block;
        block = next;
        next = spare;
    }
    dgi_cpu_result result = {job->gemm, job->first_row + area->row, column, area->rows, valid, sums,
                             columns};
    job->kernel->finish(&result);
}

/* How many of the panels from `panel` to `end` form an area: a tile's, of one strip. */
static int32_t area_panels(const dgi_cpu_plan *plan, int64_t panel, int64_t end)
{
    int64_t strip_end = (panel / DGI_STRIP + 1) * DGI_STRIP;
    int64_t left = (strip_end < end ? strip_end : end) - panel;
    return (int32_t)(left < plan->tile_panels ? left : plan->tile_panels);
}

/* Part `part` of the block of rows in work. */
static void compute_part(const job *job, int32_t part, char *scratch)
{
    const dgi_cpu_plan *plan = &job->plan;
    const int32_t part_m = part / plan->parts_n, part_n = part % plan->parts_n;
    const int64_t row = dgi_share(job->rows, plan->parts_m, part_m);
    const int64_t rows = dgi_share(job->rows, plan->parts_m, part_m + 1) - row;
    const int64_t panel = dgi_share(plan->panels, plan->parts_n, part_n);
    const int64_t end = dgi_share(plan->panels, plan->parts_n, part_n + 1);
    area area = {.row = row, .rows = rows, .panel = panel};
    area.panels = area_panels(plan, panel, end);
    for (; area.panels != 0 && rows != 0; area.panels = area.next_panels) {
        area.next_panels = area_panels(plan, area.panel + area.panels, end);
        multiply_area(job, &area, scratch);
        area.panel += area.panels;
    }
}

static void compute(job *shared)
{
    const dgi_cpu_plan *plan = &shared->plan;
    const int32_t parts = plan->parts_m * plan->parts_n;
    if (plan->decode_first) {
        shared->rows = plan->m;
        decode_rows(shared, 0, plan->m);
    }
#pragma omp parallel num_threads(parts)
    {
        const int32_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        char *scratch = shared->threads + (size_t)thread * shared->at.thread_bytes;
        job job = *shared;
        for (job.first_row = 0; job.first_row < plan->m; job.first_row += job.rows) {
            int64_t left = plan->m - job.first_row;
            job.rows = left < plan->block_rows ? left : plan->block_rows;
            if (!plan->decode_first) {
#pragma omp barrier
                decode_rows(&job, dgi_share(job.rows, threads, thread),
                            dgi_share(job.rows, threads, thread + 1));
#pragma omp barrier
            }
            for (int32_t part = thread; part < parts; part += threads)
                compute_part(&job, part, scratch);
        }
    }
}

/* ---- the backend's functions --------------------------------------------------------- */

static job job_of(const dgi_cpu *cpu, const dg_gemm *g)
{
    job job = {.gemm = g, .kernel = cpu->kernel};
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
    job.plan = dgi_cpu_plan_make(g->d.rows, g->d.cols, g->a.cols, &g->scale_a, &job.scale_b,
                                 &tiling, cpu->threads);
    job.at = layout_of(&job.plan);
    return job;
}

dg_status dgi_cpu_gemm(dg_context *context, const dg_gemm *gemm, void *stream)
{
    (void)stream;
    dgi_cpu *cpu = context->state;
    job job = job_of(cpu, gemm);
    void *memory = gemm->workspace;
    if (memory == NULL)
        DGI_TRY(dgi_workspace_take(&cpu->workspaces, job.at.total, &memory));
    job.a = memory;
    job.scale_a = (float *)((char *)memory + job.at.scale_a);
    job.threads = (char *)memory + job.at.threads;
    compute(&job);
    if (gemm->workspace == NULL)
        dgi_workspace_give_back(&cpu->workspaces, memory);
    return DG_OK;
}

dg_status dgi_cpu_gemm_workspace(dg_context *context, const dg_gemm *gemm, size_t *bytes)
{
    job job = job_of(context->state, gemm);
    *bytes = job.at.total;
    return DG_OK;
}

dg_status dgi_cpu_gemm_prepare(dg_context *context, const dg_gemm *gemm)
{
    dgi_cpu *cpu = context->state;
    job job = job_of(cpu, gemm);
    void *memory;
    DGI_TRY(dgi_workspace_take(&cpu->workspaces, job.at.total, &memory));
    dgi_workspace_give_back(&cpu->workspaces, memory);
    return DG_OK;
}

dg_status dgi_cpu_gemm_explain(dg_context *context, const dg_gemm *gemm, char *text,
                               size_t *text_bytes)
{
    const dgi_cpu *cpu = context->state;
    job job = job_of(cpu, gemm);
    const dgi_cpu_plan *plan = &job.plan;
    char *whole = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&whole, &length);
    if (stream == NULL)
        return dgi_fail(DG_OUT_OF_MEMORY, "no memory for the explanation");
    dgi_cpu_explain_choice(cpu, stream);
    fprintf(stream, "tile %d x %d of D, %s\n", plan->tile_rows, plan->tile_panels * DGI_PANEL,
            plan->direct ? "weights decoded in registers" : "weights decoded into the L1 cache");
    fprintf(stream, "weights %s, K in %lld segments\n",
            job.packed ? "packed" : "row-major: packed on the fly", (long long)plan->segments);
    fprintf(stream, "threads %d over N x %d over M, %lld rows at a time\n", plan->parts_n,
            plan->parts_m, (long long)plan->block_rows);
    bool failed = ferror(stream) != 0;
    if (fclose(stream) != 0 || failed) {
        free(whole);
        return dgi_fail(DG_OUT_OF_MEMORY, "no memory for the explanation");
    }
    if (*text_bytes != 0)
        snprintf(text, *text_bytes, "%s", whole);
    *text_bytes = length + 1;
    free(whole);
    return DG_OK;
}
