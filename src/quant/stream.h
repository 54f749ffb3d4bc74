/* SPDX-License-Identifier: MIT */
/*
 * Tensors on their way from a checkpoint to the writer of another one, quantised or as they are: a
 * band of rows at a time, so that memory holds a band and not a tensor.
 */
#ifndef DGI_STREAM_H
#define DGI_STREAM_H

#include "io/writer.h"
#include "quant/plan.h"

typedef struct dgi_stream {
    dg_context *context;
    int32_t threads;
    const dgi_layout *layout;
    uint8_t *codes; /* of one band */
    float *values;  /* what the codes mean */
} dgi_stream;

/* `widest` is the longest row that will be quantised. Close it also after a failure. */
dg_status dgi_stream_open(dg_context *context, const dgi_layout *layout, int64_t widest,
                          dgi_stream *stream);
void dgi_stream_close(dgi_stream *stream);

/*
 * Quantises a weight into tensor `index` of the writer and its scales into the one after it. Fills
 * in the error and the counts of the report.
 */
dg_status dgi_stream_quantize(const dgi_stream *stream, const dgi_plan_item *item,
                              dgi_writer *writer, size_t index, dg_tensor_report *report);
/* Copies a tensor to tensor `index` of the writer. */
dg_status dgi_stream_copy(const dg_tensor *source, dgi_writer *writer, size_t index);

#endif
