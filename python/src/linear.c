/* SPDX-License-Identifier: MIT */
/* A linear layer: activations are quantised as they come, then multiplied with the weights. */
#include "extension.h"

enum { X, B, SCALE_B, BIAS, OUT, OPERANDS };
static const char *const names[] = {"x", "b", "scale_b", "bias", "out"};

/* Codes and scales of the activations, in one piece of memory. */
static size_t scratch_layout(dg_quantize *q, dg_dtype dtype, const int32_t block[2])
{
    const int64_t rows = q->input.rows, cols = q->input.cols;
    const size_t codes = ((size_t)rows * (size_t)cols + 255) / 256 * 256;
    q->output = dg_matrix_of(NULL, dtype, rows, cols);
    q->scale = dg_scale_of(NULL, DG_F32, rows, cols, block[0], block[1]);
    return codes;
}

static int take_weights(PyObject *object, const dgp_operand *o, const int32_t block[2],
                        dg_gemm *gemm, int64_t *n)
{
    static const int32_t no_phase[2] = {0, 0};
    int32_t packed[2];
    if (!dgp_weights_check(object)) {
        if (dgp_as_matrix(&o[B], "b", &gemm->b) < 0 ||
            dgp_as_scale(&o[SCALE_B], "scale_b", block, no_phase, &gemm->scale_b) < 0)
            return -1;
        *n = gemm->b.rows;
        return 0;
    }
    gemm->weights = dgp_weights_get(object, n, packed);
    if (packed[0] == block[0] && packed[1] == block[1] && o[SCALE_B].dtype == DG_NONE)
        return 0;
    return dgp_fail(DG_UNSUPPORTED_SCALE,
                    "the weights were packed with their scales, for blocks of (%d, %d): give no "
                    "scale_b, and the same granularity[1], not (%d, %d)",
                    (int)packed[0], (int)packed[1], (int)block[0], (int)block[1]);
}

/* The work, once all is described but the memory at `scratch`. */
static dg_status run(dg_context *context, dg_quantize *q, dg_gemm *gemm, char *scratch,
                     size_t codes_bytes, void *stream)
{
    q->output.data = scratch;
    q->scale.data = scratch + codes_bytes;
    gemm->a = q->output;
    gemm->scale_a = q->scale;
    /* Quantising begins when all work before it has ended, and does not write B. */
    gemm->b_is_constant = true;
    const dg_status status = dg_quantize_run(context, q, stream);
    return status == DG_OK ? dg_gemm_run(context, gemm, stream) : status;
}

/* _C.linear(x, b, scale_b, bias, out, out_dtype, granularity, dtype, context) -> out.
 * Scratch memory comes from x's library and goes back to it at once, so all work is on the stream
 * that this library calls the current one. */
PyObject *dgp_linear(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    dgp_operand o[OPERANDS], scratch = {0};
    dgp_stream stream = {NULL, false};
    int32_t block_a[2], block_b[2];
    if (dgp_check_count(count, 9) < 0 || dgp_granularity(args[6], block_a, block_b) < 0)
        return NULL;
    const int dtype = dgp_dtype_from_object(args[7], "dtype");
    if (dtype < 0)
        return NULL;
    PyObject *objects[OPERANDS] = {args[0], dgp_weights_check(args[1]) ? Py_None : args[1], args[2],
                                   args[3], args[4]};
    if (dgp_operands_take(objects, names, OPERANDS, &stream, o) < 0)
        return NULL;

    dg_quantize q = DG_QUANTIZE_INIT;
    dg_gemm gemm = DG_GEMM_INIT;
    PyObject *out = NULL, *memory = NULL, *result = NULL;
    dg_device device;
    int64_t n = 0;
    if (dgp_common_device(o, names, OPERANDS, &device) < 0 ||
        dgp_check_writable(&o[OUT], "out") < 0 || dgp_as_matrix(&o[X], "x", &q.input) < 0 ||
        take_weights(args[1], o, block_b, &gemm, &n) < 0 ||
        dgp_as_vector(&o[BIAS], "bias", &gemm.bias) < 0)
        goto done;
    if (block_a[0] < 0 || block_a[1] < 0) {
        dgp_fail(DG_UNSUPPORTED_SCALE, "granularity[0] is (%d, %d): it cannot be negative",
                 (int)block_a[0], (int)block_a[1]);
        goto done;
    }
    dg_context *context = dgp_context_get(args[8], device);
    if (context == NULL)
        goto done;
    if (o[OUT].dtype != DG_NONE) {
        out = Py_NewRef(args[4]);
    } else {
        const int out_dtype =
            args[5] == Py_None ? o[X].dtype : dgp_dtype_from_object(args[5], "out_dtype");
        int64_t shape[DGP_MAX_RANK];
        for (int i = 0; i < o[X].rank; i++)
            shape[i] = i == o[X].rank - 1 ? n : o[X].shape[i];
        if (out_dtype < 0 || (out = dgp_output_new(args[0], &o[X], out_dtype, o[X].rank, shape,
                                                   stream.handle, &o[OUT])) == NULL)
            goto done;
    }
    if (dgp_as_matrix(&o[OUT], "out", &gemm.d) < 0)
        goto done;
    const size_t codes = scratch_layout(&q, dgp_library_dtype(dtype), block_a);
    const int64_t bytes = (int64_t)codes + q.scale.rows * q.scale.cols * (int64_t)sizeof(float);
    if (dgp_scratch_new(&o[X], bytes, stream.handle, &scratch, &memory) < 0)
        goto done;
    PyThreadState *python = PyEval_SaveThread();
    const dg_status status = run(context, &q, &gemm, scratch.data, codes, stream.handle);
    PyEval_RestoreThread(python);
    if (status == DG_OK)
        dgp_tensor_written(out, stream.handle);
    result = status == DG_OK ? Py_NewRef(out) : dgp_raise(status);
done:
    dgp_operand_release(&scratch);
    Py_XDECREF(memory);
    Py_XDECREF(out);
    dgp_operands_release(o, OPERANDS);
    return result;
}
