/* SPDX-License-Identifier: MIT */
/* The work on a chunk of rows: see chunk.h. */
#include "quant/chunk.h"

#include "core/formats.h"
#include "core/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows and columns from `first` to `last`. */
typedef struct span {
    int64_t first, last;
} span;

/* ---- parts --------------------------------------------------------------------------- */

/* A part's rows inside a chunk: where they lie in the chunk and in the part's matrix. */
typedef struct piece {
    const dgi_part *part;
    int64_t at, row, rows;
} piece;

/*
 * The next piece of the rows from `from` to `to` (of all matrices of the item, one after another);
 * call it with *part and *before at 0. False at the end.
 */
static bool next_piece(const dgi_plan_item *item, int64_t from, int64_t to, size_t *part,
                       int64_t *before, piece *found)
{
    while (*part < item->part_count) {
        const dgi_part *p = &item->parts[*part];
        int64_t begin = *before, end = begin + p->rows;
        *before = end;
        ++*part;
        if (begin >= to)
            return false;
        if (end <= from)
            continue;
        int64_t first = begin > from ? begin : from, last = end < to ? end : to;
        *found = (piece){p, first - from, p->first_row + first - begin, last - first};
        return true;
    }
    return false;
}

#define FOR_PIECES(item, from, to, one)                                                            \
    for (struct {                                                                                  \
             size_t part;                                                                          \
             int64_t before;                                                                       \
         } place_ = {0, 0};                                                                        \
         next_piece(item, from, to, &place_.part, &place_.before, &(one));)

static int64_t first_of(const dgi_chunk *chunk)
{
    return chunk->matrix * chunk->item->rows + chunk->first_row;
}

static const char *row_data(const piece *p)
{
    const dgi_weight *w = p->part->weight;
    size_t row_bytes = (size_t)w->cols * dg_dtype_bytes(w->weight->dtype);
    return (const char *)w->weight->data + (size_t)(p->part->matrix * w->rows + p->row) * row_bytes;
}

static dg_matrix rows_of(const piece *p)
{
    const dgi_weight *w = p->part->weight;
    return dg_matrix_of((void *)row_data(p), w->weight->dtype, p->rows, w->cols);
}

static void drop_rows(const piece *p)
{
    const dgi_weight *w = p->part->weight;
    dgi_drop_pages(row_data(p), (size_t)(p->rows * w->cols) * dg_dtype_bytes(w->weight->dtype));
}

/* ---- scales of the input -------------------------------------------------------------- */

/* Copies scale row `row` of a part's matrix to `scales`; 1 where the weight has none. */
static void load_scales(const dgi_part *part, int64_t row, float *scales)
{
    const dgi_weight *w = part->weight;
    if (w->scale == NULL) {
        scales[0] = 1.0f;
        return;
    }
    int64_t first = part->matrix * w->matrix_scales + row * w->scale_cols;
    for (int64_t i = 0; i < w->scale_cols; i++)
        scales[i] = dgi_load_f32(w->scale->data, w->scale_dtype, first + i);
}

/* Columns of a row of blocks from which column range a block takes its part. */
static span block_span(int64_t index, int32_t block, int64_t size)
{
    if (block == 0)
        return (span){0, size};
    int64_t last = (index + 1) * block;
    return (span){index * block, last < size ? last : size};
}

/* Widens the range of the output's scales by those of one scale row of the input. */
static bool add_scale_row(const dgi_part *part, int64_t row, int32_t block_cols, int64_t count,
                          float *source, float *smallest, float *largest)
{
    const dgi_weight *w = part->weight;
    load_scales(part, row, source);
    bool good = true;
    for (int64_t s = 0; s < w->scale_cols; s++) {
        span cols = block_span(s, w->block_cols, w->cols);
        int64_t first = dgi_scale_index(cols.first, block_cols, 0);
        int64_t last = dgi_scale_index(cols.last - 1, block_cols, 0);
        good &= source[s] > 0.0f && source[s] < INFINITY;
        for (int64_t c = first; c <= last && c < count; c++) {
            smallest[c] = source[s] < smallest[c] ? source[s] : smallest[c];
            largest[c] = source[s] > largest[c] ? source[s] : largest[c];
        }
    }
    return good;
}

