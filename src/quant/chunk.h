/* SPDX-License-Identifier: MIT */
/* The work on a chunk: rows of one matrix of an item. Called by the threads of stream.c. */
#ifndef DGI_CHUNK_H
#define DGI_CHUNK_H

#include "quant/stream.h"

/* What a thread works in. */
typedef struct dgi_buffers {
    uint8_t *codes; /* of a chunk; 16-bit values when it is widened */
    float *values;  /* of a chunk, where they are gathered */
    float *part;    /* of a few rows, for measuring errors */
    float *wide;    /* the same */
    float *scales;  /* of a chunk in the output */
    float *dynamic; /* the same, computed */
    float *largest; /* of one row of scales: the largest and the smallest of the input's */
    float *smallest;
    float *source; /* of a chunk in the input */
} dgi_buffers;

/* Of the rows of one part: gate or up, where both are in one matrix. */
typedef struct dgi_part_sums {
    double error_squares, weight_squares;
    float amax; /* only where parts share one scale */
} dgi_part_sums;

typedef struct dgi_chunk {
    const dgi_plan_item *item;
    size_t index; /* of the item in its batch */
    int64_t matrix, first_row, rows;
    size_t first_byte, bytes; /* instead, where the item is copied */
    /* found by dgi_chunk_look */
    bool requantize;
    float amax;
    /* found by dgi_chunk_write */
    dgi_part_sums parts[DGI_FUSED_PARTS]; /* of its matrix */
    dg_quantize_counts counts;
} dgi_chunk;

/* How an item is written. */
typedef struct dgi_way {
    dg_tensor_action action;
    const float *whole; /* scales of its matrices, where each has one */
    size_t place;       /* of its codes in the writer */
} dgi_way;

/* The largest magnitude of the chunk's values, and whether its codes must change. */
dg_status dgi_chunk_look(const dgi_stream *stream, dgi_buffers *buffers, bool need_amax,
                         dgi_chunk *chunk);
dg_status dgi_chunk_write(const dgi_stream *stream, dgi_buffers *buffers, const dgi_way *way,
                          dgi_writer *writer, dgi_chunk *chunk);
/* The one scale of the item's matrix, if all of it has the same and the format can hold it; else
 * 0. DG_BAD_FILE for scales that are not positive and finite. */
dg_status dgi_whole_scale(const dgi_plan_item *item, const dgi_layout *layout, int64_t matrix,
                          float *scale);

#endif
