/* SPDX-License-Identifier: MIT */
/* Choosing: scales, smoothing factors, precisions. All on the CPU. */
#include "extension.h"

#include <stdlib.h>

static const char *const origins[] = {"layer", "siblings", "nothing"};

int dgp_scale_choice(PyObject *object, dg_scale_choice *choice)
{
    static const char *const methods[] = {"amax", "percentile", "mse", "kl", NULL};
    static const char *const roundings[] = {"exact", "pow2_up", "pow2_down", NULL};
    *choice = (dg_scale_choice)DG_SCALE_CHOICE_INIT;
    if (!PyTuple_Check(object) || PyTuple_Size(object) != 4) {
        PyErr_Format(PyExc_TypeError, "choice is %R: expected a deepgemm.ScaleChoice", object);
        return -1;
    }
    const int method = dgp_choice(PyTuple_GetItem(object, 0), "method", methods);
    const int rounding =
        method < 0 ? -1 : dgp_choice(PyTuple_GetItem(object, 3), "rounding", roundings);
    const int dtype =
        rounding < 0 ? -1 : dgp_dtype_from_object(PyTuple_GetItem(object, 2), "dtype");
    if (dtype < 0)
        return -1;
    choice->method = (dg_scale_method)method;
    choice->percentile = PyFloat_AsDouble(PyTuple_GetItem(object, 1));
    choice->code = dgp_library_dtype(dtype);
    choice->rounding = (dg_scale_rounding)rounding;
    return PyErr_Occurred() ? -1 : 0;
}

PyObject *dgp_scale_quality(const dg_scale_quality *q)
{
    return Py_BuildValue("(dddds)", q->elements, q->clipped, q->underflow, q->relative_error,
                         origins[q->origin]);
}

/* ---- scales -------------------------------------------------------------------------- */

/* _C.scale_choose(x, granularity, phase, choice, column_weights, scale_dtype, scale_out, context)
 * -> (scale, quality) */
PyObject *dgp_scale_choose(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    enum { X, WEIGHTS, OUT, OPERANDS };
    static const char *const names[] = {"x", "column_weights", "scale_out"};
    dgp_operand o[OPERANDS];
    dgp_stream stream = {NULL, false};
    int32_t block[2], phase[2];
    dg_scale_choice choice;
    dg_scale_quality quality = DG_SCALE_QUALITY_INIT;
    dg_matrix x;
    dg_scale scale;
    const void *weights;
    if (dgp_check_count(count, 8) < 0 || dgp_block(args[1], "granularity", block) < 0 ||
        dgp_pair(args[2], "phase", phase) < 0 || dgp_scale_choice(args[3], &choice) < 0)
        return NULL;
    const int dtype = dgp_dtype_from_object(args[5], "scale_dtype");
    dg_context *context = dtype < 0 ? NULL : dgp_context_get(args[7], DG_CPU);
    PyObject *const objects[] = {args[0], args[4], args[6]};
    if (context == NULL || dgp_operands_take(objects, names, OPERANDS, &stream, o) < 0)
        return NULL;
    PyObject *out = NULL, *result = NULL;
    for (int i = 0; i < OPERANDS; i++)
        if (dgp_check_host(&o[i], names[i]) < 0)
            goto done;
    if (dgp_check_given(&o[X], "x") < 0 || dgp_check_writable(&o[OUT], "scale_out") < 0 ||
        dgp_as_matrix(&o[X], "x", &x) < 0 ||
        dgp_as_array(&o[WEIGHTS], "column_weights", DGP_FLOAT64, x.cols, &weights) < 0)
        goto done;
    const int64_t shape[2] = {dg_scale_count(x.rows, block[0] < 0 ? 0 : block[0], phase[0]),
                              dg_scale_count(x.cols, block[1] < 0 ? 0 : block[1], phase[1])};
    out = o[OUT].dtype != DG_NONE ? Py_NewRef(args[6])
                                  : dgp_output_new(args[0], &o[X], dtype, 2, shape, NULL, &o[OUT]);
    if (out == NULL || dgp_as_scale(&o[OUT], "scale_out", block, phase, &scale) < 0)
        goto done;
    PyThreadState *python = PyEval_SaveThread();
    const dg_status status = dg_scale_choose(context, &x, &choice, weights, &scale, &quality);
    PyEval_RestoreThread(python);
    result = status == DG_OK ? Py_BuildValue("(ON)", out, dgp_scale_quality(&quality))
                             : dgp_raise(status);
done:
    Py_XDECREF(out);
    dgp_operands_release(o, OPERANDS);
    return result;
}