/* The range of the input's scales in each block of a row of blocks of the output. */
static dg_status find_range(const dgi_plan_item *item, span rows, int32_t block_cols, int64_t count,
                            dgi_buffers *b)
{
    for (int64_t c = 0; c < count; c++) {
        b->smallest[c] = INFINITY;
        b->largest[c] = 0.0f;
    }
    piece p;
    FOR_PIECES(item, rows.first, rows.last, p)
    {
        const dgi_weight *w = p.part->weight;
        int64_t first = dgi_scale_index(p.row, w->block_rows, 0);
        int64_t last = dgi_scale_index(p.row + p.rows - 1, w->block_rows, 0);
        for (int64_t row = first; row <= last; row++)
            if (!add_scale_row(p.part, row, block_cols, count, b->source, b->smallest, b->largest))
                return dgi_scale_check(w->scale);
    }
    return DG_OK;
}

static bool has_only_e4m3(const dgi_plan_item *item)
{
    for (size_t p = 0; p < item->part_count; p++)
        if (item->parts[p].weight->weight->dtype != DG_E4M3)
            return false;
    return true;
}

/* Whether the format can store the scale as it is. */
static bool can_hold(const dgi_layout *layout, float scale)
{
    if (layout->rounding == DG_SCALE_EXACT)
        return true;
    uint32_t bits = dgi_f32_to_bits(scale);
    bool power = (bits & 0x7FFFFFu) == 0 || bits == 0x00400000u; /* 2^-127, a subnormal */
    return power && (bits != 0x00400000u || layout->scale_dtype == DG_UE8M0);
}

/*
 * The scales of the chunk's blocks in the output that can be as they are; 0 for the others. *all:
 * there are none of these. `b->scales` gets them.
 */
static dg_status keep_scales(const dgi_chunk *chunk, const dgi_layout *layout, dgi_buffers *b,
                             bool *all)
{
    const dgi_plan_item *item = chunk->item;
    int64_t count = dg_scale_count(item->cols, layout->block_cols, 0), begin = first_of(chunk);
    bool codes_stay = has_only_e4m3(item);
    *all = true;
    for (int64_t row = 0; row * layout->block_rows < chunk->rows; row++) {
        span rows = block_span(row, layout->block_rows, chunk->rows);
        rows.first += begin;
        rows.last += begin;
        DGI_TRY(find_range(item, rows, layout->block_cols, count, b));
        for (int64_t c = 0; c < count; c++) {
            bool keep =
                codes_stay && b->smallest[c] == b->largest[c] && can_hold(layout, b->largest[c]);
            b->scales[row * count + c] = keep ? b->largest[c] : 0.0f;
            *all &= keep;
        }
    }
    return DG_OK;
}

dg_status dgi_whole_scale(const dgi_plan_item *item, const dgi_layout *layout, int64_t matrix,
                          float *scale)
{
    int64_t widest = 1;
    for (size_t p = 0; p < item->part_count; p++)
        if (item->parts[p].weight->scale_cols > widest)
            widest = item->parts[p].weight->scale_cols;
    float smallest, largest, *source = malloc((size_t)widest * sizeof *source);
    if (source == NULL)
        return dgi_no_memory(item->source->name);
    dgi_buffers b = {.smallest = &smallest, .largest = &largest, .source = source};
    span rows = {matrix * item->rows, (matrix + 1) * item->rows};
    dg_status status = find_range(item, rows, 0, 1, &b);
    free(source);
    bool keep = smallest == largest && has_only_e4m3(item) && can_hold(layout, largest);
    *scale = keep ? largest : 0.0f;
    return status;
}

/* ---- values of the input ---------------------------------------------------------------- */

/* Converts `count` values to FP32. */
static dg_status widen(const void *data, dg_dtype dtype, int64_t count, float *values)
{
    if (dtype != DG_BF16)
        return dg_convert(data, dtype, values, DG_F32, count, DG_SATURATE);
    const char *codes = data; /* at any address */
    for (int64_t i = 0; i < count; i++) {
        uint16_t code;
        memcpy(&code, codes + 2 * i, sizeof code);
        values[i] = dgi_f32_from_bf16(code);
    }
    return DG_OK;
}

