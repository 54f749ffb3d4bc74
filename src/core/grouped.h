/* SPDX-License-Identifier: MIT */
/* What a dg_groups means, for the front and the backends. */
#ifndef DGI_GROUPED_H
#define DGI_GROUPED_H

#include "deepgemm.h"

/* Whether the groups are columns of A and B; otherwise they are rows of A and D. */
static inline bool dgi_groups_divide_k(const dg_groups *groups)
{
    return groups->grouping == DG_GROUPS_K_COLUMNS || groups->grouping == DG_GROUPS_K_BLOCKS;
}

/* Whether all groups lie in one A and one D. */
static inline bool dgi_groups_share_rows(const dg_groups *groups)
{
    return groups->grouping == DG_GROUPS_BY_END || groups->grouping == DG_GROUPS_BY_ROW;
}

/* Rows that the groups divide, or (where they have their own) rows of each. */
static inline int64_t dgi_groups_rows(const dg_gemm *gemm, const dg_groups *groups)
{
    return groups->gather != NULL ? groups->rows : gemm->a.rows;
}

/*
 * Walks BY_END's groups: the next one has rows *first to the returned one, its end, which is *first
 * where it is empty. `cursor` is the end of the group before, 0 before the first.
 */
static inline int64_t dgi_groups_next_end(int64_t cursor, int32_t end, int32_t alignment,
                                          int64_t rows, int64_t *first)
{
    *first = (cursor + alignment - 1) / alignment * alignment;
    const int64_t limit = end < rows ? end : rows;
    return limit > *first ? limit : *first;
}

/* A size read from memory, brought into 0..most. */
static inline int64_t dgi_clamp_size(int64_t size, int64_t most)
{
    return size < 0 ? 0 : size > most ? most : size;
}

/*
 * How evenly a call's work is dealt out, in its explanation: the work of the busiest and of the
 * idlest, and who they are. The benchmark reads it.
 */
#define DGI_BALANCE_LINE "balance %.3f %.3f: the busiest and the idlest %s, where the mean is 1\n"

/* A product's sizes. */
typedef struct dgi_product_size {
    int32_t m, n, k;
} dgi_product_size;

/*
 * What grouped_setup makes of a call's sizes: one product for each group. Groups along K that no
 * GPU can read (core/copy_rules.h) are listed like all others.
 */
void dgi_groups_products(const dg_gemm *gemm, const dg_groups *groups, const int32_t *sizes,
                         dgi_product_size *products);

/* The product that the groups of a call have in common, for the choice of a kernel. */
typedef struct dgi_typical {
    dg_gemm gemm; /* its types and scales, all that the groups may have; N, and a typical K */
    int64_t products, rows;
    double spread; /* rows differ by so much of them, less or more: 0 to 1 */
} dgi_typical;

/* Sizes of groups that lie evenly around the typical one: the rows of number i of them. */
enum { DGI_TYPICAL_SIZES = 5 };
static inline int64_t dgi_typical_rows(const dgi_typical *typical, int i)
{
    const double spread = typical->spread * (2.0 * i / (DGI_TYPICAL_SIZES - 1) - 1.0);
    return (int64_t)((double)typical->rows * (1.0 + spread) + 0.5);
}

dgi_typical dgi_groups_typical(const dg_gemm *gemm, const dg_groups *groups);

#endif
