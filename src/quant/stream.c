/* SPDX-License-Identifier: MIT */
/* Tensors on their way from the input to the output: see stream.h. */
#include "quant/stream.h"

#include "core/status.h"

#include <math.h>
#include <stdlib.h>

/*
 * Elements of a weight that are worked on at a time, as whole rows: enough to occupy all threads,
 * and little beside a model.
 */
#define BAND_ELEMENTS ((int64_t)16 << 20)
/* Bytes of a tensor that are copied at a time. */
#define COPY_BYTES    ((size_t)16 << 20)

/* ---- a band -------------------------------------------------------------------------- */

/* Rows of a band: a multiple of the scales' blocks. */
static int64_t band_rows(const dgi_layout *layout, int64_t cols)
{
    int64_t blocks = BAND_ELEMENTS / cols / layout->block_rows;
    return (blocks > 0 ? blocks : 1) * layout->block_rows;
}

/* |w - w'|^2 and |w|^2 of what has been quantised of a weight. */
typedef struct squares {
    double error, weight;
} squares;

static dg_matrix rows_of(const dg_matrix *matrix, int64_t first, int64_t last)
{
    dg_matrix rows = *matrix;
    rows.data = (char *)matrix->data + (size_t)(first * matrix->ld) * dg_dtype_bytes(matrix->dtype);
    rows.rows = last - first;
    return rows;
}

/* Sums over fixed parts, added in order: the same for any number of threads. */
static void add_squares(const dgi_stream *s, const dg_matrix *weight, const dg_matrix *values,
                        squares *sums)
{
    enum { PARTS = 256 };
    squares parts[PARTS];
#pragma omp parallel for num_threads(s->threads) schedule(dynamic)
    for (int64_t p = 0; p < PARTS; p++) {
        int64_t first = p * weight->rows / PARTS, last = (p + 1) * weight->rows / PARTS;
        dg_matrix reference = rows_of(weight, first, last), result = rows_of(values, first, last);
        dg_comparison part = DG_COMPARISON_INIT;
        dg_compare(&reference, &result, &part); /* of two good matrices: cannot fail */
        parts[p] = (squares){part.error_squares, part.reference_squares};
    }
    for (int p = 0; p < PARTS; p++) {
        sums->error += parts[p].error;
        sums->weight += parts[p].weight;
    }
}

static dg_status quantize_band(const dgi_stream *s, const dg_matrix *weight, const dg_scale *scale,
                               dg_quantize_counts *counts, squares *sums)
{
    dg_quantize quantize = DG_QUANTIZE_INIT;
    quantize.input = *weight;
    quantize.output = dg_matrix_of(s->codes, DG_E4M3, weight->rows, weight->cols);
    quantize.scale = *scale;
    dg_quantize_counts band;
    quantize.counts = &band;
    DGI_TRY(dg_quantize_run(s->context, &quantize, NULL));
    counts->saturated += band.saturated;
    counts->underflow += band.underflow;
    counts->non_finite += band.non_finite;

    dg_dequantize dequantize = DG_DEQUANTIZE_INIT;
    dequantize.input = quantize.output;
    dequantize.scale = *scale;
    dequantize.output = dg_matrix_of(s->values, DG_F32, weight->rows, weight->cols);
    DGI_TRY(dg_dequantize_run(s->context, &dequantize, NULL));
    add_squares(s, weight, &dequantize.output, sums);
    return DG_OK;
}

/* ---- tensors ------------------------------------------------------------------------- */

dg_status dgi_stream_open(dg_context *context, const dgi_layout *layout, int64_t widest,
                          dgi_stream *stream)
{
    dg_device_info device;
    DGI_TRY(dg_get_device_info(context, &device));
    size_t band = (size_t)(band_rows(layout, widest) * widest);
    *stream = (dgi_stream){context, device.units, layout, malloc(band),
                           malloc(band * sizeof *stream->values)};
    return stream->codes == NULL || stream->values == NULL ? dgi_no_memory("a band of a weight")
                                                           : DG_OK;
}

void dgi_stream_close(dgi_stream *stream)
{
    free(stream->codes);
    free(stream->values);
}

static dg_status quantize_tensor(const dgi_stream *s, const dgi_plan_item *item, dgi_writer *writer,
                                 size_t index, float *scales, dg_tensor_report *report)
{
    const dg_tensor *source = item->source;
    const dgi_layout *layout = s->layout;
    int64_t rows = source->shape[0], cols = source->shape[1], step = band_rows(layout, cols);
    size_t row_bytes = (size_t)cols * dg_dtype_bytes(source->dtype);
    squares sums = {0.0, 0.0};
    for (int64_t row = 0; row < rows; row += step) {
        int64_t count = rows - row < step ? rows - row : step;
        const char *data = (const char *)source->data + (size_t)row * row_bytes;
        dg_matrix weight = dg_matrix_of((void *)data, source->dtype, count, cols);
        float *band_scales = scales + row / layout->block_rows * item->scale->shape[1];
        dg_scale scale =
            dg_scale_of(band_scales, DG_F32, count, cols, layout->block_rows, layout->block_cols);
        DGI_TRY(quantize_band(s, &weight, &scale, &report->counts, &sums));
        DGI_TRY(dgi_writer_write(writer, index, (size_t)(row * cols), s->codes,
                                 (size_t)(count * cols)));
        dgi_drop_pages(data, (size_t)count * row_bytes);
    }
    report->relative_error = sums.weight > 0.0 ? sqrt(sums.error / sums.weight) : 0.0;
    return dgi_writer_write(writer, index + 1, 0, scales, item->scale->bytes);
}

dg_status dgi_stream_quantize(const dgi_stream *stream, const dgi_plan_item *item,
                              dgi_writer *writer, size_t index, dg_tensor_report *report)
{
    float *scales = malloc(item->scale->bytes);
    if (scales == NULL)
        return dgi_no_memory(item->scale->name);
    dg_status status = quantize_tensor(stream, item, writer, index, scales, report);
    free(scales);
    return status;
}

dg_status dgi_stream_copy(const dg_tensor *source, dgi_writer *writer, size_t index)
{
    for (size_t offset = 0; offset < source->bytes; offset += COPY_BYTES) {
        size_t rest = source->bytes - offset;
        size_t bytes = rest < COPY_BYTES ? rest : COPY_BYTES;
        const char *data = (const char *)source->data + offset;
        DGI_TRY(dgi_writer_write(writer, index, offset, data, bytes));
        dgi_drop_pages(data, bytes);
    }
    return DG_OK;
}
