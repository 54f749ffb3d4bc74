/* SPDX-License-Identifier: MIT */
/* The functions that compute, except for the GEMM: quantise, dequantise, convert, compare. */
#include "extension.h"

#include <stdlib.h>
#include <string.h>

/* ---- arguments ----------------------------------------------------------------------- */

int dgp_check_count(Py_ssize_t given, Py_ssize_t expected)
{
    if (given == expected)
        return 0;
    PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", expected, given);
    return -1;
}

static int take_integer(PyObject *object, const char *name, int32_t *integer)
{
    const long long value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred())
        return -1;
    if (value < INT32_MIN || value > INT32_MAX)
        return dgp_fail(DG_INVALID_ARGUMENT, "%s has %lld, which does not fit 32 bits", name,
                        value);
    *integer = (int32_t)value;
    return 0;
}

int dgp_pair(PyObject *object, const char *name, int32_t pair[2])
{
    pair[0] = pair[1] = 0;
    if (object == Py_None)
        return 0;
    const bool tuple = PyTuple_Check(object);
    if ((!tuple && !PyList_Check(object)) || PySequence_Size(object) != 2) {
        PyErr_Format(PyExc_TypeError, "%s is %R: expected a pair (rows, columns)", name, object);
        return -1;
    }
    for (int i = 0; i < 2; i++)
        if (take_integer(tuple ? PyTuple_GetItem(object, i) : PyList_GetItem(object, i), name,
                         &pair[i]) < 0)
            return -1;
    return 0;
}

int dgp_block(PyObject *object, const char *name, int32_t block[2])
{
    if (object != Py_None)
        return dgp_pair(object, name, block);
    PyErr_Format(PyExc_TypeError, "%s is None: expected a pair (rows, columns), 0 for all", name);
    return -1;
}

int dgp_granularity(PyObject *object, int32_t block_a[2], int32_t block_b[2])
{
    if (PyTuple_Check(object) && PyTuple_Size(object) == 2)
        return dgp_block(PyTuple_GetItem(object, 0), "granularity[0]", block_a) < 0
                   ? -1
                   : dgp_block(PyTuple_GetItem(object, 1), "granularity[1]", block_b);
    if (PyList_Check(object) && PyList_Size(object) == 4) { /* as PyTorch's operators have it */
        int32_t *const values[] = {&block_a[0], &block_a[1], &block_b[0], &block_b[1]};
        for (int i = 0; i < 4; i++)
            if (take_integer(PyList_GetItem(object, i), "granularity", values[i]) < 0)
                return -1;
        return 0;
    }
    PyErr_Format(PyExc_TypeError,
                 "granularity is %R: expected ((rows, cols) of A, (rows, cols) of B)", object);
    return -1;
}

int dgp_choice(PyObject *object, const char *name, const char *const *names)
{
    const char *text = PyUnicode_Check(object) ? dgp_name(object, name) : NULL;
    for (int i = 0; text != NULL && names[i] != NULL; i++)
        if (strcmp(text, names[i]) == 0)
            return i;
    if (!PyErr_Occurred()) {
        char list[128] = "";
        for (int i = 0; names[i] != NULL; i++)
            PyOS_snprintf(list + strlen(list), sizeof list - strlen(list), "%s\"%s\"",
                          i == 0 ? "" : " or ", names[i]);
        PyErr_Format(PyExc_ValueError, "%s is %R: expected %s", name, object, list);
    }
    return -1;
}

PyObject *dgp_text(dg_status (*write)(void *user, char *text, size_t *bytes), void *user)
{
    size_t bytes = 0;
    dg_status status = write(user, NULL, &bytes);
    char *text = status == DG_OK ? malloc(bytes) : NULL;
    if (status == DG_OK && text == NULL)
        return PyErr_NoMemory();
    if (status == DG_OK)
        status = write(user, text, &bytes);
    PyObject *result = status == DG_OK ? PyUnicode_FromString(text) : dgp_raise(status);
    free(text);
    return result;
}

