/* SPDX-License-Identifier: MIT */
/* What deepgemm.Statistics holds. That class has the lock: one thread at a time comes in here. */
#include "extension.h"

#include <stdlib.h>
#include <string.h>

typedef struct statistics_object {
    PyObject_HEAD dg_statistics *statistics;
} statistics_object;

static PyTypeObject *statistics_type;

static dg_statistics *of(PyObject *object)
{
    return ((statistics_object *)object)->statistics;
}

dg_statistics *dgp_statistics_get(PyObject *object)
{
    if (PyObject_TypeCheck(object, statistics_type))
        return of(object);
    PyErr_Format(PyExc_TypeError, "statistics is a %R: expected deepgemm.Statistics",
                 Py_TYPE(object));
    return NULL;
}

/* Takes over `statistics`, unless `status` is a failure. */
static PyObject *wrap(PyTypeObject *type, dg_status status, dg_statistics *statistics)
{
    if (status != DG_OK)
        return dgp_raise(status);
    statistics_object *self = PyObject_New(statistics_object, type);
    if (self == NULL)
        dg_statistics_destroy(statistics);
    else
        self->statistics = statistics;
    return (PyObject *)self;
}

static PyObject *statistics_make(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"block_cols", "bits", NULL};
    dg_statistics_options options = DG_STATISTICS_OPTIONS_INIT;
    dg_statistics *made = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "ii:Statistics", names, &options.block_cols,
                                     &options.bits))
        return NULL;
    const dg_status status = dg_statistics_create(&made, &options);
    return wrap(type, status, made);
}

static void statistics_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    dg_statistics_destroy(of(object));
    PyObject_Free(object);
    Py_DECREF(type);
}

/* observe(layer, x, context) */
static PyObject *statistics_observe(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    dgp_stream stream = {NULL, false};
    dgp_operand x;
    dg_matrix matrix;
    if (dgp_check_count(count, 3) < 0)
        return NULL;
    const char *layer = dgp_name(args[0], "layer");
    dg_context *context = layer == NULL ? NULL : dgp_context_get(args[2], DG_CPU);
    if (context == NULL || dgp_operand_take(args[1], "x", &stream, &x) < 0)
        return NULL;
    PyObject *result = NULL;
    if (dgp_check_host(&x, "x") == 0 && dgp_as_matrix(&x, "x", &matrix) == 0) {
        PyThreadState *python = PyEval_SaveThread();
        const dg_status status = dg_statistics_observe(context, of(self), layer, &matrix);
        PyEval_RestoreThread(python);
        result = status == DG_OK ? Py_NewRef(Py_None) : dgp_raise(status);
    }
    dgp_operand_release(&x);
    return result;
}

static PyObject *statistics_merge(PyObject *self, PyObject *object)
{
    dg_statistics *other = dgp_statistics_get(object);
    if (other == NULL)
        return NULL;
    PyThreadState *python = PyEval_SaveThread();
    const dg_status status = dg_statistics_merge(of(self), other);
    PyEval_RestoreThread(python);
    return status == DG_OK ? Py_NewRef(Py_None) : dgp_raise(status);
}

static PyObject *statistics_save(PyObject *self, PyObject *object)
{
    PyObject *path = dgp_path(object, "path");
    if (path == NULL)
        return NULL;
    const char *text = PyBytes_AsString(path);
    PyThreadState *python = PyEval_SaveThread();
    const dg_status status = dg_statistics_save(of(self), text);
    PyEval_RestoreThread(python);
    Py_DECREF(path);
    return status == DG_OK ? Py_NewRef(Py_None) : dgp_raise(status);
}

PyObject *dgp_statistics_load(PyObject *module, PyObject *object)
{
    (void)module;
    PyObject *path = dgp_path(object, "path");
    if (path == NULL)
        return NULL;
    dg_statistics *made = NULL;
    const char *text = PyBytes_AsString(path);
    PyThreadState *python = PyEval_SaveThread();
    const dg_status status = dg_statistics_load(&made, text);
    PyEval_RestoreThread(python);
    Py_DECREF(path);
    return wrap(statistics_type, status, made);
}

