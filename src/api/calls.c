/* SPDX-License-Identifier: MIT */
/*
 * The public functions that compute: each completes and checks its arguments, returns at once when
 * there is nothing to do, and hands the rest to the context's backend.
 */
#include "api/check.h"
#include "api/text.h"

#include <stdlib.h>

/* ---- GEMM ---------------------------------------------------------------------------- */

/* Checks a GEMM and completes it into *complete. */
static dg_status take_gemm(const dg_context *context, const dg_gemm *gemm, dg_gemm *complete)
{
    DGI_TRY(dgi_check_context(context));
    DGI_TRY(dgi_take_gemm(complete, gemm, "gemm"));
    return dgi_check_gemm(complete, context);
}

static bool is_empty(const dg_matrix *matrix)
{
    return matrix->rows == 0 || matrix->cols == 0;
}

dg_status dg_gemm_run(dg_context *context, const dg_gemm *gemm, void *stream)
{
    dg_gemm complete;
    DGI_TRY(take_gemm(context, gemm, &complete));
    if (is_empty(&complete.d))
        return DG_OK;
    if (complete.workspace != NULL) {
        size_t need;
        DGI_TRY(context->backend->gemm_workspace(context, &complete, &need));
        DGI_TRY(dgi_check_workspace(&complete, need));
    }
    return context->backend->gemm(context, &complete, stream);
}

dg_status dg_gemm_workspace(dg_context *context, const dg_gemm *gemm, size_t *bytes)
{
    dg_gemm complete;
    DGI_TRY(take_gemm(context, gemm, &complete));
    if (bytes == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "bytes is NULL");
    *bytes = 0;
    return is_empty(&complete.d) ? DG_OK
                                 : context->backend->gemm_workspace(context, &complete, bytes);
}

dg_status dg_gemm_prepare(dg_context *context, const dg_gemm *gemm)
{
    dg_gemm complete;
    DGI_TRY(take_gemm(context, gemm, &complete));
    return is_empty(&complete.d) ? DG_OK : context->backend->gemm_prepare(context, &complete);
}

dg_status dg_gemm_explain(dg_context *context, const dg_gemm *gemm, char *text, size_t *text_bytes)
{
    dg_gemm complete;
    DGI_TRY(take_gemm(context, gemm, &complete));
    if (text_bytes == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "text_bytes is NULL");
    dgi_text lines;
    DGI_TRY(dgi_text_open(&lines));
    dg_status status = DG_OK;
    if (is_empty(&complete.d))
        fprintf(lines.stream, "none: d is %lld x %lld, there is nothing to compute\n",
                (long long)complete.d.rows, (long long)complete.d.cols);
    else
        status = context->backend->gemm_explain(context, &complete, lines.stream);
    return dgi_text_close(&lines, status, text, text_bytes);
}

/* ---- quantisation -------------------------------------------------------------------- */

dg_status dg_quantize_run(dg_context *context, const dg_quantize *quantize, void *stream)
{
    dg_quantize complete = DG_QUANTIZE_INIT;
    DGI_TRY(dgi_check_context(context));
    DGI_TRY(dgi_take(&complete, sizeof complete, sizeof complete, quantize, "quantize"));
    DGI_TRY(dgi_check_quantize(&complete));
    /* An empty tensor with one scale for all still gets its scale, 1.0. */
    if (is_empty(&complete.input) && (complete.scale.rows == 0 || complete.scale.cols == 0) &&
        complete.counts == NULL)
        return DG_OK;
    return context->backend->quantize(context, &complete, stream);
}

dg_status dg_dequantize_run(dg_context *context, const dg_dequantize *dequantize, void *stream)
{
    dg_dequantize complete = DG_DEQUANTIZE_INIT;
    DGI_TRY(dgi_check_context(context));
    DGI_TRY(dgi_take(&complete, sizeof complete, sizeof complete, dequantize, "dequantize"));
    DGI_TRY(dgi_check_dequantize(&complete));
    return is_empty(&complete.input) ? DG_OK
                                     : context->backend->dequantize(context, &complete, stream);
}

/* ---- packed weights ------------------------------------------------------------------ */

dg_status dg_weights_bytes(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                           size_t *bytes)
{
    DGI_TRY(dgi_check_context(context));
    DGI_TRY(dgi_check_weights(b, scale_b, false));
    if (bytes == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "bytes is NULL");
    return context->backend->weights_bytes(context, b, scale_b, bytes);
}

dg_status dg_weights_pack(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                          void *buffer, size_t buffer_bytes, void *stream, dg_weights **weights)
{
    DGI_TRY(dgi_check_context(context));
    DGI_TRY(dgi_check_weights(b, scale_b, true));
    if (weights == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "weights is NULL");
    size_t need;
    DGI_TRY(context->backend->weights_bytes(context, b, scale_b, &need));
    if (buffer != NULL && buffer_bytes < need)
        return dgi_fail(DG_INVALID_ARGUMENT, "buffer_bytes is %zu, but these weights need %zu",
                        buffer_bytes, need);
    if (buffer != NULL && (uintptr_t)buffer % 256 != 0)
        return dgi_fail(DG_MISALIGNED, "buffer is at %p: it must be 256-byte aligned", buffer);

    dg_weights *made = calloc(1, sizeof *made);
    if (made == NULL)
        return dgi_fail(DG_OUT_OF_MEMORY, "no memory for a dg_weights");
    *made = (dg_weights){context->backend, context->device, *b, *scale_b, buffer, need, NULL};
    made->b.data = NULL;
    made->scale.data = NULL;
    if (buffer == NULL && need > 0) {
        made->owner = context;
        dg_status status = context->backend->memory_alloc(context, need, &made->data);
        if (status != DG_OK) {
            free(made);
            return status;
        }
    }
    dg_status status = context->backend->weights_pack(context, b, scale_b, made, stream);
    if (status != DG_OK) {
        dg_weights_destroy(made);
        return status;
    }
    *weights = made;
    return DG_OK;
}

dg_status dg_weights_unpack(dg_context *context, const dg_weights *weights, const dg_matrix *b,
                            const dg_scale *scale_b, void *stream)
{
    DGI_TRY(dgi_check_context(context));
    DGI_TRY(dgi_check_unpack(context, weights, b, scale_b));
    return context->backend->weights_unpack(context, weights, b, scale_b, stream);
}

void dg_weights_destroy(dg_weights *weights)
{
    if (weights == NULL)
        return;
    if (weights->owner != NULL)
        weights->backend->memory_free(weights->owner, weights->data);
    free(weights);
}