int dgp_common_device(const dgp_operand *operands, const char *const *names, int count,
                      dg_device *device)
{
    int first = -1;
    *device = DG_CPU;
    for (int i = 0; i < count; i++) {
        if (operands[i].dtype == DG_NONE)
            continue;
        if (first < 0) {
            first = i;
            *device = operands[i].device;
        }
        if (operands[i].device == *device)
            continue;
        PyObject *one = dgp_device_to_object(*device);
        PyObject *other = dgp_device_to_object(operands[i].device);
        if (one != NULL && other != NULL)
            dgp_fail(DG_DEVICE_MISMATCH, "%s is on %U, but %s is on %U", names[i], other,
                     names[first], one);
        Py_XDECREF(one);
        Py_XDECREF(other);
        return -1;
    }
    return 0;
}

int dgp_check_writable(const dgp_operand *operand, const char *name)
{
    return operand->read_only ? dgp_fail(DG_INVALID_ARGUMENT, "%s is read-only", name) : 0;
}

int dgp_check_given(const dgp_operand *operand, const char *name)
{
    return operand->dtype != DG_NONE
               ? 0
               : dgp_fail(DG_UNSUPPORTED_TYPE, "%s is None: expected an array", name);
}

int dgp_check_host(const dgp_operand *operand, const char *name)
{
    return operand->device == DG_CPU
               ? 0
               : dgp_fail(DG_DEVICE_MISMATCH, "%s is on cuda:%d: this function works on the CPU",
                          name, operand->device);
}

/* ---- quantise ------------------------------------------------------------------------ */

enum { Q_INPUT, Q_SCALE, Q_OUT, Q_SCALE_OUT, Q_OPERANDS };

/* The shape of the scales of a new array: with blocks of one row, the input's leading dimensions.
 */
static int32_t scale_shape(const dgp_operand *input, const dg_scale *scale, int64_t *shape)
{
    if (scale->block_rows != 1) {
        shape[0] = scale->rows;
        shape[1] = scale->cols;
        return 2;
    }
    memcpy(shape, input->shape, sizeof shape[0] * (size_t)input->rank);
    shape[input->rank - 1] = scale->cols;
    return input->rank;
}

/* _C.quantize(x, block, phase, dtype, scale, scale_dtype, rounding, overflow, amax_floor, out,
 * scale_out, counts, context, stream) -> (codes, scale[, counts]) */
