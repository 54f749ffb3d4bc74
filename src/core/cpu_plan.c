/* SPDX-License-Identifier: MIT */
/* The cuts of K, M and N for the CPU backend. */
#include "core/cpu_plan.h"

/* ---- K ------------------------------------------------------------------------------- */

static dgi_scale_walk scale_begin(const dg_scale *scale)
{
    int32_t block = scale->block_cols;
    return (dgi_scale_walk){0, block == 0 ? INT64_MAX : block - scale->col_phase, block};
}

static void scale_advance(dgi_scale_walk *walk, int64_t k)
{
    if (k != walk->next)
        return;
    walk->column++;
    walk->next += walk->block;
}

static int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

dgi_k_walk dgi_k_begin(int64_t k, const dg_scale *scale_a, const dg_scale *scale_b)
{
    return (dgi_k_walk){.size = k, .a = scale_begin(scale_a), .b = scale_begin(scale_b)};
}

/* The segment that begins at walk->k. */
static dgi_k_segment segment_at(const dgi_k_walk *walk)
{
    int64_t offset = walk->k - walk->run;
    int64_t run_end = least(walk->b.next, walk->size);
    int64_t end =
        least(least(walk->a.next, run_end), walk->run + (offset / DGI_DEPTH + 1) * DGI_DEPTH);
    dgi_k_segment segment = {
        .k = walk->k,
        .length = (int32_t)(end - walk->k),
        .quads = (int32_t)dgi_ceil_div(end - walk->k, DGI_QUAD),
        .scale_a = walk->a.column,
        .scale_b = walk->b.column,
        .packed_line = walk->run_line + offset / DGI_QUAD,
        .packed_skip = (int32_t)(offset % DGI_QUAD),
        .whole = offset % DGI_QUAD == 0 && ((end - walk->run) % DGI_QUAD == 0 || end == run_end),
    };
    return segment;
}

bool dgi_k_next(dgi_k_walk *walk, dgi_k_block *block)
{
    block->position = walk->position;
    block->depth = 0;
    block->count = 0;
    while (walk->k < walk->size) {
        dgi_k_segment segment = segment_at(walk);
        if (block->depth + segment.quads * DGI_QUAD > DGI_DEPTH)
            break;
        block->segments[block->count++] = segment;
        block->depth += segment.quads * DGI_QUAD;
        walk->k += segment.length;
        if (walk->k == walk->b.next) {
            walk->run_line += dgi_ceil_div(walk->k - walk->run, DGI_QUAD);
            walk->run = walk->k;
        }
        scale_advance(&walk->a, walk->k);
        scale_advance(&walk->b, walk->k);
    }
    walk->position += block->depth;
    return block->count != 0;
}

int64_t dgi_packed_lines(int64_t k, const dg_scale *scale_b)
{
    int32_t block = scale_b->block_cols;
    if (block == 0)
        return dgi_ceil_div(k, DGI_QUAD);
    int64_t first = least(block - scale_b->col_phase, k), rest = k - first;
    return dgi_ceil_div(first, DGI_QUAD) + rest / block * dgi_ceil_div(block, DGI_QUAD) +
           dgi_ceil_div(rest % block, DGI_QUAD);
}

int64_t dgi_packed_offset(int64_t panels, int64_t lines, int64_t panel, int64_t line,
                          int64_t *stride)
{
    int64_t strip = panel / DGI_STRIP * DGI_STRIP, width = least(panels - strip, DGI_STRIP);
    *stride = width * DGI_LINE_BYTES;
    return (strip * lines + line * width + panel - strip) * DGI_LINE_BYTES;
}

/* ---- M and N ------------------------------------------------------------------------- */

enum {
    DIRECT_ROWS = 12,          /* up to here decoding in registers, for each 4 rows anew, wins */
    DIRECT_TILE_ROWS = 4,      /* 4 rows x 4 panels and the look-up tables fill the registers  */
    DECODED_A_BYTES = 8 << 20, /* of workspace for decoded A                                   */
    MOST_ROWS = 1024,          /* of decoded A: a thread's sums for them take 256 KB of L2     */
    THREAD_WORK = 1 << 16      /* weight bytes that repay starting a thread                  */
};

/*
 * Decoding a panel costs about as much as multiplying it by this many rows; decoding a row of A, as
 * multiplying it by half a panel.
 */
static const int64_t DECODE_ROWS = 4;

/*
 * Divides rows x panels among threads. Splitting N keeps each panel's decoding in one thread, so M
 * is split only where that balances better.
 */
static void divide(dgi_cpu_plan *plan, int64_t rows, int32_t threads)
{
    int64_t best = INT64_MAX;
    for (int32_t parts_m = 1; parts_m <= threads && parts_m <= rows; parts_m++) {
        int32_t parts_n = (int32_t)least(threads / parts_m, plan->panels);
        int64_t half_panels = 2 * dgi_ceil_div(plan->panels, parts_n) + 1;
        int64_t cost = (dgi_ceil_div(rows, parts_m) + DECODE_ROWS) * half_panels;
        if (cost < best) {
            best = cost;
            plan->parts_m = parts_m;
            plan->parts_n = parts_n;
        }
    }
}

dgi_cpu_plan dgi_cpu_plan_make(int64_t m, int64_t n, int64_t k, const dg_scale *scale_a,
                               const dg_scale *scale_b, const dgi_cpu_tiling *tiling,
                               int32_t threads)
{
    dgi_cpu_plan plan = {
        .m = m, .n = n, .k = k, .threads = threads, .element_bytes = tiling->element_bytes};
    plan.panels = dgi_ceil_div(n, DGI_PANEL);
    dgi_k_walk walk = dgi_k_begin(k, scale_a, scale_b);
    for (dgi_k_block block; dgi_k_next(&walk, &block);)
        plan.segments += block.count;
    plan.depth = walk.position;

    int64_t row_bytes = plan.depth * plan.element_bytes;
    int64_t fitting = row_bytes == 0 ? m : DECODED_A_BYTES / row_bytes;
    plan.most_rows = least(least(m, MOST_ROWS), fitting < 1 ? 1 : fitting);
    plan.block_rows = dgi_ceil_div(m, dgi_ceil_div(m, plan.most_rows));

    plan.direct = tiling->has_direct && m <= DIRECT_ROWS;
    plan.tile_rows = tiling->tile_rows;
    plan.tile_panels = tiling->tile_panels;
    if (plan.direct) {
        int64_t tiles = dgi_ceil_div(m, DIRECT_TILE_ROWS);
        plan.tile_rows = (int32_t)dgi_ceil_div(m, tiles);
    }
    int64_t useful = dgi_ceil_div(plan.panels * DGI_PANEL * plan.depth, THREAD_WORK) * m;
    divide(&plan, plan.block_rows, (int32_t)least(threads, useful < 1 ? 1 : useful));
    return plan;
}