static bool report(void *user, const dg_layer_scales *r)
{
    const dg_scale_quality *input = &r->input, *weight = &r->weight;
    return dgp_report(user, "(s(LL)f(dddds)(dddds)LL)", r->layer, (long long)r->rows,
                      (long long)r->cols, (double)r->input_scale, input->elements, input->clipped,
                      input->underflow, input->relative_error, origins[input->origin],
                      weight->elements, weight->clipped, weight->underflow, weight->relative_error,
                      origins[weight->origin], (long long)r->done, (long long)r->total);
}

/* _C.scales_write(checkpoint, output, statistics, inputs, weights, granularity, weigh_columns,
 * strict, keep, report, context) */
PyObject *dgp_scales_write(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    dg_scales_options options = DG_SCALES_OPTIONS_INIT;
    int32_t block[2];
    if (dgp_check_count(count, 11) < 0 || dgp_scale_choice(args[3], &options.inputs) < 0 ||
        dgp_scale_choice(args[4], &options.weights) < 0 ||
        dgp_block(args[5], "granularity", block) < 0 ||
        (args[2] != Py_None && (options.statistics = dgp_statistics_get(args[2])) == NULL))
        return NULL;
    dgp_reporter to = {.function = args[9]};
    PyObject *input = dgp_path(args[0], "checkpoint");
    PyObject *output = input == NULL ? NULL : dgp_path(args[1], "output");
    const char **keep = output == NULL ? NULL : dgp_texts(args[8], "keep", &options.keep_count);
    dg_context *context = keep == NULL ? NULL : dgp_context_get(args[10], DG_CPU);
    PyObject *result = NULL;
    if (context != NULL) {
        options.block_rows = block[0];
        options.block_cols = block[1];
        options.weigh_columns = PyObject_IsTrue(args[6]) == 1;
        options.strict = PyObject_IsTrue(args[7]) == 1;
        options.keep = keep;
        options.report = args[9] == Py_None ? NULL : report;
        options.user = &to;
        const char *from = PyBytes_AsString(input), *into = PyBytes_AsString(output);
        PyThreadState *python = PyEval_SaveThread();
        const dg_status status = dg_scales_write(context, from, into, &options);
        PyEval_RestoreThread(python);
        result = dgp_reported(&to, status) < 0 ? NULL : Py_NewRef(Py_None);
    }
    free(keep);
    Py_XDECREF(input);
    Py_XDECREF(output);
    return result;
}

/* ---- smoothing ----------------------------------------------------------------------- */

/* Describes weights[i] for all i; `o` and `matrices` hold as many. */
static int take_matrices(PyObject *weights, dgp_operand *o, dg_matrix *matrices)
{
    dgp_stream stream = {NULL, false};
    for (Py_ssize_t i = 0; i < PyTuple_Size(weights); i++)
        if (dgp_operand_take(PyTuple_GetItem(weights, i), "weights", &stream, &o[i]) < 0 ||
            dgp_check_host(&o[i], "weights") < 0 ||
            dgp_as_matrix(&o[i], "weights", &matrices[i]) < 0)
            return -1;
    return 0;
}

/* _C.smooth_choose(x, weights, amaxes, channels, granularity, context)
 * -> (factors, (strength, error_before, error_after)) */