PyObject *dgp_quantize(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    static const char *const names[] = {"x", "scale", "out", "scale_out"};
    static const char *const roundings[] = {"exact", "pow2_up", "pow2_down", NULL};
    static const char *const overflows[] = {"saturate", "ieee", NULL};
    dgp_operand o[Q_OPERANDS], made;
    dgp_stream stream;
    int32_t block[2], phase[2];
    int64_t shape[DGP_MAX_RANK];
    dg_device device;
    if (dgp_check_count(count, 14) < 0 || dgp_block(args[1], "granularity", block) < 0 ||
        dgp_pair(args[2], "phase", phase) < 0)
        return NULL;
    const int dtype = dgp_dtype_from_object(args[3], "dtype");
    const int scale_dtype = dgp_dtype_from_object(args[5], "scale_dtype");
    const int rounding = dgp_choice(args[6], "rounding", roundings);
    const int overflow = dgp_choice(args[7], "overflow", overflows);
    const double amax_floor = PyFloat_AsDouble(args[8]);
    const int want_counts = PyObject_IsTrue(args[11]);
    if (PyErr_Occurred() || dgp_stream_from_object(args[13], &stream) < 0)
        return NULL;

    PyObject *const objects[] = {args[0], args[4], args[9], args[10]};
    PyObject *codes = NULL, *scales = NULL, *counts = NULL, *result = NULL;
    if (dgp_operands_take(objects, names, Q_OPERANDS, &stream, o) < 0)
        return NULL;
    dg_quantize q = DG_QUANTIZE_INIT;
    q.source = o[Q_SCALE].dtype != DG_NONE ? DG_SCALE_GIVEN : DG_SCALE_DYNAMIC;
    q.rounding = (dg_scale_rounding)rounding;
    q.overflow = (dg_overflow)overflow;
    q.amax_floor = (float)amax_floor;
    if (dgp_common_device(o, names, Q_OPERANDS, &device) < 0 ||
        dgp_check_given(&o[Q_INPUT], "x") < 0 || dgp_check_writable(&o[Q_OUT], "out") < 0 ||
        dgp_check_writable(&o[Q_SCALE_OUT], "scale_out") < 0 ||
        dgp_as_matrix(&o[Q_INPUT], "x", &q.input) < 0)
        goto done;
    if (q.source == DG_SCALE_GIVEN && o[Q_SCALE_OUT].dtype != DG_NONE) {
        dgp_fail(DG_INVALID_ARGUMENT,
                 "scale and scale_out are both given: a scale is read or written");
        goto done;
    }
    dg_context *context = dgp_context_get(args[12], device);
    if (context == NULL)
        goto done;

    if (o[Q_OUT].dtype != DG_NONE)
        codes = Py_NewRef(args[9]);
    else if ((codes = dgp_output_new(args[0], &o[Q_INPUT], dtype, o[Q_INPUT].rank, o[Q_INPUT].shape,
                                     stream.handle, &o[Q_OUT])) == NULL)
        goto done;
    if (dgp_as_matrix(&o[Q_OUT], "out", &q.output) < 0)
        goto done;

    q.scale = dg_scale_of(NULL, DG_F32, q.input.rows, q.input.cols, 1, 1);
    if (q.source == DG_SCALE_GIVEN) {
        scales = Py_NewRef(args[4]);
    } else if (o[Q_SCALE_OUT].dtype != DG_NONE) {
        scales = Py_NewRef(args[10]);
        o[Q_SCALE].dtype = DG_NONE;
    } else {
        q.scale.block_rows = block[0];
        q.scale.rows = dg_scale_count(q.input.rows, block[0] < 0 ? 0 : block[0], phase[0]);
        q.scale.cols = dg_scale_count(q.input.cols, block[1] < 0 ? 0 : block[1], phase[1]);
        const int32_t rank = scale_shape(&o[Q_INPUT], &q.scale, shape);
        scales = dgp_output_new(args[0], &o[Q_INPUT], scale_dtype, rank, shape, stream.handle,
                                &o[Q_SCALE_OUT]);
        if (scales == NULL)
            goto done;
    }
    const bool given = q.source == DG_SCALE_GIVEN;
    if (dgp_as_scale(&o[given ? Q_SCALE : Q_SCALE_OUT], given ? "scale" : "scale_out", block, phase,
                     &q.scale) < 0)
        goto done;
    if (want_counts) {
        shape[0] = 3;
        counts = dgp_output_new(args[0], &o[Q_INPUT], DGP_INT64, 1, shape, stream.handle, &made);
        if (counts == NULL)
            goto done;
        q.counts = made.data;
    }

    dg_status status;
    PyThreadState *python = PyEval_SaveThread();
    status = dg_quantize_run(context, &q, stream.handle);
    PyEval_RestoreThread(python);
    if (status != DG_OK) {
        dgp_raise(status);
        goto done;
    }
    dgp_tensor_written(codes, stream.handle);
    dgp_tensor_written(scales, stream.handle);
    result = want_counts ? PyTuple_Pack(3, codes, scales, counts) : PyTuple_Pack(2, codes, scales);
done:
    dgp_operands_release(o, Q_OPERANDS);
    Py_XDECREF(codes);
    Py_XDECREF(scales);
    Py_XDECREF(counts);
    return result;
}

/* ---- dequantise ---------------------------------------------------------------------- */

enum { DQ_INPUT, DQ_SCALE, DQ_OUT, DQ_OPERANDS };

