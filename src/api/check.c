/* SPDX-License-Identifier: MIT */
/*
 * The argument checks of the front: the only place in the library that validates. A message names
 * the argument, its value and what is needed.
 */
#include "api/check.h"

#include "api/region.h"
#include "core/formats.h"

#include <stddef.h>
#include <string.h>

typedef long long ll; /* for printf */

/* Sets of types, as bits. */
#define TYPE(dtype) (1u << (dtype))
#define FP8_TYPES   (TYPE(DG_E4M3) | TYPE(DG_E5M2))
#define WIDE_TYPES  (TYPE(DG_F32) | TYPE(DG_F16) | TYPE(DG_BF16))

dg_status dgi_take(void *complete, size_t complete_bytes, size_t least_bytes, const void *given,
                   const char *name)
{
    if (given == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL", name);
    size_t bytes;
    memcpy(&bytes, given, sizeof bytes);
    if (bytes < least_bytes)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "%s.struct_bytes is %zu, at least %zu expected: initialise the struct with "
                        "its DG_..._INIT macro",
                        name, bytes, least_bytes);
    if (bytes > complete_bytes) { /* a newer caller: what this library does not know must be zero */
        const unsigned char *rest = given;
        for (size_t i = complete_bytes; i < bytes; i++)
            if (bytes > 4096 || rest[i] != 0)
                return dgi_fail(DG_INVALID_ARGUMENT,
                                "%s has %zu bytes and uses fields that this library (version %s, "
                                "%zu bytes) does not know",
                                name, bytes, dg_version(), complete_bytes);
        bytes = complete_bytes;
    }
    memcpy(complete, given, bytes);
    return DG_OK;
}

dg_status dgi_take_gemm(dg_gemm *complete, const dg_gemm *given, const char *name)
{
    *complete = (dg_gemm)DG_GEMM_INIT;
    return dgi_take(complete, sizeof *complete, offsetof(dg_gemm, b_is_constant), given, name);
}

dg_status dgi_check_context(const dg_context *context)
{
    if (context == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "context is NULL: make one with dg_create()");
    return DG_OK;
}

dg_status dgi_check_cpu_context(const dg_context *context, const char *work)
{
    DGI_TRY(dgi_check_context(context));
    if (context->device != DG_CPU)
        return dgi_fail(DG_UNSUPPORTED_DEVICE, "context is for device %d: %s by a CPU context",
                        context->device, work);
    return DG_OK;
}

static dg_status check_address(const void *data, int64_t bytes, const char *name)
{
    if ((uintptr_t)data > UINTPTR_MAX - (uintptr_t)bytes)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "%s at %p with %lld bytes passes the end of the address space", name, data,
                        (ll)bytes);
    return DG_OK;
}

static dg_status check_matrix(const dg_matrix *m, const char *name, unsigned types, int64_t rows,
                              int64_t cols, bool need_data)
{
    if ((unsigned)m->dtype > DG_UE8M0 || !(types & TYPE(m->dtype)))
        return dgi_fail(DG_UNSUPPORTED_TYPE, "%s.dtype is %s: this operand takes %s", name,
                        dg_dtype_name(m->dtype),
                        types == FP8_TYPES                  ? "e4m3 or e5m2"
                        : types == WIDE_TYPES               ? "f32, f16 or bf16"
                        : types == (WIDE_TYPES | FP8_TYPES) ? "f32, f16, bf16, e4m3 or e5m2"
                                                            : "another type");
    if (m->rows < 0 || m->cols < 0)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is %lld x %lld: sizes cannot be negative", name,
                        (ll)m->rows, (ll)m->cols);
    if ((rows >= 0 && m->rows != rows) || (cols >= 0 && m->cols != cols))
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is %lld x %lld, but %lld x %lld is needed", name,
                        (ll)m->rows, (ll)m->cols, (ll)(rows >= 0 ? rows : m->rows),
                        (ll)(cols >= 0 ? cols : m->cols));
    if (m->rows > 1 && m->ld < m->cols)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s.ld is %lld, shorter than a row of %lld", name,
                        (ll)m->ld, (ll)m->cols);
    int64_t bytes;
    if (!dgi_strided_bytes(m->rows, m->cols, m->rows > 1 ? m->ld : 0, 1, dg_dtype_bytes(m->dtype),
                           &bytes))
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "%s of %lld x %lld with ld %lld does not fit 63 bits of address", name,
                        (ll)m->rows, (ll)m->cols, (ll)m->ld);
    if (bytes == 0 || !need_data)
        return DG_OK;
    if (m->data == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s.data is NULL, but %s is %lld x %lld", name, name,
                        (ll)m->rows, (ll)m->cols);
    return check_address(m->data, bytes, name);
}

