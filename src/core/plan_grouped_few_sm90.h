/* SPDX-License-Identifier: MIT */
/*
 * Choosing a Hopper kernel for groups with few rows, whose time is that of reading their weights:
 * pure C, no CUDA.
 */
#ifndef DGI_PLAN_GROUPED_FEW_SM90_H
#define DGI_PLAN_GROUPED_FEW_SM90_H

#include "core/grouped.h"
#include "core/plan_decode_sm90.h"
#include "core/plan_grouped_sm90.h"

/* kernels_sm90_grouped_few.def; tokens: rows of a tile. */
extern const dgi_decode_kernel dgi_grouped_few_kernels[];
extern const int32_t dgi_grouped_few_kernel_count;

/*
 * The kernel and the split of K that are predicted to take the fewest cycles on a GPU of `units`
 * multiprocessors; false when no kernel can run groups of that kind. Without `may_split` K is not
 * split, so that a row of D has the same bits whatever rows there are. plan->tiles are those of one
 * group's B, plan->clusters as many as run at the same time: the sizes are known to the device
 * only.
 */
bool dgi_grouped_few_choose(const dgi_typical *typical, int32_t units, bool may_split,
                            dgi_decode_plan *plan);

/* The plan with one kernel. DG_OK, or why that kernel cannot run such groups. */
dg_status dgi_grouped_few_plan_with(const dgi_typical *typical, int32_t units, bool may_split,
                                    int32_t kernel, dgi_decode_plan *plan);

/* Whether a plan is faster than a kernel for many rows, as far as is predicted. */
bool dgi_grouped_few_is_faster(const dgi_decode_plan *few, const dgi_sm90_kernel *many,
                               const dgi_typical *typical, int32_t units);

/* A line for each kernel: what it would cost, or why it is refused; `chosen` is the one taken. They
 * take only groups that are `joined`, which need one launch. */
void dgi_grouped_few_explain(const dgi_typical *typical, int32_t units, bool may_split, bool joined,
                             int32_t chosen, FILE *text);

/* What the schedule makes of groups of these sizes, as lines of text. */
void dgi_grouped_few_explain_balance(const dgi_decode_plan *plan, const dgi_product_size *products,
                                     int32_t count, FILE *text);

/* The row of that name, or -1. */
int32_t dgi_grouped_few_find(const char *name);

#endif