/* options() -> (block_cols, bits) */
static PyObject *statistics_options(PyObject *self, PyObject *unused)
{
    (void)unused;
    dg_statistics_options options = DG_STATISTICS_OPTIONS_INIT;
    const dg_status status = dg_statistics_get_options(of(self), &options);
    return status == DG_OK ? Py_BuildValue("(ii)", (int)options.block_cols, (int)options.bits)
                           : dgp_raise(status);
}

/* layers() -> the names, in order */
static PyObject *statistics_layers(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *list = PyList_New(0);
    dg_observed observed = DG_OBSERVED_INIT;
    for (int64_t i = 0; list != NULL && dg_statistics_layer_at(of(self), i, &observed) == DG_OK;
         i++) {
        PyObject *name = PyUnicode_FromString(observed.layer);
        if (name == NULL || PyList_Append(list, name) < 0)
            Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

/* A new tensor with a copy of `count` elements. */
static PyObject *array_of(const void *elements, int dtype, int64_t count)
{
    void *data;
    PyObject *made = dgp_tensor_host(dtype, 1, &count, &data);
    if (made != NULL && count > 0)
        memcpy(data, elements, (size_t)count * dgp_dtype_bytes(dtype));
    return made;
}

/* layer(name) -> (name, features, tokens, batches, non_finite, amax, amaxes, squares) */
static PyObject *statistics_layer(PyObject *self, PyObject *layer)
{
    dg_observed o = DG_OBSERVED_INIT;
    const char *name = dgp_name(layer, "layer");
    if (name == NULL)
        return NULL;
    const dg_status status = dg_statistics_layer(of(self), name, &o);
    if (status != DG_OK)
        return dgp_raise(status);
    PyObject *amaxes = array_of(o.amaxes, DG_F32, o.features);
    PyObject *squares = amaxes == NULL ? NULL : array_of(o.squares, DGP_FLOAT64, o.features);
    PyObject *result =
        squares == NULL ? NULL
                        : Py_BuildValue("(sLLLLfOO)", o.layer, (long long)o.features,
                                        (long long)o.tokens, (long long)o.batches,
                                        (long long)o.non_finite, (double)o.amax, amaxes, squares);
    Py_XDECREF(amaxes);
    Py_XDECREF(squares);
    return result;
}

/* choose(layer, granularity, choice, scale_dtype) -> (scale, quality) */
static PyObject *statistics_choose(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int32_t block[2];
    dg_scale_choice choice;
    dg_scale_quality quality = DG_SCALE_QUALITY_INIT;
    dg_observed o = DG_OBSERVED_INIT;
    if (dgp_check_count(count, 4) < 0)
        return NULL;
    const char *layer = dgp_name(args[0], "layer");
    const int dtype = layer == NULL ? -1 : dgp_dtype_from_object(args[3], "scale_dtype");
    if (dtype < 0 || dgp_block(args[1], "granularity", block) < 0 ||
        dgp_scale_choice(args[2], &choice) < 0)
        return NULL;
    dg_status status = dg_statistics_layer(of(self), layer, &o);
    if (status != DG_OK)
        return dgp_raise(status);
    dg_scale scale =
        dg_scale_of(NULL, dgp_library_dtype(dtype), 1, o.features, 0, block[1] < 0 ? 0 : block[1]);
    PyObject *made = dgp_tensor_host(dtype, 1, &scale.cols, &scale.data);
    if (made == NULL)
        return NULL;
    scale.block_rows = block[0];
    scale.block_cols = block[1];
    PyThreadState *python = PyEval_SaveThread();
    status = dg_statistics_choose(of(self), layer, &choice, &scale, &quality);
    PyEval_RestoreThread(python);
    PyObject *result = status == DG_OK ? Py_BuildValue("(ON)", made, dgp_scale_quality(&quality))
                                       : dgp_raise(status);
    Py_DECREF(made);
    return result;
}

/* judge(layer, scale, granularity, dtype) -> quality */
static PyObject *statistics_judge(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    static const int32_t no_phase[2] = {0, 0};
    dg_scale_quality quality = DG_SCALE_QUALITY_INIT;
    dgp_stream stream = {NULL, false};
    dgp_operand o;
    dg_scale scale;
    int32_t block[2];
    if (dgp_check_count(count, 4) < 0)
        return NULL;
    const char *layer = dgp_name(args[0], "layer");
    const int dtype = layer == NULL ? -1 : dgp_dtype_from_object(args[3], "dtype");
    if (dtype < 0 || dgp_block(args[2], "granularity", block) < 0 ||
        dgp_operand_take(args[1], "scale", &stream, &o) < 0)
        return NULL;
    PyObject *result = NULL;
    if (dgp_check_host(&o, "scale") == 0 &&
        dgp_as_scale(&o, "scale", block, no_phase, &scale) == 0) {
        PyThreadState *python = PyEval_SaveThread();
        const dg_status status =
            dg_statistics_judge(of(self), layer, &scale, dgp_library_dtype(dtype), &quality);
        PyEval_RestoreThread(python);
        result = status == DG_OK ? dgp_scale_quality(&quality) : dgp_raise(status);
    }
    dgp_operand_release(&o);
    return result;
}

/* histogram(layer) -> (magnitudes, counts) */
static PyObject *statistics_histogram(PyObject *self, PyObject *object)
{
    int64_t count = 0;
    const char *layer = dgp_name(object, "layer");
    if (layer == NULL)
        return NULL;
    dg_status status = dg_statistics_histogram(of(self), layer, NULL, &count);
    if (status != DG_OK)
        return dgp_raise(status);
    dg_bin *bins = malloc((size_t)count * sizeof *bins + 1);
    void *magnitude, *number;
    PyObject *magnitudes = dgp_tensor_host(DG_F32, 1, &count, &magnitude);
    PyObject *counts = dgp_tensor_host(DGP_FLOAT64, 1, &count, &number);
    PyObject *result = NULL;
    if (bins == NULL)
        PyErr_NoMemory();
    if (bins != NULL && magnitudes != NULL && counts != NULL) {
        status = dg_statistics_histogram(of(self), layer, bins, &count);
        for (int64_t i = 0; status == DG_OK && i < count; i++) {
            ((float *)magnitude)[i] = bins[i].magnitude;
            ((double *)number)[i] = bins[i].count;
        }
        result = status == DG_OK ? PyTuple_Pack(2, magnitudes, counts) : dgp_raise(status);
    }
    free(bins);
    Py_XDECREF(magnitudes);
    Py_XDECREF(counts);
    return result;
}

static PyMethodDef statistics_methods[] = {
    {"observe", (PyCFunction)(void (*)(void))statistics_observe, METH_FASTCALL, NULL},
    {"merge", statistics_merge, METH_O, NULL},
    {"save", statistics_save, METH_O, NULL},
    {"options", statistics_options, METH_NOARGS, NULL},
    {"layers", statistics_layers, METH_NOARGS, NULL},
    {"layer", statistics_layer, METH_O, NULL},
    {"choose", (PyCFunction)(void (*)(void))statistics_choose, METH_FASTCALL, NULL},
    {"judge", (PyCFunction)(void (*)(void))statistics_judge, METH_FASTCALL, NULL},
    {"histogram", statistics_histogram, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int dgp_statistics_init(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_new, statistics_make},
        {Py_tp_dealloc, statistics_free},
        {Py_tp_methods, statistics_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {"deepgemm._C.Statistics", sizeof(statistics_object), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};
    statistics_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return statistics_type == NULL
               ? -1
               : PyModule_AddObjectRef(module, "Statistics", (PyObject *)statistics_type);
}
