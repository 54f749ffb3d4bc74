/* SPDX-License-Identifier: MIT */
/* A batch of items on its way from the input to the output: see stream.h. */
#include "quant/stream.h"

#include "core/formats.h"
#include "core/status.h"
#include "quant/chunk.h"

#include <math.h>
#include <omp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Elements of a chunk, at least a row of blocks: small enough for a thread's cache and to share a
 * middling tensor among threads, large enough to write at once.
 */
#define CHUNK_ELEMENTS ((int64_t)256 << 10)
/* Bytes of a tensor that is copied, at a time. */
#define COPY_BYTES     ((size_t)4 << 20)
/* What all threads' buffers may take up: with very long rows fewer threads work. */
#define BUFFER_BYTES   ((int64_t)512 << 20)

/* Rows of a chunk of an item: whole rows of blocks. */
static int64_t chunk_rows(const dgi_plan_item *item, const dgi_layout *layout)
{
    int64_t step = layout->block_rows > 0 ? layout->block_rows : 1;
    int64_t steps = CHUNK_ELEMENTS / item->cols / step;
    int64_t rows = (steps > 0 ? steps : 1) * step;
    int64_t all = (item->rows + step - 1) / step * step;
    return rows < all ? rows : all;
}

/* ---- buffers -------------------------------------------------------------------------- */

/* How large each buffer must be. */
typedef struct capacity {
    int64_t elements, scales, scale_row, source, cols;
} capacity;

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static capacity needed(const dgi_plan *plan)
{
    capacity c = {1, 1, 1, 1, 1};
    const dgi_layout *layout = plan->layout;
    for (size_t i = 0; i < plan->count; i++) {
        const dgi_plan_item *item = &plan->items[i];
        if (item->kept_because != NULL)
            continue;
        int64_t rows = chunk_rows(item, layout);
        int64_t scale_row = dg_scale_count(item->cols, layout->block_cols, 0);
        c.elements = most(c.elements, rows * item->cols);
        c.cols = most(c.cols, item->cols);
        c.scale_row = most(c.scale_row, scale_row);
        c.scales = most(c.scales, scale_row * dg_scale_count(rows, layout->block_rows, 0));
        for (size_t p = 0; p < item->part_count; p++) {
            const dgi_weight *w = item->parts[p].weight;
            int64_t of_chunk = dg_scale_count(rows, w->block_rows, most(w->block_rows - 1, 0));
            c.source = most(c.source, of_chunk * w->scale_cols);
        }
    }
    c.cols = most(c.cols, 1 << 14); /* rows are measured a few at a time */
    return c;
}

static void *array(int64_t count, size_t element)
{
    return malloc((size_t)count * element);
}

static bool make_buffers(const capacity *c, dgi_buffers *b)
{
    *b = (dgi_buffers){
        .codes = array(c->elements, 2),
        .values = array(c->elements, sizeof(float)),
        .part = array(c->cols, sizeof(float)),
        .wide = array(c->cols, sizeof(float)),
        .scales = array(c->scales, sizeof(float)),
        .dynamic = array(c->scales, sizeof(float)),
        .largest = array(c->scale_row, sizeof(float)),
        .smallest = array(c->scale_row, sizeof(float)),
        .source = array(c->source, sizeof(float)),
    };
    return b->codes && b->values && b->part && b->wide && b->scales && b->dynamic && b->largest &&
           b->smallest && b->source;
}

static void free_buffers(dgi_buffers *b)
{
    free(b->codes);
    free(b->values);
    free(b->part);
    free(b->wide);
    free(b->scales);
    free(b->dynamic);
    free(b->largest);
    free(b->smallest);
    free(b->source);
}