PyObject *dgp_smooth_choose(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    enum { X, AMAXES, CHANNELS, OPERANDS };
    static const char *const names[] = {"x", "amaxes", "channels"};
    dgp_operand o[OPERANDS], made;
    dgp_stream stream = {NULL, false};
    int32_t block_x[2], block_w[2];
    dg_smooth smooth = DG_SMOOTH_INIT;
    dg_smooth_report quality = DG_SMOOTH_REPORT_INIT;
    const void *amaxes, *channels;
    if (dgp_check_count(count, 6) < 0 || dgp_granularity(args[4], block_x, block_w) < 0)
        return NULL;
    const Py_ssize_t weights = PyTuple_Size(args[1]);
    dg_context *context = weights < 0 ? NULL : dgp_context_get(args[5], DG_CPU);
    PyObject *const objects[] = {args[0], args[2], args[3]};
    if (context == NULL || dgp_operands_take(objects, names, OPERANDS, &stream, o) < 0)
        return NULL;
    PyObject *factors = NULL, *result = NULL;
    dgp_operand *w = calloc((size_t)weights + 1, sizeof *w);
    dg_matrix *matrices = calloc((size_t)weights + 1, sizeof *matrices);
    if (w == NULL || matrices == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (int i = 0; i < OPERANDS; i++)
        if (dgp_check_host(&o[i], names[i]) < 0)
            goto done;
    if (dgp_as_matrix(&o[X], "x", &smooth.x) < 0 || take_matrices(args[1], w, matrices) < 0 ||
        dgp_as_array(&o[AMAXES], "amaxes", DG_F32, smooth.x.cols, &amaxes) < 0 ||
        dgp_as_array(&o[CHANNELS], "channels", DGP_INT32, smooth.x.cols, &channels) < 0 ||
        (factors = dgp_output_new(args[0], &o[X], DG_F32, 1, &smooth.x.cols, NULL, &made)) == NULL)
        goto done;
    smooth.weights = matrices;
    smooth.weight_count = (int32_t)weights;
    smooth.amaxes = amaxes;
    smooth.channels = channels;
    smooth.x_block_rows = block_x[0];
    smooth.x_block_cols = block_x[1];
    smooth.weight_block_rows = block_w[0];
    smooth.weight_block_cols = block_w[1];
    PyThreadState *python = PyEval_SaveThread();
    const dg_status status = dg_smooth_choose(context, &smooth, made.data, &quality);
    PyEval_RestoreThread(python);
    result = status == DG_OK ? Py_BuildValue("(O(ddd))", factors, quality.strength,
                                             quality.error_before, quality.error_after)
                             : dgp_raise(status);
done:
    Py_XDECREF(factors);
    if (w != NULL)
        dgp_operands_release(w, (int)weights);
    free(w);
    free(matrices);
    dgp_operands_release(o, OPERANDS);
    return result;
}

/* ---- precisions ---------------------------------------------------------------------- */

/* _C.precision_choose(costs, count, budget, limit) -> (choice of each layer, (bytes, error)).
 * `costs` is a list of floats: bytes and error of each of `count` precisions of each layer. */
PyObject *dgp_precision_choose(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    static const char *const budgets[] = {"bytes", "error", NULL};
    if (dgp_check_count(count, 4) < 0)
        return NULL;
    const Py_ssize_t numbers = PyList_Size(args[0]);
    const long precisions = PyLong_AsLong(args[1]);
    const double limit = PyFloat_AsDouble(args[3]);
    const int budget = PyErr_Occurred() ? -1 : dgp_choice(args[2], "budget", budgets);
    if (budget < 0)
        return NULL;
    const int64_t layers = precisions > 0 ? numbers / 2 / precisions : 0;
    dg_precision *costs = calloc((size_t)numbers / 2 + 1, sizeof *costs), total;
    int32_t *chosen = calloc((size_t)layers + 1, sizeof *chosen);
    PyObject *list = NULL, *result = NULL;
    if (costs == NULL || chosen == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < numbers; i++)
        *(i % 2 == 0 ? &costs[i / 2].bytes : &costs[i / 2].error) =
            PyFloat_AsDouble(PyList_GetItem(args[0], i));
    if (PyErr_Occurred())
        goto done;
    const dg_status status = dg_precision_choose(costs, layers, (int32_t)precisions,
                                                 (dg_budget)budget, limit, chosen, &total);
    if (status != DG_OK) {
        dgp_raise(status);
        goto done;
    }
    list = PyList_New(0);
    for (int64_t i = 0; list != NULL && i < layers; i++) {
        PyObject *index = PyLong_FromLong(chosen[i]);
        if (index == NULL || PyList_Append(list, index) < 0)
            Py_CLEAR(list);
        Py_XDECREF(index);
    }
    result = list == NULL ? NULL : Py_BuildValue("(O(dd))", list, total.bytes, total.error);
done:
    Py_XDECREF(list);
    free(costs);
    free(chosen);
    return result;
}