static dg_status check_block(const char *name, const char *axis, int64_t size, int32_t block,
                             int32_t phase, int64_t count)
{
    if (block < 0)
        return dgi_fail(DG_UNSUPPORTED_SCALE,
                        "%s.block_%s is %d: a block size is positive, or 0 for all", name, axis,
                        block);
    if (phase < 0 || (block == 0 ? phase != 0 : phase >= block))
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "%s.%.3s_phase is %d: it must be 0 to %d for blocks of "
                        "%d",
                        name, axis, phase, block == 0 ? 0 : block - 1, block);
    int64_t need = dg_scale_count(size, block, phase);
    if (count != need)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "%s.%s is %lld, but %lld %s in blocks of %d (phase %d) need %lld", name,
                        axis, (ll)count, (ll)size, axis, block, phase, (ll)need);
    return DG_OK;
}

static dg_status check_scale(const dg_scale *s, const char *name, int64_t rows, int64_t cols,
                             bool need_data)
{
    if (s->dtype != DG_F32 && s->dtype != DG_UE8M0)
        return dgi_fail(DG_UNSUPPORTED_SCALE,
                        "%s.dtype is %s: a scale is f32 or ue8m0 (for no scaling, give one f32 "
                        "scale of 1.0 with blocks (0,0))",
                        name, dg_dtype_name(s->dtype));
    DGI_TRY(check_block(name, "rows", rows, s->block_rows, s->row_phase, s->rows));
    DGI_TRY(check_block(name, "cols", cols, s->block_cols, s->col_phase, s->cols));
    if (s->row_stride < 0 || s->col_stride < 0)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "%s has strides %lld and %lld: they cannot be negative", name,
                        (ll)s->row_stride, (ll)s->col_stride);
    int64_t bytes;
    if (!dgi_strided_bytes(s->rows, s->cols, s->row_stride, s->col_stride, dg_dtype_bytes(s->dtype),
                           &bytes))
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "%s of %lld x %lld with strides %lld and %lld does not "
                        "fit 63 bits of address",
                        name, (ll)s->rows, (ll)s->cols, (ll)s->row_stride, (ll)s->col_stride);
    if (bytes == 0 || !need_data)
        return DG_OK;
    if (s->data == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s.data is NULL, but %lld x %lld scales are needed",
                        name, (ll)s->rows, (ll)s->cols);
    return check_address(s->data, bytes, name);
}

/* A scale array that is written must hold each scale at a place of its own. */
static dg_status check_written_scale(const dg_scale *s, const char *name)
{
    if (s->rows == 0 || s->cols == 0)
        return DG_OK;
    int64_t inner = s->row_stride < s->col_stride ? s->row_stride : s->col_stride;
    int64_t outer = s->row_stride < s->col_stride ? s->col_stride : s->row_stride;
    int64_t inner_count = s->row_stride < s->col_stride ? s->rows : s->cols;
    int64_t outer_count = s->row_stride < s->col_stride ? s->cols : s->rows;
    if ((inner_count > 1 && inner < 1) || (outer_count > 1 && outer <= (inner_count - 1) * inner))
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "%s of %lld x %lld with strides %lld and %lld is written, but two scales "
                        "would share a place",
                        name, (ll)s->rows, (ll)s->cols, (ll)s->row_stride, (ll)s->col_stride);
    return DG_OK;
}

/* ---- overlap ------------------------------------------------------------------------- */

static dg_status check_apart(dgi_region output, const char *output_name, dgi_region input,
                             const char *input_name)
{
    if (dgi_overlap(output, input))
        return dgi_fail(DG_INVALID_ARGUMENT, "%s overlaps %s", output_name, input_name);
    return DG_OK;
}

/* ---- calls --------------------------------------------------------------------------- */

