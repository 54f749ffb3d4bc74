/* SPDX-License-Identifier: MIT */
/*
 * Tensors on their way from a checkpoint to the writer of another one. A batch of items is cut into
 * chunks of rows; each thread takes a chunk at a time, reads, computes and writes it, so that
 * memory holds a chunk for each thread and no tensor.
 */
#ifndef DGI_STREAM_H
#define DGI_STREAM_H

#include "io/writer.h"
#include "quant/plan.h"

/* What became of an item. The same for any number of threads. */
typedef struct dgi_result {
    dg_tensor_action action;
    double relative_error; /* of the worst part */
    dg_quantize_counts counts;
    double part_ratio; /* largest values of parts that share one scale: how far apart; or 0 */
} dgi_result;

typedef struct dgi_stream {
    dg_context *single; /* of one thread: the threads are here */
    int32_t threads;
    const dgi_plan *plan;
    struct dgi_buffers *buffers; /* one set for each thread */
} dgi_stream;

/* Close it also after a failure. */
dg_status dgi_stream_open(dg_context *context, const dgi_plan *plan, dgi_stream *stream);
void dgi_stream_close(dgi_stream *stream);

/*
 * Writes `count` items, the tensors of the first of which begin at place `first` of the writer
 * (codes, scale, input scale: those that there are). Items of which skip[i] is true are there
 * already. Fills in results of the others.
 */
dg_status dgi_stream_run(const dgi_stream *stream, const dgi_plan_item *items, size_t count,
                         const bool *skip, dgi_writer *writer, size_t first, dgi_result *results);

#endif