/* The values of FP8 rows, times their scales. */
static dg_status dequantize(const dgi_stream *s, const piece *p, dgi_buffers *b, float *values)
{
    const dgi_weight *w = p->part->weight;
    int64_t first = dgi_scale_index(p->row, w->block_rows, 0);
    int64_t last = dgi_scale_index(p->row + p->rows - 1, w->block_rows, 0);
    for (int64_t row = first; row <= last; row++)
        load_scales(p->part, row, b->source + (row - first) * w->scale_cols);
    dg_dequantize call = DG_DEQUANTIZE_INIT;
    call.input = rows_of(p);
    call.output = dg_matrix_of(values, DG_F32, p->rows, w->cols);
    call.scale = dg_scale_of(b->source, DG_F32, p->rows, w->cols, w->block_rows, w->block_cols);
    call.scale.row_phase = w->block_rows == 0 ? 0 : (int32_t)(p->row % w->block_rows);
    call.scale.rows = dg_scale_count(p->rows, w->block_rows, call.scale.row_phase);
    return dg_dequantize_run(s->single, &call, NULL);
}

/* Gathers the chunk's values in FP32. */
static dg_status gather(const dgi_stream *s, const dgi_chunk *chunk, dgi_buffers *b)
{
    int64_t begin = first_of(chunk), cols = chunk->item->cols;
    piece p;
    FOR_PIECES(chunk->item, begin, begin + chunk->rows, p)
    {
        float *values = b->values + p.at * cols;
        dg_dtype dtype = p.part->weight->weight->dtype;
        DGI_TRY(dgi_is_fp8(dtype) ? dequantize(s, &p, b, values)
                                  : widen(row_data(&p), dtype, p.rows * cols, values));
    }
    return DG_OK;
}

/* The chunk's rows as they lie in the input, if they are of one part; or gathered. */
static dg_status input_rows(const dgi_stream *s, const dgi_chunk *chunk, dgi_buffers *b,
                            dg_matrix *rows)
{
    int64_t begin = first_of(chunk);
    piece p;
    FOR_PIECES(chunk->item, begin, begin + chunk->rows, p)
    {
        if (p.rows == chunk->rows && !dgi_is_fp8(p.part->weight->weight->dtype)) {
            *rows = rows_of(&p);
            return DG_OK;
        }
    }
    *rows = dg_matrix_of(b->values, DG_F32, chunk->rows, chunk->item->cols);
    return gather(s, chunk, b);
}

static void drop_chunk(const dgi_chunk *chunk)
{
    int64_t begin = first_of(chunk);
    piece p;
    FOR_PIECES(chunk->item, begin, begin + chunk->rows, p)
    drop_rows(&p);
}

static float largest_magnitude(const float *values, int64_t count)
{
    /* Magnitudes order as their bits do, which compilers make vectors of. */
    int32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t bits = (int32_t)(dgi_f32_to_bits(values[i]) & 0x7FFFFFFFu);
        bits = bits >= (int32_t)DGI_F32_INFINITY ? 0 : bits;
        largest = bits > largest ? bits : largest;
    }
    return dgi_f32_from_bits((uint32_t)largest);
}

dg_status dgi_chunk_look(const dgi_stream *stream, dgi_buffers *b, bool need_amax, dgi_chunk *chunk)
{
    if (!need_amax) {
        bool all;
        DGI_TRY(keep_scales(chunk, stream->plan->layout, b, &all));
        chunk->requantize = !all;
        return DG_OK;
    }
    DGI_TRY(gather(stream, chunk, b));
    chunk->amax = largest_magnitude(b->values, chunk->rows * chunk->item->cols);
    return DG_OK;
}

/* ---- errors ----------------------------------------------------------------------------- */

/* In double precision, for values that are not finite or whose squares FP32 cannot hold. */
static void add_squares_exactly(const float *w, const float *v, int64_t count, double *error,
                                double *weight)
{
    for (int64_t i = 0; i < count; i++) {
        double d = (double)w[i] - v[i];
        if (d - d != 0.0)
            continue;
        *error += d * d;
        *weight += (double)w[i] * w[i];
    }
}

