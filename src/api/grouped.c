/* SPDX-License-Identifier: MIT */
/* The public functions of grouped products and of tables of problems. */
#include "api/check.h"
#include "api/text.h"

#include "core/grouped.h"

#include <stdlib.h>

/* ---- groups -------------------------------------------------------------------------- */

/* Checks a grouped product and completes what describes it. */
static dg_status take(const dg_context *context, const dg_gemm *gemm, const dg_groups *groups,
                      dg_gemm *complete_gemm, dg_groups *complete_groups)
{
    *complete_groups = (dg_groups)DG_GROUPS_INIT;
    DGI_TRY(dgi_check_context(context));
    DGI_TRY(dgi_take_gemm(complete_gemm, gemm, "gemm"));
    DGI_TRY(dgi_take(complete_groups, sizeof *complete_groups, sizeof *complete_groups, groups,
                     "groups"));
    return dgi_check_groups(complete_gemm, complete_groups, context);
}

/* Whether no size that the device may hold makes the call write anything. */
static bool is_idle(const dg_gemm *gemm, const dg_groups *groups)
{
    if (gemm->d.rows == 0 || gemm->d.cols == 0)
        return true;
    if (!dgi_groups_share_rows(groups))
        return groups->count == 0;
    return dgi_groups_rows(gemm, groups) == 0 ||
           (groups->count == 0 && groups->padding == DG_PADDING_UNTOUCHED);
}

dg_status dg_grouped_run(dg_context *context, const dg_gemm *gemm, const dg_groups *groups,
                         void *stream)
{
    dg_gemm complete_gemm;
    dg_groups complete_groups;
    DGI_TRY(take(context, gemm, groups, &complete_gemm, &complete_groups));
    if (is_idle(&complete_gemm, &complete_groups))
        return DG_OK;
    return context->backend->grouped(context, &complete_gemm, &complete_groups, stream);
}

dg_status dg_grouped_prepare(dg_context *context, const dg_gemm *gemm, const dg_groups *groups)
{
    dg_gemm complete_gemm;
    dg_groups complete_groups;
    DGI_TRY(take(context, gemm, groups, &complete_gemm, &complete_groups));
    if (is_idle(&complete_gemm, &complete_groups))
        return DG_OK;
    return context->backend->grouped_prepare(context, &complete_gemm, &complete_groups);
}

dg_status dg_grouped_explain(dg_context *context, const dg_gemm *gemm, const dg_groups *groups,
                             const int32_t *sizes, char *text, size_t *text_bytes)
{
    dg_gemm complete_gemm;
    dg_groups complete_groups;
    dgi_text lines;
    DGI_TRY(take(context, gemm, groups, &complete_gemm, &complete_groups));
    if (text_bytes == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "text_bytes is NULL");
    DGI_TRY(dgi_text_open(&lines));
    dg_status status = context->backend->grouped_explain(context, &complete_gemm, &complete_groups,
                                                         sizes, lines.stream);
    return dgi_text_close(&lines, status, text, text_bytes);
}

/* ---- tables -------------------------------------------------------------------------- */

enum { MOST_PROBLEMS = 65536 };

static dg_status check_table(const dg_table *table)
{
    if (table == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "table is NULL: make one with dg_table_create()");
    return DG_OK;
}

static void release(dg_table *table)
{
    free(table->set);
    free(table);
}

dg_status dg_table_create(dg_context *context, const dg_gemm *largest, int32_t problems,
                          dg_table **table)
{
    dg_gemm complete;
    DGI_TRY(dgi_check_context(context));
    DGI_TRY(dgi_take_gemm(&complete, largest, "largest"));
    DGI_TRY(dgi_check_product(&complete, complete.a.rows, false, context));
    if (complete.weights != NULL)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "largest.weights is given: describe B by b and scale_b without data");
    if (problems < 0 || problems > MOST_PROBLEMS)
        return dgi_fail(DG_INVALID_ARGUMENT, "problems is %d: it must be 0 to %d", problems,
                        MOST_PROBLEMS);
    if (table == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "table is NULL");
    dg_table *made = calloc(1, sizeof *made);
    if (made == NULL)
        return dgi_fail(DG_OUT_OF_MEMORY, "no memory for a table");
    made->context = context;
    made->largest = complete;
    made->problems = problems;
    made->set = calloc((size_t)problems + 1, sizeof *made->set);
    dg_status status = made->set == NULL
                           ? dgi_fail(DG_OUT_OF_MEMORY, "no memory for %d problems", problems)
                           : context->backend->table_open(made);
    if (status != DG_OK) {
        release(made);
        return status;
    }
    *table = made;
    return DG_OK;
}

void dg_table_destroy(dg_table *table)
{
    if (table == NULL)
        return;
    table->context->backend->table_close(table);
    release(table);
}

dg_status dg_table_set(dg_table *table, int32_t index, const dg_gemm *gemm)
{
    DGI_TRY(check_table(table));
    if (index < 0 || index >= table->problems)
        return dgi_fail(DG_INVALID_ARGUMENT, "index is %d: the table has problems 0 to %d", index,
                        table->problems - 1);
    if (gemm == NULL) {
        table->set[index] = (dg_gemm){0};
        return DG_OK;
    }
    dg_gemm complete;
    DGI_TRY(dgi_take_gemm(&complete, gemm, "gemm"));
    DGI_TRY(dgi_check_table_problem(&complete, &table->largest, table->context));
    table->set[index] = complete;
    return DG_OK;
}

dg_status dg_table_update(dg_table *table, void *stream)
{
    DGI_TRY(check_table(table));
    return table->context->backend->table_update(table, stream);
}

dg_status dg_table_update_device(dg_table *table, const dg_table_values *values, void *stream)
{
    dg_table_values complete = DG_TABLE_VALUES_INIT;
    DGI_TRY(check_table(table));
    DGI_TRY(dgi_take(&complete, sizeof complete, sizeof complete, values, "values"));
    DGI_TRY(dgi_check_table_values(&complete));
    return table->context->backend->table_update_device(table, &complete, stream);
}

dg_status dg_table_run(dg_table *table, void *stream)
{
    DGI_TRY(check_table(table));
    return table->context->backend->table_run(table, stream);
}

dg_status dg_table_explain(dg_table *table, char *text, size_t *text_bytes)
{
    dgi_text lines;
    DGI_TRY(check_table(table));
    if (text_bytes == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "text_bytes is NULL");
    DGI_TRY(dgi_text_open(&lines));
    dg_status status = table->context->backend->table_explain(table, lines.stream);
    return dgi_text_close(&lines, status, text, text_bytes);
}
