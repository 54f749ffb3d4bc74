/* SPDX-License-Identifier: MIT */
/*
 * Random test data. Every test program draws from one seed, which it prints, so that a failure can
 * be repeated: DEEPGEMM_SEED=<seed> <program>.
 */
#ifndef TEST_RANDOM_H
#define TEST_RANDOM_H

#include "deepgemm.h"

typedef struct rng {
    uint64_t state;
} rng;

/* A generator of its own for each `stream`, so that a test's data do not depend on which others
 * run. */
rng rng_new(uint64_t stream);
uint64_t rng_next(rng *r);
/* Uniform in lowest..highest, both included. */
int64_t rng_range(rng *r, int64_t lowest, int64_t highest);
bool rng_chance(rng *r, double probability);
/* Uniform in [0, 1). */
double rng_unit(rng *r);
/* Mean 0, variance 1. */
double rng_normal(rng *r);

/* Fills a contiguous array with normally distributed values of that standard deviation. */
void rng_fill_normal(rng *r, void *data, dg_dtype dtype, int64_t count, double deviation);
/* Fills an array of FP8 codes with any codes but NaN and infinities, each as likely. */
void rng_fill_codes(rng *r, void *data, dg_dtype dtype, int64_t count);
/* The same for large arrays: codes of less than 2 in magnitude, quickly. */
void rng_fill_small_codes(rng *r, void *data, int64_t count);
/* Fills an array of scales with values around 1: from 1/8 to 8, powers of two for UE8M0. */
void rng_fill_scales(rng *r, void *data, dg_dtype dtype, int64_t count);

#endif