dg_status dgi_stream_open(dg_context *context, const dgi_plan *plan, dgi_stream *stream)
{
    *stream = (dgi_stream){.plan = plan};
    dg_device_info device;
    DGI_TRY(dg_get_device_info(context, &device));
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.threads = 1;
    options.isa = device.architecture;
    DGI_TRY(dg_create(&stream->single, DG_CPU, &options));
    capacity c = needed(plan);
    int64_t fitting = BUFFER_BYTES / (c.elements * (int64_t)(sizeof(uint16_t) + sizeof(float)));
    int32_t threads = fitting < device.units ? (int32_t)most(fitting, 1) : device.units;
    stream->buffers = calloc((size_t)threads, sizeof *stream->buffers);
    if (stream->buffers == NULL)
        return dgi_no_memory("buffers");
    for (; stream->threads < threads; stream->threads++)
        if (!make_buffers(&c, &stream->buffers[stream->threads])) {
            free_buffers(&stream->buffers[stream->threads]);
            return dgi_no_memory("a chunk of a weight");
        }
    return DG_OK;
}

void dgi_stream_close(dgi_stream *stream)
{
    for (int32_t t = 0; t < stream->threads; t++)
        free_buffers(&stream->buffers[t]);
    free(stream->buffers);
    dg_destroy(stream->single);
    *stream = (dgi_stream){0};
}

/* ---- a batch --------------------------------------------------------------------------- */

typedef struct batch {
    const dgi_stream *stream;
    const dgi_plan_item *items;
    size_t count;
    dgi_writer *writer;
    dgi_way *ways; /* of each item */
    float **whole; /* scales of the matrices of items that have one for each; NULL: others */
    dgi_chunk *chunks;
    size_t chunk_count;
} batch;

/* What a pass over the chunks does with one. */
typedef dg_status chunk_pass(const batch *b, dgi_buffers *buffers, dgi_chunk *chunk);

/*
 * Runs a pass over all chunks, on all threads. The first failure ends it. A message belongs to the
 * thread that failed, so it is carried over to the one that called.
 */
static dg_status for_all(const batch *b, chunk_pass *pass)
{
    char message[1024] = "";
    atomic_int failed = DG_OK;
    int32_t threads = b->stream->threads;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (size_t i = 0; i < b->chunk_count; i++) {
        if (atomic_load(&failed) != DG_OK)
            continue;
        dg_status status = pass(b, &b->stream->buffers[omp_get_thread_num()], &b->chunks[i]);
        int none = DG_OK;
        if (status != DG_OK && atomic_compare_exchange_strong(&failed, &none, (int)status))
            snprintf(message, sizeof message, "%s", dg_last_error());
    }
    return failed == DG_OK ? DG_OK : dgi_fail((dg_status)failed, "%s", message);
}

static bool is_copied(const dgi_plan_item *item)
{
    return item->kept_because != NULL;
}

/* Cuts the items into chunks; only counts them while b->chunks is NULL. */
static void cut(batch *b, const bool *skip)
{
    size_t n = 0;
    const dgi_layout *layout = b->stream->plan->layout;
    for (size_t i = 0; i < b->count; i++) {
        const dgi_plan_item *item = &b->items[i];
        if (skip[i])
            continue;
        for (size_t at = 0; is_copied(item) && at < item->bytes_before; at += COPY_BYTES, n++) {
            size_t rest = item->bytes_before - at;
            if (b->chunks != NULL)
                b->chunks[n] = (dgi_chunk){.item = item,
                                           .index = i,
                                           .first_byte = at,
                                           .bytes = rest < COPY_BYTES ? rest : COPY_BYTES};
        }
        int64_t step = is_copied(item) ? 0 : chunk_rows(item, layout);
        for (int64_t m = 0; step > 0 && m < item->matrices; m++)
            for (int64_t row = 0; row < item->rows; row += step, n++)
                if (b->chunks != NULL)
                    b->chunks[n] = (dgi_chunk){
                        .item = item,
                        .index = i,
                        .matrix = m,
                        .first_row = row,
                        .rows = item->rows - row < step ? item->rows - row : step,
                    };
    }
    b->chunk_count = n;
}

/* ---- the passes ------------------------------------------------------------------------ */