/* _C.dequantize(codes, scale, block, phase, dtype, out, context, stream) -> array */
PyObject *dgp_dequantize(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    static const char *const names[] = {"codes", "scale", "out"};
    dgp_operand o[DQ_OPERANDS];
    dgp_stream stream;
    int32_t block[2], phase[2];
    dg_device device;
    if (dgp_check_count(count, 8) < 0 || dgp_block(args[2], "granularity", block) < 0 ||
        dgp_pair(args[3], "phase", phase) < 0)
        return NULL;
    const int dtype = dgp_dtype_from_object(args[4], "dtype");
    if (dtype < 0 || dgp_stream_from_object(args[7], &stream) < 0)
        return NULL;
    PyObject *const objects[] = {args[0], args[1], args[5]};
    if (dgp_operands_take(objects, names, DQ_OPERANDS, &stream, o) < 0)
        return NULL;
    PyObject *out = NULL, *result = NULL;
    dg_dequantize q = DG_DEQUANTIZE_INIT;
    dg_context *context = NULL;
    if (dgp_common_device(o, names, DQ_OPERANDS, &device) == 0 &&
        dgp_check_given(&o[DQ_INPUT], "codes") == 0 && dgp_check_writable(&o[DQ_OUT], "out") == 0 &&
        dgp_as_matrix(&o[DQ_INPUT], "codes", &q.input) == 0 &&
        dgp_as_scale(&o[DQ_SCALE], "scale", block, phase, &q.scale) == 0)
        context = dgp_context_get(args[6], device);
    if (context == NULL)
        goto done;
    out = o[DQ_OUT].dtype != DG_NONE
              ? Py_NewRef(args[5])
              : dgp_output_new(args[0], &o[DQ_INPUT], dtype, o[DQ_INPUT].rank, o[DQ_INPUT].shape,
                               stream.handle, &o[DQ_OUT]);
    if (out == NULL || dgp_as_matrix(&o[DQ_OUT], "out", &q.output) < 0)
        goto done;
    dg_status status;
    PyThreadState *python = PyEval_SaveThread();
    status = dg_dequantize_run(context, &q, stream.handle);
    PyEval_RestoreThread(python);
    if (status != DG_OK) {
        dgp_raise(status);
        goto done;
    }
    dgp_tensor_written(out, stream.handle);
    result = Py_NewRef(out);
done:
    dgp_operands_release(o, DQ_OPERANDS);
    Py_XDECREF(out);
    return result;
}

/* ---- on the host --------------------------------------------------------------------- */

static bool is_contiguous(const dgp_operand *o)
{
    int64_t next = 1;
    for (int i = o->rank - 1; i >= 0; i--) {
        if (o->shape[i] > 1 && o->strides[i] != next)
            return false;
        next *= o->shape[i];
    }
    return true;
}

/* _C.convert(x, dtype, overflow) -> array */
PyObject *dgp_convert(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    static const char *const overflows[] = {"saturate", "ieee", NULL};
    dgp_stream stream = {NULL, false};
    dgp_operand x, made = {0};
    if (dgp_check_count(count, 3) < 0)
        return NULL;
    const int dtype = dgp_dtype_from_object(args[1], "dtype");
    const int overflow = dtype < 0 ? -1 : dgp_choice(args[2], "overflow", overflows);
    if (overflow < 0 || dgp_operand_take(args[0], "x", &stream, &x) < 0)
        return NULL;
    PyObject *out = NULL;
    int64_t elements = 1;
    for (int i = 0; i < x.rank; i++)
        elements *= x.shape[i];
    if (!is_contiguous(&x))
        dgp_fail(DG_INVALID_ARGUMENT, "x must be contiguous");
    else if (dgp_check_given(&x, "x") == 0 && dgp_check_host(&x, "x") == 0)
        out = dgp_output_new(args[0], &x, dtype, x.rank, x.shape, NULL, &made);
    if (out != NULL) {
        dg_status status;
        PyThreadState *python = PyEval_SaveThread();
        status = dg_convert(x.data, dgp_library_dtype(x.dtype), made.data, dgp_library_dtype(dtype),
                            elements, (dg_overflow)overflow);
        PyEval_RestoreThread(python);
        if (status != DG_OK) {
            Py_CLEAR(out);
            dgp_raise(status);
        }
    }
    dgp_operand_release(&x);
    return out;
}

/* Between the devices of the two, either of which may be the CPU. Has arrived when it returns. */
static dg_status copy_over(dg_context *context, const dgp_operand *from, dg_device to, void *target,
                           size_t bytes, void *stream)
{
    const dg_copy_kind kind = from->device == DG_CPU ? DG_HOST_TO_DEVICE
                              : to == DG_CPU         ? DG_DEVICE_TO_HOST
                                                     : DG_DEVICE_TO_DEVICE;
    const dg_status status = dg_memory_copy(context, target, from->data, bytes, kind, stream);
    return status == DG_OK ? dg_synchronize(context, stream) : status;
}

