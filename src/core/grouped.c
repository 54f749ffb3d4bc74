/* SPDX-License-Identifier: MIT */
#include "core/grouped.h"

/* BY_ROW: a group's rows are its first run. */
static void first_runs(int64_t rows, int32_t count, const int32_t *sizes,
                       dgi_product_size *products)
{
    for (int64_t first = 0, end; first < rows; first = end) {
        const int32_t group = sizes[first];
        end = first + 1;
        while (end < rows && sizes[end] == group)
            end++;
        if (group >= 0 && group < count && products[group].m == 0)
            products[group].m = (int32_t)(end - first);
    }
}

void dgi_groups_products(const dg_gemm *gemm, const dg_groups *groups, const int32_t *sizes,
                         dgi_product_size *products)
{
    const int64_t rows = dgi_groups_rows(gemm, groups), k = gemm->a.cols;
    const bool along_k = dgi_groups_divide_k(groups);
    int64_t cursor = 0, first;
    for (int32_t i = 0; i < groups->count; i++) {
        dgi_product_size *p = &products[i];
        *p = (dgi_product_size){along_k ? (int32_t)rows : 0, (int32_t)gemm->d.cols, (int32_t)k};
        if (groups->grouping == DG_GROUPS_BY_END) {
            cursor = dgi_groups_next_end(cursor, sizes[i], groups->alignment, rows, &first);
            p->m = (int32_t)(cursor - first);
        } else if (groups->grouping == DG_GROUPS_MASKED) {
            p->m = (int32_t)dgi_clamp_size(sizes[i], rows);
        } else if (along_k) {
            p->k = (int32_t)dgi_clamp_size(sizes[i], k - cursor);
            cursor += p->k;
        }
    }
    if (groups->grouping == DG_GROUPS_BY_ROW)
        first_runs(rows, groups->count, sizes, products);
}

/* Tokens are never spread evenly: where a mean is known, sizes are this much around it. */
#define SPREAD 0.3

dgi_typical dgi_groups_typical(const dg_gemm *gemm, const dg_groups *groups)
{
    const int64_t all = dgi_groups_rows(gemm, groups);
    dgi_typical t = {.gemm = *gemm, .products = groups->count > 0 ? groups->count : 1};
    if (dgi_groups_divide_k(groups)) {
        t.gemm.a.cols = t.gemm.b.cols = (gemm->a.cols + t.products - 1) / t.products;
        t.rows = all;
    } else if (groups->expected_rows != 0 || dgi_groups_share_rows(groups)) {
        t.rows = groups->expected_rows != 0 ? groups->expected_rows
                                            : (all + t.products - 1) / t.products;
        t.spread = t.products > 1 ? SPREAD : 0.0;
    } else {
        t.rows = all;
    }
    t.rows = t.rows > 0 ? t.rows : 1;
    t.gemm.d.rows = all;
    return t;
}