static bool has_one_scale(const batch *b, const dgi_plan_item *item)
{
    const dgi_layout *layout = b->stream->plan->layout;
    return !is_copied(item) && layout->scale_suffix != NULL && layout->block_rows == 0;
}

/* Whether chunks of FP8 must be looked at: are their codes to be kept? */
static bool is_open(const batch *b, const dgi_chunk *chunk)
{
    return b->ways[chunk->index].action == DG_TENSOR_REPACKED && !has_one_scale(b, chunk->item);
}

/* Whether the largest magnitude of a chunk is needed: for a scale that is not there yet. */
static bool needs_amax(const batch *b, const dgi_chunk *chunk)
{
    const float *whole = b->whole[chunk->index];
    return whole != NULL && whole[chunk->matrix] == 0.0f;
}

static dg_status look(const batch *b, dgi_buffers *buffers, dgi_chunk *chunk)
{
    if (!is_open(b, chunk) && !needs_amax(b, chunk))
        return DG_OK;
    return dgi_chunk_look(b->stream, buffers, needs_amax(b, chunk), chunk);
}

static dg_status write_chunk(const batch *b, dgi_buffers *buffers, dgi_chunk *chunk)
{
    return dgi_chunk_write(b->stream, buffers, &b->ways[chunk->index], b->writer, chunk);
}

/* How each item is written, as far as the plan and whole scales tell. */
static dg_status decide(batch *b, const bool *skip, size_t first)
{
    const dgi_layout *layout = b->stream->plan->layout;
    for (size_t i = 0; i < b->count; i++) {
        const dgi_plan_item *item = &b->items[i];
        dgi_way *way = &b->ways[i];
        way->place = first;
        first += 1 + (item->scale != NULL) + (item->input != NULL);
        if (is_copied(item) || skip[i])
            continue;
        bool fp8 = dgi_is_fp8(item->source->dtype);
        way->action = layout->scale_suffix == NULL ? DG_TENSOR_WIDENED
                      : fp8                        ? DG_TENSOR_REPACKED
                                                   : DG_TENSOR_QUANTIZED;
        if (!has_one_scale(b, item))
            continue;
        b->whole[i] = calloc((size_t)item->matrices, sizeof *b->whole[i]);
        if (b->whole[i] == NULL)
            return dgi_no_memory(item->source->name);
        way->whole = b->whole[i];
        for (int64_t m = 0; m < item->matrices; m++) {
            if (fp8)
                DGI_TRY(dgi_whole_scale(item, layout, m, &b->whole[i][m]));
            else if (item->given != NULL)
                b->whole[i][m] = dgi_load_f32(item->given->data, DG_F32, m);
            if (fp8 && b->whole[i][m] == 0.0f)
                way->action = DG_TENSOR_REQUANTIZED;
        }
    }
    return DG_OK;
}

/* Makes scales of matrices from the largest magnitudes of their chunks, and settles what is open.
 */
static void settle(batch *b)
{
    for (size_t c = 0; c < b->chunk_count;) {
        const dgi_chunk *chunk = &b->chunks[c];
        size_t index = chunk->index;
        int64_t matrix = chunk->matrix;
        bool open = is_open(b, chunk), amax_needed = needs_amax(b, chunk), requantize = false;
        float amax = 0.0f;
        for (; c < b->chunk_count && b->chunks[c].index == index && b->chunks[c].matrix == matrix;
             c++) {
            amax = fmaxf(amax, b->chunks[c].amax);
            requantize |= b->chunks[c].requantize;
        }
        if (amax_needed)
            b->whole[index][matrix] =
                dgi_dynamic_scale(amax, 0.0f, DG_E4M3, b->stream->plan->layout->rounding);
        if (open && requantize) /* of several matrices one is enough; the others keep their codes */
            b->ways[index].action = DG_TENSOR_REQUANTIZED;
    }
}