dg_status dgi_check_weights(const dg_matrix *b, const dg_scale *scale_b, bool need_data)
{
    if (b == NULL || scale_b == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL", b == NULL ? "b" : "scale_b");
    DGI_TRY(check_matrix(b, "b", FP8_TYPES, -1, -1, need_data));
    return check_scale(scale_b, "scale_b", b->rows, b->cols, need_data);
}

dg_status dgi_check_comparison(const dg_matrix *reference, const dg_matrix *result)
{
    if (reference == NULL || result == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL",
                        reference == NULL ? "reference" : "result");
    DGI_TRY(check_matrix(reference, "reference", WIDE_TYPES, -1, -1, true));
    return check_matrix(result, "result", WIDE_TYPES, reference->rows, reference->cols, true);
}

/* Packed weights belong to a device. */
static dg_status check_device(const dg_weights *weights, const dg_context *context)
{
    if (weights->backend != context->backend || weights->device != context->device)
        return dgi_fail(DG_DEVICE_MISMATCH,
                        "weights were packed for device %d of backend %s, the context is for "
                        "device %d of backend %s",
                        weights->device, weights->backend->name, context->device,
                        context->backend->name);
    return DG_OK;
}

dg_status dgi_check_unpack(const dg_context *context, const dg_weights *weights, const dg_matrix *b,
                           const dg_scale *scale_b)
{
    DGI_TRY(dgi_check_weights(b, scale_b, true));
    if (weights == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "weights is NULL");
    DGI_TRY(check_device(weights, context));
    const dg_matrix *codes = &weights->b;
    if (b->rows != codes->rows || b->cols != codes->cols || b->dtype != codes->dtype)
        return dgi_fail(DG_INVALID_ARGUMENT, "b is %s %lld x %lld, but %s %lld x %lld was packed",
                        dg_dtype_name(b->dtype), (ll)b->rows, (ll)b->cols,
                        dg_dtype_name(codes->dtype), (ll)codes->rows, (ll)codes->cols);
    const dg_scale *packed = &weights->scale;
    if (scale_b->dtype != packed->dtype || scale_b->block_rows != packed->block_rows ||
        scale_b->block_cols != packed->block_cols || scale_b->row_phase != packed->row_phase ||
        scale_b->col_phase != packed->col_phase)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "scale_b is %s (%d,%d) phase (%d,%d), but %s (%d,%d) phase (%d,%d) was "
                        "packed",
                        dg_dtype_name(scale_b->dtype), scale_b->block_rows, scale_b->block_cols,
                        scale_b->row_phase, scale_b->col_phase, dg_dtype_name(packed->dtype),
                        packed->block_rows, packed->block_cols, packed->row_phase,
                        packed->col_phase);
    DGI_TRY(check_written_scale(scale_b, "scale_b"));
    DGI_TRY(check_apart(dgi_matrix_region(b), "b", dgi_scale_region(scale_b), "scale_b"));
    DGI_TRY(check_apart(dgi_matrix_region(b), "b", dgi_packed_region(weights), "weights"));
    return check_apart(dgi_scale_region(scale_b), "scale_b", dgi_packed_region(weights), "weights");
}

/* B and scale_b of a GEMM: given directly, or as packed weights. */
static dg_status check_b(const dg_gemm *g, bool need_data, const dg_context *context)
{
    if (g->weights == NULL) {
        if (g->b.dtype == DG_NONE)
            return dgi_fail(DG_INVALID_ARGUMENT,
                            "b is absent, and so is weights: give one of them");
        return dgi_check_weights(&g->b, &g->scale_b, need_data);
    }
    if (g->b.dtype != DG_NONE || g->scale_b.dtype != DG_NONE)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "weights are given, so b and scale_b must be absent (dtype DG_NONE)");
    return check_device(g->weights, context);
}

dg_status dgi_check_product(const dg_gemm *g, int64_t d_rows, bool need_data,
                            const dg_context *context)
{
    const dg_matrix b = g->weights != NULL ? g->weights->b : g->b;
    DGI_TRY(check_matrix(&g->a, "a", FP8_TYPES, -1, -1, need_data));
    DGI_TRY(check_b(g, need_data, context));
    int64_t m = g->a.rows, n = b.rows, k = g->a.cols;
    if (b.cols != k)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "a is %lld x %lld and b is %lld x %lld: both need the same K (columns)",
                        (ll)m, (ll)k, (ll)n, (ll)b.cols);
    DGI_TRY(check_scale(&g->scale_a, "scale_a", m, k, need_data));
    DGI_TRY(check_matrix(&g->d, "d", WIDE_TYPES | FP8_TYPES, d_rows, n, need_data));

    if (dgi_is_fp8(g->d.dtype)) {
        DGI_TRY(check_scale(&g->scale_d, "scale_d", d_rows, n, need_data));
    } else if (g->scale_d.dtype != DG_NONE) {
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "scale_d is given, but d is %s: only an FP8 result has a scale",
                        dg_dtype_name(g->d.dtype));
    }
    bool reads_c = g->beta != 0.0f;
    if (g->c.dtype != DG_NONE)
        DGI_TRY(check_matrix(&g->c, "c", WIDE_TYPES, d_rows, n, need_data && reads_c));
    else if (reads_c)
        return dgi_fail(DG_INVALID_ARGUMENT, "beta is %g, but c is absent", (double)g->beta);
    if (g->bias.dtype != DG_NONE)
        DGI_TRY(check_matrix(&g->bias, "bias", WIDE_TYPES, 1, n, need_data));
    if (g->accumulation != DG_ACCUMULATE_PRECISE && g->accumulation != DG_ACCUMULATE_FAST)
        return dgi_fail(DG_INVALID_ARGUMENT, "accumulation is %d, not a dg_accumulation",
                        g->accumulation);
    return DG_OK;
}

