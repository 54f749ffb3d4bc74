/* SPDX-License-Identifier: MIT */
/* What an FP8 weight in a checkpoint means, value by value, and what scales it may have. */
#ifndef TEST_WEIGHTS_H
#define TEST_WEIGHTS_H

#include "deepgemm.h"

typedef struct values {
    int64_t rows, cols;
    double *value; /* code times scale, in double precision */
    double *scale; /* the scale of each value */
    uint8_t *code; /* NULL where the weight is in 16 bits */
} values;

/* The weight of that name; expert -1: a matrix, otherwise that one of a fused weight. */
values values_read(const dg_checkpoint *checkpoint, const char *name, int64_t expert);
void values_free(values *v);

/* |v - w| / |w| over the pairs that are finite */
double values_distance(const values *w, const values *v);
/* Each value of `v` is the nearest that its scale allows to that of `w`. */
void values_expect_nearest(const values *w, const values *v);
/* The same values, and codes, bit for bit. */
void values_expect_equal(const values *w, const values *v);

#endif