/*
 * Adds the squares of w - v and of w; pairs that are not finite count for nothing. A few are added
 * in FP32, in lanes that compilers make vectors of, and these sums in double precision.
 */
static void add_squares(const float *w, const float *v, int64_t count, dgi_part_sums *sums)
{
    enum { FEW = 256, LANES = 8 };
    int64_t i = 0;
    for (; i + FEW <= count; i += FEW) {
        float errors[LANES] = {0}, weights[LANES] = {0}, e = 0.0f, x = 0.0f;
        for (int64_t k = i; k < i + FEW; k += LANES)
            for (int l = 0; l < LANES; l++) {
                float d = w[k + l] - v[k + l];
                errors[l] += d * d;
                weights[l] += w[k + l] * w[k + l];
            }
        for (int l = 0; l < LANES; l++) {
            e += errors[l];
            x += weights[l];
        }
        if (x > 1e-20f && x < 1e30f && e < 1e30f) { /* also: all of them are finite */
            sums->error_squares += e;
            sums->weight_squares += x;
        } else {
            add_squares_exactly(w + i, v + i, FEW, &sums->error_squares, &sums->weight_squares);
        }
    }
    add_squares_exactly(w + i, v + i, count - i, &sums->error_squares, &sums->weight_squares);
}

/* Rows that are measured at a time: they stay in the cache. */
static int64_t measured_rows(int64_t cols)
{
    const int64_t elements = 1 << 14;
    return cols < elements ? elements / cols : 1;
}

/* Parts of each matrix of an item. */
static int64_t parts_of_matrix(const dgi_plan_item *item)
{
    return (int64_t)item->part_count / item->matrices;
}

static dgi_part_sums *sums_of(dgi_chunk *chunk, const piece *p)
{
    const dgi_plan_item *item = chunk->item;
    return &chunk->parts[(p->part - item->parts) % parts_of_matrix(item)];
}

/* Measures what codes and scales of a piece of a chunk mean against the values they stand for. */
static dg_status measure(const dgi_stream *s, const piece *p, const dg_matrix *rows,
                         const dg_matrix *codes, const dg_scale *scale, dgi_buffers *b,
                         dgi_chunk *chunk)
{
    int64_t step = measured_rows(rows->cols), end = p->at + p->rows;
    size_t element = dg_dtype_bytes(rows->dtype);
    bool share = scale->block_rows == 0 && parts_of_matrix(chunk->item) > 1;
    dgi_part_sums *sums = sums_of(chunk, p);
    for (int64_t row = p->at; row < end; row += step) {
        int64_t count = end - row < step ? end - row : step;
        const char *data = (const char *)rows->data + (size_t)(row * rows->cols) * element;
        dg_dequantize call = DG_DEQUANTIZE_INIT;
        call.input =
            dg_matrix_of((uint8_t *)codes->data + row * rows->cols, DG_E4M3, count, rows->cols);
        call.scale = *scale;
        int64_t scale_row = dgi_scale_index(row, scale->block_rows, 0);
        call.scale.data = (float *)scale->data + scale_row * scale->row_stride;
        call.scale.row_phase = scale->block_rows == 0 ? 0 : (int32_t)(row % scale->block_rows);
        call.scale.rows = dg_scale_count(count, scale->block_rows, call.scale.row_phase);
        call.output = dg_matrix_of(b->part, DG_F32, count, rows->cols);
        DGI_TRY(dg_dequantize_run(s->single, &call, NULL));
        const float *wide = rows->dtype == DG_F32 && (uintptr_t)data % sizeof(float) == 0
                                ? (const float *)(const void *)data
                                : b->wide;
        if (wide == b->wide)
            DGI_TRY(widen(data, rows->dtype, count * rows->cols, b->wide));
        add_squares(wide, b->part, count * rows->cols, sums);
        if (share)
            sums->amax = fmaxf(sums->amax, largest_magnitude(wide, count * rows->cols));
    }
    return DG_OK;
}

/* ---- writing ----------------------------------------------------------------------------- */