/* What a product writes, against all that it reads but C. */
static dg_status check_apart_from_inputs(dgi_region output, const char *name, const dg_gemm *g)
{
    DGI_TRY(check_apart(output, name, dgi_matrix_region(&g->a), "a"));
    DGI_TRY(check_apart(output, name, dgi_scale_region(&g->scale_a), "scale_a"));
    if (g->weights == NULL) {
        DGI_TRY(check_apart(output, name, dgi_matrix_region(&g->b), "b"));
        DGI_TRY(check_apart(output, name, dgi_scale_region(&g->scale_b), "scale_b"));
    } else {
        DGI_TRY(check_apart(output, name, dgi_packed_region(g->weights), "weights"));
    }
    if (dgi_is_fp8(g->d.dtype))
        DGI_TRY(check_apart(output, name, dgi_scale_region(&g->scale_d), "scale_d"));
    if (g->bias.dtype != DG_NONE)
        DGI_TRY(check_apart(output, name, dgi_matrix_region(&g->bias), "bias"));
    return DG_OK;
}

dg_status dgi_check_workspace(const dg_gemm *g, size_t need)
{
    if (g->workspace_bytes < need)
        return dgi_fail(DG_INVALID_ARGUMENT, "workspace_bytes is %zu, but this call needs %zu",
                        g->workspace_bytes, need);
    if (need == 0)
        return DG_OK;
    if ((uintptr_t)g->workspace % 256 != 0)
        return dgi_fail(DG_MISALIGNED, "workspace is at %p: it must be 256-byte aligned",
                        g->workspace);
    const dgi_region workspace = {(uintptr_t)g->workspace, 1, (int64_t)need, 0};
    DGI_TRY(check_apart(workspace, "workspace", dgi_matrix_region(&g->d), "d"));
    if (g->beta != 0.0f)
        DGI_TRY(check_apart(workspace, "workspace", dgi_matrix_region(&g->c), "c"));
    return check_apart_from_inputs(workspace, "workspace", g);
}

dg_status dgi_check_gemm(const dg_gemm *g, const dg_context *context)
{
    DGI_TRY(dgi_check_product(g, g->a.rows, true, context));
    const bool reads_c = g->beta != 0.0f;
    dgi_region d = dgi_matrix_region(&g->d);
    DGI_TRY(check_apart_from_inputs(d, "d", g));
    if (reads_c) {
        bool in_place = g->c.data == g->d.data && g->c.dtype == g->d.dtype &&
                        (g->c.ld == g->d.ld || g->d.rows <= 1);
        if (!in_place && dgi_overlap(d, dgi_matrix_region(&g->c)))
            return dgi_fail(DG_INVALID_ARGUMENT,
                            "d overlaps c: c may be d itself (same data, dtype and ld), or apart");
    }
    return DG_OK;
}

