/* SPDX-License-Identifier: MIT */
/* What `deepgemm calibrate` (calibrate.c) has found out and prints (calibrate_report.c). */
#ifndef CLI_CALIBRATE_H
#define CLI_CALIBRATE_H

#include "cli.h"

/* The methods that the report compares: dg_scale_method's, in its order. */
enum { CALIBRATE_METHODS = 4 };
extern const char *const calibrate_methods[CALIBRATE_METHODS]; /* "amax" and so on */

/* One scale for all of a layer's input, by each method. */
typedef struct calibrate_scale {
    float scale;
    dg_scale_quality seen, held_out; /* held_out has no elements where nothing was held out */
} calibrate_scale;

typedef struct calibrate_layer {
    dg_observed observed; /* its strings and arrays are the statistics' */
    calibrate_scale scales[CALIBRATE_METHODS];
} calibrate_layer;

typedef struct calibrate_result {
    const char *model; /* NULL: files were merged, nothing was run */
    const char *text;  /* NULL: the model's own */
    const char *output;
    const dg_statistics *statistics;
    int64_t tokens, held_out_tokens; /* that were run */
    double percentile;
    int64_t least_tokens; /* warn when a layer met fewer */
    calibrate_layer *layers;
    int layer_count;
    double seconds;
} calibrate_result;

/* Fills in the layers: chooses their scales by each method and judges them. */
void calibrate_judge(calibrate_result *result, const dg_statistics *held_out);

void calibrate_print(const calibrate_result *result, bool all_layers);
void calibrate_print_json(const calibrate_result *result);
/* Things to look at, on stderr. */
void calibrate_warn(const calibrate_result *result);

#endif