static dg_status write_codes(const dgi_chunk *chunk, const dgi_way *way, dgi_writer *writer,
                             const void *data)
{
    const dgi_plan_item *item = chunk->item;
    size_t row_bytes = (size_t)item->cols * dg_dtype_bytes(item->codes->dtype);
    return dgi_writer_write(writer, way->place, (size_t)first_of(chunk) * row_bytes, data,
                            (size_t)chunk->rows * row_bytes);
}

/* Writes the chunk's scales, unless its matrix has one for all. */
static dg_status write_scales(const dgi_stream *s, const dgi_chunk *chunk, const dgi_way *way,
                              dgi_writer *writer, const dg_scale *scale)
{
    const dgi_plan_item *item = chunk->item;
    const dgi_layout *layout = s->plan->layout;
    if (layout->block_rows == 0)
        return DG_OK;
    float *scales = scale->data;
    int64_t count = scale->rows * scale->cols;
    int64_t first = chunk->matrix * dg_scale_count(item->rows, layout->block_rows, 0) +
                    chunk->first_row / layout->block_rows;
    if (layout->scale_dtype == DG_UE8M0)
        for (int64_t i = 0; i < count; i++) { /* in place: bytes are shorter */
            float value = scales[i];
            dgi_store_f32(scales, DG_UE8M0, i, value, DG_SATURATE);
        }
    size_t element = dg_dtype_bytes(layout->scale_dtype);
    return dgi_writer_write(writer, way->place + 1, (size_t)(first * scale->cols) * element, scales,
                            (size_t)count * element);
}

static dg_status encode(const dgi_stream *s, const dg_matrix *rows, const dg_scale *scale,
                        dg_scale_source source, dgi_buffers *b, dg_quantize_counts *counts)
{
    dg_quantize call = DG_QUANTIZE_INIT;
    call.input = *rows;
    call.output = dg_matrix_of(b->codes, DG_E4M3, rows->rows, rows->cols);
    call.scale = *scale;
    call.source = source;
    call.rounding = s->plan->layout->rounding;
    call.counts = counts;
    return dg_quantize_run(s->single, &call, NULL);
}

/* Scales for the blocks that cannot keep theirs (which are 0 in `scale`), from their values. */
static dg_status fill_scales(const dgi_stream *s, const dg_matrix *rows, const dg_scale *scale,
                             dgi_buffers *b)
{
    dg_scale dynamic = *scale;
    dynamic.data = b->dynamic;
    dg_quantize_counts counts;
    DGI_TRY(encode(s, rows, &dynamic, DG_SCALE_DYNAMIC, b, &counts));
    float *scales = scale->data;
    for (int64_t i = 0; i < scale->rows * scale->cols; i++)
        if (scales[i] == 0.0f)
            scales[i] = b->dynamic[i];
    return DG_OK;
}

/* FP8 from 16 bits, or from FP8 whose codes must change. */
static dg_status write_quantized(const dgi_stream *s, dgi_buffers *b, const dgi_way *way,
                                 dgi_writer *writer, dgi_chunk *chunk)
{
    const dgi_plan_item *item = chunk->item;
    const dgi_layout *layout = s->plan->layout;
    dg_matrix rows;
    DGI_TRY(input_rows(s, chunk, b, &rows));
    dg_scale scale = dg_scale_of(b->scales, DG_F32, chunk->rows, item->cols, layout->block_rows,
                                 layout->block_cols);
    dg_scale_source source = DG_SCALE_GIVEN;
    if (layout->block_rows == 0) {
        b->scales[0] = way->whole[chunk->matrix];
    } else if (way->action == DG_TENSOR_REQUANTIZED) {
        bool all;
        DGI_TRY(keep_scales(chunk, layout, b, &all));
        if (!all)
            DGI_TRY(fill_scales(s, &rows, &scale, b));
    } else if (item->given != NULL) {
        int64_t first = (chunk->matrix * dg_scale_count(item->rows, layout->block_rows, 0) +
                         chunk->first_row / layout->block_rows) *
                        scale.cols;
        for (int64_t i = 0; i < scale.rows * scale.cols; i++)
            b->scales[i] = dgi_load_f32(item->given->data, DG_F32, first + i);
    } else {
        source = DG_SCALE_DYNAMIC;
    }
    DGI_TRY(encode(s, &rows, &scale, source, b, &chunk->counts));
    dg_matrix codes = dg_matrix_of(b->codes, DG_E4M3, chunk->rows, item->cols);
    piece p;
    FOR_PIECES(item, first_of(chunk), first_of(chunk) + chunk->rows, p)
    DGI_TRY(measure(s, &p, &rows, &codes, &scale, b, chunk));
    DGI_TRY(write_codes(chunk, way, writer, b->codes));
    return write_scales(s, chunk, way, writer, &scale);
}