dg_status dgi_check_quantize(const dg_quantize *q)
{
    DGI_TRY(check_matrix(&q->input, "input", WIDE_TYPES, -1, -1, true));
    int64_t rows = q->input.rows, cols = q->input.cols;
    DGI_TRY(check_matrix(&q->output, "output", FP8_TYPES, rows, cols, true));
    DGI_TRY(check_scale(&q->scale, "scale", rows, cols, true));
    if (q->source != DG_SCALE_DYNAMIC && q->source != DG_SCALE_GIVEN)
        return dgi_fail(DG_INVALID_ARGUMENT, "source is %d, not a dg_scale_source", q->source);
    if ((unsigned)q->rounding > DG_SCALE_POW2_DOWN)
        return dgi_fail(DG_INVALID_ARGUMENT, "rounding is %d, not a dg_scale_rounding",
                        q->rounding);
    if (q->overflow != DG_SATURATE && q->overflow != DG_OVERFLOW_IEEE)
        return dgi_fail(DG_INVALID_ARGUMENT, "overflow is %d, not a dg_overflow", q->overflow);
    if (!(q->amax_floor >= 0.0f && dgi_f32_is_finite(q->amax_floor)))
        return dgi_fail(DG_INVALID_ARGUMENT, "amax_floor is %g: it must be finite and not negative",
                        (double)q->amax_floor);
    if (q->source == DG_SCALE_DYNAMIC) {
        if (q->scale.dtype == DG_UE8M0 && q->rounding == DG_SCALE_EXACT)
            return dgi_fail(DG_UNSUPPORTED_SCALE,
                            "scale.dtype is ue8m0, which holds only powers of two: set rounding to "
                            "DG_SCALE_POW2_UP or DG_SCALE_POW2_DOWN");
        DGI_TRY(check_written_scale(&q->scale, "scale"));
        DGI_TRY(check_apart(dgi_scale_region(&q->scale), "scale", dgi_matrix_region(&q->input),
                            "input"));
    }
    DGI_TRY(check_apart(dgi_matrix_region(&q->output), "output", dgi_matrix_region(&q->input),
                        "input"));
    DGI_TRY(
        check_apart(dgi_matrix_region(&q->output), "output", dgi_scale_region(&q->scale), "scale"));
    if (q->counts == NULL)
        return DG_OK;
    dgi_region counts = {(uintptr_t)q->counts, 1, sizeof *q->counts, 0};
    DGI_TRY(check_apart(counts, "counts", dgi_matrix_region(&q->output), "output"));
    DGI_TRY(check_apart(counts, "counts", dgi_scale_region(&q->scale), "scale"));
    return check_apart(counts, "counts", dgi_matrix_region(&q->input), "input");
}

dg_status dgi_check_dequantize(const dg_dequantize *q)
{
    DGI_TRY(check_matrix(&q->input, "input", FP8_TYPES, -1, -1, true));
    DGI_TRY(check_scale(&q->scale, "scale", q->input.rows, q->input.cols, true));
    DGI_TRY(check_matrix(&q->output, "output", WIDE_TYPES, q->input.rows, q->input.cols, true));
    DGI_TRY(check_apart(dgi_matrix_region(&q->output), "output", dgi_matrix_region(&q->input),
                        "input"));
    return check_apart(dgi_matrix_region(&q->output), "output", dgi_scale_region(&q->scale),
                       "scale");
}

/* ---- calibration --------------------------------------------------------------------- */

dg_status dgi_check_wide(const dg_matrix *matrix, const char *name)
{
    if (matrix == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL", name);
    return check_matrix(matrix, name, WIDE_TYPES, -1, -1, true);
}

dg_status dgi_check_scale(const dg_scale *scale, int64_t rows, int64_t cols, bool written)
{
    if (scale == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "scale is NULL");
    DGI_TRY(check_scale(scale, "scale", rows, cols, true));
    return written ? check_written_scale(scale, "scale") : DG_OK;
}

dg_status dgi_take_choice(dg_scale_choice *complete, const dg_scale_choice *given,
                          dg_dtype scale_dtype)
{
    *complete = (dg_scale_choice)DG_SCALE_CHOICE_INIT;
    if (given != NULL)
        DGI_TRY(dgi_take(complete, sizeof *complete, sizeof *complete, given, "choice"));
    if ((unsigned)complete->method > DG_METHOD_KL)
        return dgi_fail(DG_INVALID_ARGUMENT, "choice.method is %d, not a dg_scale_method",
                        complete->method);
    if (complete->method == DG_METHOD_PERCENTILE &&
        !(complete->percentile > 0.0 && complete->percentile <= 100.0))
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "choice.percentile is %g: it must be above 0 and at most 100",
                        complete->percentile);
    if (!dgi_is_fp8(complete->code))
        return dgi_fail(DG_UNSUPPORTED_TYPE, "choice.code is %s: e4m3 or e5m2 expected",
                        dg_dtype_name(complete->code));
    if ((unsigned)complete->rounding > DG_SCALE_POW2_DOWN)
        return dgi_fail(DG_INVALID_ARGUMENT, "choice.rounding is %d, not a dg_scale_rounding",
                        complete->rounding);
    if (scale_dtype == DG_UE8M0 && complete->rounding == DG_SCALE_EXACT)
        return dgi_fail(DG_UNSUPPORTED_SCALE,
                        "scale.dtype is ue8m0, which holds only powers of two: set choice.rounding "
                        "to DG_SCALE_POW2_UP or DG_SCALE_POW2_DOWN");
    return DG_OK;
}