/* _C.copy(x, device) -> Tensor */
PyObject *dgp_copy(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    dgp_stream stream = {NULL, false};
    dgp_operand x, made;
    PyObject *out = NULL;
    if (dgp_check_count(count, 2) < 0)
        return NULL;
    const dg_device device = dgp_device_from_object(args[1]);
    if (device < DG_CPU || dgp_operand_take(args[0], "x", &stream, &x) < 0)
        return NULL;
    dg_context *context = dgp_context_get(Py_None, device == DG_CPU ? x.device : device);
    if (context == NULL)
        goto done;
    if (x.dtype == DG_NONE || !is_contiguous(&x))
        dgp_fail(DG_INVALID_ARGUMENT, "x must be a contiguous array");
    else if (x.device != DG_CPU && device != DG_CPU && x.device != device)
        dgp_fail(DG_DEVICE_MISMATCH,
                 "x is on cuda:%d, and is to go to cuda:%d: copy it by way of "
                 "the CPU",
                 x.device, device);
    else
        out = dgp_tensor_new(x.dtype, x.rank, x.shape, device, stream.handle);
    if (out != NULL && dgp_tensor_describe(out, &stream, &made) == 0) {
        size_t bytes = dgp_dtype_bytes(x.dtype);
        for (int i = 0; i < x.rank; i++)
            bytes *= (size_t)x.shape[i];
        PyThreadState *python = PyEval_SaveThread();
        const dg_status status = copy_over(context, &x, device, made.data, bytes, stream.handle);
        PyEval_RestoreThread(python);
        if (status != DG_OK) {
            Py_CLEAR(out);
            dgp_raise(status);
        }
    }
done:
    dgp_operand_release(&x);
    return out;
}

/* _C.compare(reference, result) -> dict */
PyObject *dgp_compare(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    static const char *const names[] = {"reference", "result"};
    dgp_stream stream = {NULL, false};
    dgp_operand o[2];
    dg_matrix reference, result;
    dg_comparison c = DG_COMPARISON_INIT;
    if (dgp_check_count(count, 2) < 0 || dgp_operands_take(args, names, 2, &stream, o) < 0)
        return NULL;
    PyObject *answer = NULL;
    if (dgp_check_host(&o[0], names[0]) == 0 && dgp_check_host(&o[1], names[1]) == 0 &&
        dgp_as_matrix(&o[0], names[0], &reference) == 0 &&
        dgp_as_matrix(&o[1], names[1], &result) == 0) {
        dg_status status;
        PyThreadState *python = PyEval_SaveThread();
        status = dg_compare(&reference, &result, &c);
        PyEval_RestoreThread(python);
        answer = status != DG_OK
                     ? dgp_raise(status)
                     : Py_BuildValue(
                           "{s:d,s:d,s:d,s:d,s:d,s:L,s:L,s:L,s:L,s:L,s:L}", "relative_error",
                           c.relative_error, "snr_db", c.snr_db, "cosine", c.cosine, "max_error",
                           c.max_error, "mean_error", c.mean_error, "finite", (long long)c.finite,
                           "reference_nan", (long long)c.reference_nan, "reference_inf",
                           (long long)c.reference_inf, "result_nan", (long long)c.result_nan,
                           "result_inf", (long long)c.result_inf, "spoiled", (long long)c.spoiled);
    }
    dgp_operands_release(o, 2);
    return answer;
}

PyObject *dgp_kernels(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    PyObject *list = PyList_New(0);
    dg_kernel_info info;
    for (int32_t i = 0; list != NULL && dg_kernel_at(i, &info) == DG_OK; i++) {
        PyObject *row =
            Py_BuildValue("(sssiiiN)", info.name, info.backend, info.architecture, (int)info.tile_m,
                          (int)info.tile_n, (int)info.tile_k, PyBool_FromLong(info.grouped));
        if (row == NULL || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}