/* FP8 codes as they are. */
static dg_status write_repacked(const dgi_stream *s, dgi_buffers *b, const dgi_way *way,
                                dgi_writer *writer, dgi_chunk *chunk)
{
    const dgi_plan_item *item = chunk->item;
    const dgi_layout *layout = s->plan->layout;
    int64_t begin = first_of(chunk);
    piece p;
    FOR_PIECES(item, begin, begin + chunk->rows, p)
    DGI_TRY(dgi_writer_write(writer, way->place, (size_t)((begin + p.at) * item->cols),
                             row_data(&p), (size_t)(p.rows * item->cols)));
    if (layout->block_rows == 0)
        return DG_OK;
    bool all;
    DGI_TRY(keep_scales(chunk, layout, b, &all));
    dg_scale scale = dg_scale_of(b->scales, DG_F32, chunk->rows, item->cols, layout->block_rows,
                                 layout->block_cols);
    return write_scales(s, chunk, way, writer, &scale);
}

/* 16 bits from FP8. */
static dg_status write_widened(const dgi_stream *s, dgi_buffers *b, const dgi_way *way,
                               dgi_writer *writer, dgi_chunk *chunk)
{
    int64_t cols = chunk->item->cols, count = chunk->rows * cols, step = measured_rows(cols) * cols;
    DGI_TRY(gather(s, chunk, b));
    for (int64_t i = 0; i < count; i++)
        ((uint16_t *)(void *)b->codes)[i] = dgi_bf16_from_f32(b->values[i]);
    piece p;
    FOR_PIECES(chunk->item, first_of(chunk), first_of(chunk) + chunk->rows, p)
    {
        int64_t end = (p.at + p.rows) * cols;
        for (int64_t i = p.at * cols; i < end; i += step) {
            int64_t some = end - i < step ? end - i : step;
            DGI_TRY(widen(b->codes + 2 * i, DG_BF16, some, b->part));
            add_squares(b->values + i, b->part, some, sums_of(chunk, &p));
        }
    }
    return write_codes(chunk, way, writer, b->codes);
}

/* Bytes as they are, from the parts that lie behind one another in the output. */
static dg_status write_copy(const dgi_way *way, dgi_writer *writer, const dgi_chunk *chunk)
{
    const dgi_plan_item *item = chunk->item;
    size_t before = 0, from = chunk->first_byte, to = from + chunk->bytes;
    for (size_t p = 0; p < item->part_count; p++) {
        const dgi_part *part = &item->parts[p];
        size_t first = before > from ? before : from, last = before + part->bytes;
        last = last < to ? last : to;
        if (first < last) {
            const char *data =
                (const char *)part->tensor->data + part->first_byte + (first - before);
            DGI_TRY(dgi_writer_write(writer, way->place, first, data, last - first));
            dgi_drop_pages(data, last - first);
        }
        before += part->bytes;
    }
    return DG_OK;
}

dg_status dgi_chunk_write(const dgi_stream *stream, dgi_buffers *buffers, const dgi_way *way,
                          dgi_writer *writer, dgi_chunk *chunk)
{
    if (way->action == DG_TENSOR_KEPT)
        return write_copy(way, writer, chunk);
    dg_status status =
        (way->action == DG_TENSOR_REPACKED  ? write_repacked
         : way->action == DG_TENSOR_WIDENED ? write_widened
                                            : write_quantized)(stream, buffers, way, writer, chunk);
    drop_chunk(chunk);
    return status;
}
