/* SPDX-License-Identifier: MIT */
/* What deepgemm.Checkpoint holds, and the calls that quantise and convert checkpoints. */
#include "extension.h"

#include <stdlib.h>
#include <string.h>

typedef struct checkpoint_object {
    PyObject_HEAD dg_checkpoint *checkpoint;
} checkpoint_object;

static PyTypeObject *checkpoint_type;

/* ---- reading ------------------------------------------------------------------------- */

static PyObject *checkpoint_make(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"path", NULL};
    PyObject *object;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:Checkpoint", names, &object))
        return NULL;
    PyObject *path = dgp_path(object, "path");
    checkpoint_object *self = path == NULL ? NULL : PyObject_New(checkpoint_object, type);
    if (self == NULL) {
        Py_XDECREF(path);
        return NULL;
    }
    self->checkpoint = NULL;
    const char *text = PyBytes_AsString(path);
    PyThreadState *python = PyEval_SaveThread();
    const dg_status status = dg_checkpoint_open(&self->checkpoint, text);
    PyEval_RestoreThread(python);
    Py_DECREF(path);
    if (status != DG_OK) {
        dgp_raise(status);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void checkpoint_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    dg_checkpoint_close(((checkpoint_object *)object)->checkpoint);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* The name of a type that the library computes with, or None. */
static PyObject *dtype_name(dg_dtype dtype)
{
    return dtype == DG_NONE ? Py_NewRef(Py_None) : PyUnicode_FromString(dgp_dtype_name(dtype));
}

static PyObject *facts(const dg_tensor *tensor)
{
    PyObject *shape = dgp_sizes(tensor->shape, tensor->rank);
    PyObject *dtype = shape == NULL ? NULL : dtype_name(tensor->dtype);
    PyObject *row = dtype == NULL ? NULL
                                  : Py_BuildValue("(ssOOnN)", tensor->name, tensor->stored_type,
                                                  dtype, shape, (Py_ssize_t)tensor->bytes,
                                                  PyUnicode_DecodeFSDefault(tensor->file));
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    return row;
}

static PyObject *checkpoint_tensors(PyObject *object, PyObject *unused)
{
    (void)unused;
    const dg_checkpoint *checkpoint = ((checkpoint_object *)object)->checkpoint;
    PyObject *list = PyList_New(0);
    dg_tensor tensor;
    for (int64_t i = 0; list != NULL && dg_checkpoint_tensor_at(checkpoint, i, &tensor) == DG_OK;
         i++) {
        PyObject *row = facts(&tensor);
        if (row == NULL || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *checkpoint_read(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    const dg_checkpoint *checkpoint = ((checkpoint_object *)object)->checkpoint;
    dg_tensor tensor;
    if (count != 1 && dgp_check_count(count, 2) < 0)
        return NULL;
    const char *name = dgp_name(args[0], "name");
    if (name == NULL)
        return NULL;
    dg_status status = dg_checkpoint_find(checkpoint, name, &tensor);
    if (status != DG_OK)
        return dgp_raise(status);
    int dtype = tensor.dtype;
    if (count == 2 && args[1] != Py_None && (dtype = dgp_dtype_from_object(args[1], "dtype")) < 0)
        return NULL;
    if (dtype == DG_NONE || dtype > DG_UE8M0 || tensor.rank > DGP_MAX_RANK) {
        dgp_fail(DG_UNSUPPORTED_TYPE,
                 "%s is stored as %s with %d dimensions: this library reads no "
                 "such tensor as %s",
                 name, tensor.stored_type, (int)tensor.rank, dgp_dtype_name(dtype));
        return NULL;
    }
    dgp_operand memory;
    dgp_stream stream = {NULL, true};
    PyObject *made = dgp_tensor_new(dtype, tensor.rank, tensor.shape, DG_CPU, NULL);
    if (made == NULL || dgp_tensor_describe(made, &stream, &memory) < 0)
        return NULL;
    PyThreadState *python = PyEval_SaveThread();
    status = dg_checkpoint_read(checkpoint, name, (dg_dtype)dtype, memory.data,
                                (size_t)tensor.elements * dgp_dtype_bytes(dtype));
    PyEval_RestoreThread(python);
    if (status == DG_OK)
        return made;
    Py_DECREF(made);
    return dgp_raise(status);
}

/* A contiguous copy of a tensor of the checkpoint, [rows, cols], as `dtype`. */
static PyObject *copy(const dg_tensor *tensor, dg_dtype dtype, int64_t rows, int64_t cols)
{
    const int64_t shape[2] = {rows, cols};
    dgp_operand memory;
    dgp_stream stream = {NULL, true};
    PyObject *made = dgp_tensor_new(dtype, 2, shape, DG_CPU, NULL);
    if (made == NULL || dgp_tensor_describe(made, &stream, &memory) < 0)
        return NULL;
    PyThreadState *python = PyEval_SaveThread();
    dg_status status = DG_OK;
    if (tensor->dtype == dtype)
        memcpy(memory.data, tensor->data, tensor->bytes);
    else
        status = dg_convert(tensor->data, tensor->dtype, memory.data, dtype, tensor->elements,
                            DG_SATURATE);
    PyEval_RestoreThread(python);
    if (status == DG_OK)
        return made;
    Py_DECREF(made);
    return dgp_raise(status);
}

/* weight(name, expert, unscaled_is_one) -> (weight, scale or None, (rows, cols)) */
static PyObject *checkpoint_weight(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    const dg_checkpoint *checkpoint = ((checkpoint_object *)object)->checkpoint;
    dg_stored_weight stored;
    if (dgp_check_count(count, 3) < 0)
        return NULL;
    const char *name = dgp_name(args[0], "name");
    if (name == NULL)
        return NULL;
    const int unscaled_is_one = PyObject_IsTrue(args[2]);
    const long long expert = args[1] == Py_None ? -1 : PyLong_AsLongLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    const dg_status status =
        args[1] == Py_None
            ? dg_checkpoint_weight(checkpoint, name, unscaled_is_one, &stored)
            : dg_checkpoint_expert(checkpoint, name, expert, unscaled_is_one, &stored);
    if (status != DG_OK)
        return dgp_raise(status);
    const int64_t n = stored.weight.shape[0], k = stored.weight.shape[1];
    PyObject *weight = copy(&stored.weight, stored.weight.dtype, n, k);
    PyObject *scale = weight == NULL ? NULL
                      : stored.scale.name == NULL
                          ? Py_NewRef(Py_None)
                          : copy(&stored.scale, DG_F32, dg_scale_count(n, stored.block_rows, 0),
                                 dg_scale_count(k, stored.block_cols, 0));
    PyObject *result = scale == NULL
                           ? NULL
                           : Py_BuildValue("(OO(ii))", weight, scale, (int)stored.block_rows,
                                           (int)stored.block_cols);
    Py_XDECREF(weight);
    Py_XDECREF(scale);
    return result;
}

static const char *const roles[] = {"weight", "input", "keys", "values", "nothing"};
static const char *const states[] = {"loaded", "defaulted", "unused", "missing", "wrong"};

/* Made by dgp_report(), which has the GIL. */
static PyObject *problem_of(void *record)
{
    const char *problem = ((const dg_scale_record *)record)->problem;
    return problem == NULL ? Py_NewRef(Py_None) : dgp_message(problem);
}

static bool add_scale(void *user, const dg_scale_record *r)
{
    return dgp_report(user, "(ssszz(ii)ffO&)", roles[r->role], states[r->state], r->layer,
                      r->scale.name, r->scale.stored_type, (int)r->block_rows, (int)r->block_cols,
                      (double)r->smallest, (double)r->largest, problem_of, (void *)r);
}

/* scales(append): calls it with (role, state, layer, name, stored_type, block, smallest, largest,
 * problem) for each scale. */
static PyObject *checkpoint_scales(PyObject *object, PyObject *append)
{
    dgp_reporter to = {.function = append};
    PyThreadState *python = PyEval_SaveThread();
    const dg_status status =
        dg_checkpoint_scales(((checkpoint_object *)object)->checkpoint, add_scale, &to);
    PyEval_RestoreThread(python);
    return dgp_reported(&to, status) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef checkpoint_methods[] = {
    {"tensors", checkpoint_tensors, METH_NOARGS, NULL},
    {"read", (PyCFunction)(void (*)(void))checkpoint_read, METH_FASTCALL, NULL},
    {"weight", (PyCFunction)(void (*)(void))checkpoint_weight, METH_FASTCALL, NULL},
    {"scales", checkpoint_scales, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int dgp_checkpoint_init(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_new, checkpoint_make},
        {Py_tp_dealloc, checkpoint_free},
        {Py_tp_methods, checkpoint_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {"deepgemm._C.Checkpoint", sizeof(checkpoint_object), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};
    checkpoint_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return checkpoint_type == NULL
               ? -1
               : PyModule_AddObjectRef(module, "Checkpoint", (PyObject *)checkpoint_type);
}

/* ---- writing ------------------------------------------------------------------------- */

static const char *const actions[] = {"kept", "quantized", "repacked", "requantized", "widened"};

static bool report(void *user, const dg_tensor_report *r)
{
    return dgp_report(
        user, "(szssnndLLLLLOd)", r->name, r->kept_because,
        (unsigned)r->action < sizeof actions / sizeof actions[0] ? actions[r->action] : "other",
        r->stored_type, (Py_ssize_t)r->bytes_before, (Py_ssize_t)r->bytes_after, r->relative_error,
        (long long)r->counts.saturated, (long long)r->counts.underflow,
        (long long)r->counts.non_finite, (long long)r->done, (long long)r->total,
        r->resumed ? Py_True : Py_False, r->part_ratio);
}

static int take_format(PyObject *object)
{
    const char *names[DG_CHECKPOINT_FORMATS + 1] = {NULL};
    for (int i = 0; i < DG_CHECKPOINT_FORMATS; i++)
        names[i] = dg_checkpoint_format_name((dg_checkpoint_format)i);
    return dgp_choice(object, "format", names);
}

/* _C.checkpoint_write(convert, input, output, format, keep, replace, report, scales, fusion,
 * strict, unscaled_is_one, context) -> how many tensors each pattern of `keep` matched */
PyObject *dgp_checkpoint_write(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    static const char *const fusions[] = {"as_it_is", "split", "fused", NULL};
    dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
    dgp_reporter to = {.function = args[6]};
    if (dgp_check_count(count, 12) < 0)
        return NULL;
    const int converting = PyObject_IsTrue(args[0]);
    const int format = take_format(args[3]);
    const int fusion = format < 0 ? -1 : dgp_choice(args[8], "fusion", fusions);
    if (fusion < 0)
        return NULL;
    PyObject *input = dgp_path(args[1], "input");
    PyObject *output = input == NULL ? NULL : dgp_path(args[2], "output");
    PyObject *scales = args[7] == Py_None || output == NULL ? NULL : dgp_path(args[7], "scales");
    PyObject *matches = NULL;
    int64_t *counts = NULL;
    const char **keep = output == NULL || (scales == NULL && args[7] != Py_None)
                            ? NULL
                            : dgp_texts(args[4], "keep", &options.keep_count);
    dg_context *context = keep == NULL ? NULL : dgp_context_get(args[11], DG_CPU);
    if (context == NULL)
        goto done;
    counts = calloc((size_t)options.keep_count + 1, sizeof *counts);
    if (counts == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    options.format = (dg_checkpoint_format)format;
    options.keep = keep;
    options.keep_matches = counts;
    options.replace = PyObject_IsTrue(args[5]) == 1;
    options.scales = scales == NULL ? NULL : PyBytes_AsString(scales);
    options.fusion = (dg_checkpoint_fusion)fusion;
    options.strict = PyObject_IsTrue(args[9]) == 1;
    options.unscaled_is_one = PyObject_IsTrue(args[10]) == 1;
    if (args[6] != Py_None) {
        options.report = report;
        options.user = &to;
    }
    const char *from = PyBytes_AsString(input), *into = PyBytes_AsString(output);
    PyThreadState *python = PyEval_SaveThread();
    const dg_status status = converting ? dg_checkpoint_convert(context, from, into, &options)
                                        : dg_checkpoint_quantize(context, from, into, &options);
    PyEval_RestoreThread(python);
    if (dgp_reported(&to, status) == 0)
        matches = dgp_sizes(counts, options.keep_count);
done:
    free(counts);
    free(keep);
    Py_XDECREF(input);
    Py_XDECREF(output);
    Py_XDECREF(scales);
    return matches;
}

/* _C.checkpoint_rescale(input, output, names, factors, replace, context) -> how many products were
 * rounded.
 * `factors` has two for each name, of its rows and its columns. */
PyObject *dgp_checkpoint_rescale(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (dgp_check_count(count, 6) < 0)
        return NULL;
    int32_t tensors = 0;
    int64_t rounded = 0;
    PyObject *input = dgp_path(args[0], "input");
    PyObject *output = input == NULL ? NULL : dgp_path(args[1], "output");
    PyObject *result = NULL;
    dg_checkpoint *checkpoint = NULL;
    const char **names = output == NULL ? NULL : dgp_texts(args[2], "factors", &tensors);
    dgp_operand *o = names == NULL ? NULL : calloc(2 * (size_t)tensors + 1, sizeof *o);
    dg_rescale *rescales = o == NULL ? NULL : calloc((size_t)tensors + 1, sizeof *rescales);
    if (names != NULL && rescales == NULL)
        PyErr_NoMemory();
    dg_context *context = rescales == NULL ? NULL : dgp_context_get(args[5], DG_CPU);
    if (context == NULL)
        goto done;
    dgp_stream stream = {NULL, false};
    const char *from = PyBytes_AsString(input), *into = PyBytes_AsString(output);
    dg_status status = dg_checkpoint_open(&checkpoint, from);
    for (Py_ssize_t i = 0; status == DG_OK && i < 2 * (Py_ssize_t)tensors; i++) {
        dg_rescale *r = &rescales[i / 2];
        dg_tensor tensor;
        const void *data;
        r->tensor = names[i / 2];
        if ((status = dg_checkpoint_find(checkpoint, r->tensor, &tensor)) != DG_OK)
            break;
        /* The library takes the lengths on trust. */
        const int64_t needed = i % 2 < tensor.rank ? tensor.shape[i % 2] : 0;
        if (dgp_operand_take(PyTuple_GetItem(args[3], i), r->tensor, &stream, &o[i]) < 0 ||
            dgp_check_host(&o[i], r->tensor) < 0 ||
            dgp_as_array(&o[i], r->tensor, DG_F32, needed, &data) < 0)
            goto done;
        *(i % 2 == 0 ? &r->rows : &r->cols) = data;
    }
    if (status != DG_OK) {
        dgp_raise(status);
        goto done;
    }
    const int replace = PyObject_IsTrue(args[4]);
    PyThreadState *python = PyEval_SaveThread();
    status = dg_checkpoint_rescale(context, from, into, rescales, tensors, replace == 1, &rounded);
    PyEval_RestoreThread(python);
    result = status == DG_OK ? PyLong_FromLongLong(rounded) : dgp_raise(status);
done:
    if (o != NULL)
        dgp_operands_release(o, 2 * tensors);
    dg_checkpoint_close(checkpoint);
    free(o);
    free(rescales);
    free(names);
    Py_XDECREF(input);
    Py_XDECREF(output);
    return result;
}
