/* SPDX-License-Identifier: MIT */
/* `deepgemm accuracy` (accuracy.c): what it measures (accuracy_run.c), prints and keeps
 * (accuracy_report.c). */
#ifndef CLI_ACCURACY_H
#define CLI_ACCURACY_H

#include "layer.h"
#include "llama.h"
#include "predict.h"

/* Granularities of the weights' and the activations' scales: a row of the table. */
typedef struct accuracy_scales {
    const char *name;                 /* "1x128 . 128x128" */
    int32_t weight_rows, weight_cols; /* 0: all */
    int32_t input_cols;               /* dynamic, each token its own; 0: one a token */
    bool fixed;                       /* one for all activations, from the calibration, instead */
    bool pow2;                        /* scales are powers of two, rounded up */
} accuracy_scales;

/* How the weights' scales are chosen, and those of the activations where they are fixed. */
typedef struct accuracy_method {
    const char *name;
    dg_scale_method method;
    bool weighted;        /* columns by the energy of the activations that they meet     */
    bool smoothed;        /* scale is moved from activations to weights first                */
    int64_t least_values; /* of a scale: with fewer the method is absmax */
} accuracy_method;

enum { accuracy_scales_count = 5, accuracy_method_count = 6 };
extern const accuracy_scales accuracy_all_scales[accuracy_scales_count];
extern const accuracy_method accuracy_methods[accuracy_method_count];

/* Whether the table has that cell. */
bool accuracy_has(int row, int method);

/* A cell of the table. */
typedef struct accuracy_cell {
    bool done;
    predict result;
} accuracy_cell;

typedef struct accuracy {
    const char *model_folder, *text_path, *calibration_path;
    llama model;
    dg_context *context;
    const bench_peer *peer; /* multiplies in 16 bits */
    llama_text text, calibration;
    double percentile;
    dg_matrix *samples;        /* layer by layer, the calibration's first activations */
    dg_statistics *statistics; /* of the calibration text                             */
    dg_matrix *wide;           /* F32: block by block, each with its kinds, then the head */
    bool wanted[accuracy_scales_count][accuracy_method_count];
    accuracy_cell cells[accuracy_scales_count][accuracy_method_count];
} accuracy;

/* Fills in `wide` and `statistics`: the 16-bit model's run over the calibration text. */
void accuracy_calibrate(accuracy *a);
/*
 * Measures the cells of one row that are wanted and not done: the model over the text in 16 bits,
 * and beside it with FP8 in all linear layers but the head.
 */
void accuracy_run_row(accuracy *a, int row);

/* The results as JSON. Reading dies unless the file was made with the same settings. */
cJSON *accuracy_json(const accuracy *a);
void accuracy_load(accuracy *a, const char *path);

void accuracy_print(const accuracy *a);
void accuracy_print_markdown(const accuracy *a);

#endif
