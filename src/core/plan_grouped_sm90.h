/* SPDX-License-Identifier: MIT */
/* Choosing a Hopper kernel for grouped products: pure C, no CUDA. */
#ifndef DGI_PLAN_GROUPED_SM90_H
#define DGI_PLAN_GROUPED_SM90_H

#include "core/grouped.h"
#include "core/plan_sm90.h"
#include "core/schedule.h"

#include <stdio.h>

extern const dgi_sm90_kernel dgi_sm90_grouped_kernels[];
extern const int32_t dgi_sm90_grouped_kernel_count;

/*
 * The kernel for products of like kind on a GPU of `units` multiprocessors; when `invariant`, of
 * those that add up in the order of dgi_sm90_is_invariant(), where there are any. Fails with
 * DG_UNSUPPORTED_... when none can run.
 */
dg_status dgi_sm90_choose_grouped(const dgi_typical *typical, int32_t units, bool invariant,
                                  int32_t *index);

/*
 * Predicted for products of like kind, for a comparison with kernels of another family: with what
 * each round of tiles takes besides, which is left out of the choice among these.
 */
double dgi_sm90_grouped_cycles(const dgi_sm90_kernel *kernel, const dgi_typical *typical,
                               int32_t units);

/* The row of that name, or -1. */
int32_t dgi_sm90_grouped_find(const char *name);

/* A line for each kernel: what it would cost, or why it is refused; `chosen` is the one taken. */
void dgi_sm90_explain_grouped(const dgi_typical *typical, int32_t units, int32_t chosen,
                              FILE *text);

/* What a tile of a cluster takes that has so many rows, no more than the kernel's tile. */
double dgi_sm90_grouped_tile_cycles(const dgi_sm90_kernel *kernel, int64_t rows, int64_t k);

/* The same, for the schedule. */
dgi_rates dgi_sm90_rates(const dgi_sm90_kernel *kernel);

/* The work of clusters of CTAs, in cycles. */
typedef struct dgi_balance {
    int64_t tiles, cut; /* how many there are, and of these along K */
    double busiest, idlest, mean;
} dgi_balance;

/* What the schedule (core/grouped_schedule.h) makes of products of these sizes. */
dg_status dgi_sm90_balance(const dgi_sm90_kernel *kernel, const dgi_product_size *products,
                           int32_t count, int32_t units, bool may_cut, dgi_balance *balance);

/* The same as lines of text. */
dg_status dgi_sm90_explain_balance(const dgi_sm90_kernel *kernel, const dgi_product_size *products,
                                   int32_t count, int32_t units, bool may_cut, FILE *text);

#endif