/* Takes the parts of a whole matrix into the result. */
static void take_parts(const dgi_part_sums parts[DGI_FUSED_PARTS], dgi_result *result)
{
    double largest = 0.0, smallest = INFINITY;
    for (int p = 0; p < DGI_FUSED_PARTS; p++) {
        const dgi_part_sums *part = &parts[p];
        if (part->weight_squares > 0.0)
            result->relative_error =
                fmax(result->relative_error, sqrt(part->error_squares / part->weight_squares));
        if (part->amax > 0.0f) { /* a part of zeros loses nothing */
            largest = fmax(largest, part->amax);
            smallest = fmin(smallest, part->amax);
        }
    }
    if (largest > 0.0)
        result->part_ratio = fmax(result->part_ratio, largest / smallest);
}

/* Adds up what the chunks found, in their order. */
static void collect(const batch *b, const bool *skip, dgi_result *results)
{
    dgi_part_sums parts[DGI_FUSED_PARTS] = {{0}};
    for (size_t i = 0; i < b->count; i++)
        if (!skip[i])
            results[i] = (dgi_result){.action = b->ways[i].action};
    for (size_t c = 0; c < b->chunk_count; c++) {
        const dgi_chunk *chunk = &b->chunks[c];
        dgi_result *result = &results[chunk->index];
        for (int p = 0; p < DGI_FUSED_PARTS; p++) {
            parts[p].error_squares += chunk->parts[p].error_squares;
            parts[p].weight_squares += chunk->parts[p].weight_squares;
            parts[p].amax = fmaxf(parts[p].amax, chunk->parts[p].amax);
        }
        result->counts.saturated += chunk->counts.saturated;
        result->counts.underflow += chunk->counts.underflow;
        result->counts.non_finite += chunk->counts.non_finite;
        const dgi_chunk *next = c + 1 < b->chunk_count ? chunk + 1 : NULL;
        if (next == NULL || next->index != chunk->index || next->matrix != chunk->matrix) {
            take_parts(parts, result);
            memset(parts, 0, sizeof parts);
        }
    }
}

/* Writes scales of whole matrices and of inputs. */
static dg_status write_small(const batch *b, const bool *skip)
{
    for (size_t i = 0; i < b->count; i++) {
        const dgi_plan_item *item = &b->items[i];
        size_t place = b->ways[i].place + 1;
        if (skip[i] || is_copied(item))
            continue;
        if (b->whole[i] != NULL)
            DGI_TRY(dgi_writer_write(b->writer, place, 0, b->whole[i], item->scale->bytes));
        if (item->input != NULL)
            DGI_TRY(dgi_writer_write(b->writer, place + 1, 0, &item->input_scale,
                                     sizeof item->input_scale));
    }
    return DG_OK;
}

static dg_status run(batch *b, const bool *skip, size_t first, dgi_result *results)
{
    cut(b, skip);
    b->chunks = calloc(b->chunk_count + 1, sizeof *b->chunks);
    b->ways = calloc(b->count + 1, sizeof *b->ways);
    b->whole = calloc(b->count + 1, sizeof *b->whole);
    if (b->chunks == NULL || b->ways == NULL || b->whole == NULL)
        return dgi_no_memory("a batch of tensors");
    cut(b, skip);
    DGI_TRY(decide(b, skip, first));
    bool any = false;
    for (size_t c = 0; c < b->chunk_count && !any; c++)
        any = is_open(b, &b->chunks[c]) || needs_amax(b, &b->chunks[c]);
    if (any) {
        DGI_TRY(for_all(b, look));
        settle(b);
    }
    DGI_TRY(for_all(b, write_chunk));
    DGI_TRY(write_small(b, skip));
    collect(b, skip, results);
    return DG_OK;
}

dg_status dgi_stream_run(const dgi_stream *stream, const dgi_plan_item *items, size_t count,
                         const bool *skip, dgi_writer *writer, size_t first, dgi_result *results)
{
    batch b = {.stream = stream, .items = items, .count = count, .writer = writer};
    dg_status status = run(&b, skip, first, results);
    for (size_t i = 0; i < count && b.whole != NULL; i++)
        free(b.whole[i]);
    free(b.whole);
    free(b.ways);
    free(b.chunks);
    return status;
}
