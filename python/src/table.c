/* SPDX-License-Identifier: MIT */
/* deepgemm.Table: GEMMs of any shapes in one launch. */
#include "extension.h"

#include <string.h>

typedef struct table_object {
    PyObject_HEAD dg_table *table;
    PyObject *context; /* kept alive, or None for a default context, which always lives */
    dg_device device;
    int32_t problems;
    /* The operands of each problem, alive while the table has them: as set, and as the device's
     * table has them since the last update. */
    PyObject *kept, *live;
} table_object;

static PyTypeObject *table_type;

/* _C.table(problems, m, n, k, a_dtype, b_dtype, out_dtype, scale_a_dtype, scale_b_dtype,
 * granularity, accumulation, device, context) -> Table */
PyObject *dgp_table_new(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    static const char *const accumulations[] = {"precise", "fast", NULL};
    static const char *const dtype_names[] = {"a_dtype", "b_dtype", "out_dtype", "scale_a_dtype",
                                              "scale_b_dtype"};
    int32_t block_a[2], block_b[2];
    int64_t sizes[4];
    dg_dtype dtypes[5];
    if (dgp_check_count(count, 13) < 0 || dgp_granularity(args[9], block_a, block_b) < 0)
        return NULL;
    for (int i = 0; i < 4; i++)
        sizes[i] = PyLong_AsLongLong(args[i]);
    for (int i = 0; i < 5 && !PyErr_Occurred(); i++) {
        const int dtype = dgp_dtype_from_object(args[4 + i], dtype_names[i]);
        dtypes[i] = dgp_library_dtype(dtype);
    }
    if (PyErr_Occurred())
        return NULL;
    if (sizes[0] < 0 || sizes[0] > INT32_MAX || sizes[1] < 0 || sizes[2] < 0 || sizes[3] < 0) {
        dgp_fail(DG_INVALID_ARGUMENT,
                 "problems, m, n, k are %lld, %lld, %lld, %lld: they cannot be "
                 "negative",
                 (long long)sizes[0], (long long)sizes[1], (long long)sizes[2],
                 (long long)sizes[3]);
        return NULL;
    }
    const int accumulation = dgp_choice(args[10], "accumulation", accumulations);
    const dg_device device = accumulation < 0 ? -2 : dgp_device_from_object(args[11]);
    dg_context *context = device < DG_CPU ? NULL : dgp_context_get(args[12], device);
    if (context == NULL)
        return NULL;
    const int64_t m = sizes[1], n = sizes[2], k = sizes[3];
    dg_gemm largest = DG_GEMM_INIT;
    largest.a = dg_matrix_of(NULL, dtypes[0], m, k);
    largest.b = dg_matrix_of(NULL, dtypes[1], n, k);
    largest.d = dg_matrix_of(NULL, dtypes[2], m, n);
    largest.scale_a = dg_scale_of(NULL, dtypes[3], m, k, block_a[0], block_a[1]);
    largest.scale_b = dg_scale_of(NULL, dtypes[4], n, k, block_b[0], block_b[1]);
    largest.accumulation = (dg_accumulation)accumulation;

    table_object *self = PyObject_New(table_object, table_type);
    if (self == NULL)
        return NULL;
    self->table = NULL;
    self->context = Py_NewRef(args[12]);
    self->device = device;
    self->problems = (int32_t)sizes[0];
    self->live = NULL;
    self->kept = PyList_New(0);
    for (int32_t i = 0; self->kept != NULL && i < self->problems; i++)
        if (PyList_Append(self->kept, Py_None) < 0)
            Py_CLEAR(self->kept);
    dg_status status = DG_OK;
    if (self->kept != NULL)
        status = dg_table_create(context, &largest, self->problems, &self->table);
    if (self->kept == NULL || status != DG_OK) {
        if (status != DG_OK)
            dgp_raise(status);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void table_free(PyObject *object)
{
    table_object *self = (table_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    dg_table_destroy(self->table);
    Py_XDECREF(self->kept);
    Py_XDECREF(self->live);
    Py_XDECREF(self->context);
    PyObject_Free(object);
    Py_DECREF(type);
}

/*
 * set(index, *arguments of _C.gemm but its last two) -> the stream that its operands' library is
 * at. set(index) empties the problem.
 */
static PyObject *table_set(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    table_object *self = (table_object *)object;
    dgp_gemm_call call;
    if (count != 1 && dgp_check_count(count, 1 + DGP_GEMM_ARGUMENTS) < 0)
        return NULL;
    const long index = PyLong_AsLong(args[0]);
    if (PyErr_Occurred())
        return NULL;
    const int32_t checked = index < 0 || index >= self->problems ? -1 : (int32_t)index;
    if (count > 1 && dgp_gemm_begin(&call, args + 1) < 0)
        return NULL;
    PyObject *kept = count > 1 ? PyTuple_New(DGP_GEMM_OPERANDS) : Py_NewRef(Py_None);
    for (int i = 0; kept != NULL && count > 1 && i < DGP_GEMM_OPERANDS; i++)
        PyTuple_SetItem(kept, i, Py_NewRef(args[1 + i]));
    dg_status status = DG_OK;
    if (kept != NULL)
        status = dg_table_set(self->table, checked, count > 1 ? &call.gemm : NULL);
    if (count > 1)
        dgp_gemm_end(&call);
    if (kept == NULL || status != DG_OK || PyList_SetItem(self->kept, index, Py_NewRef(kept)) < 0) {
        if (status != DG_OK)
            dgp_raise(status);
        Py_XDECREF(kept);
        return NULL;
    }
    Py_DECREF(kept);
    return PyLong_FromVoidPtr(count > 1 ? call.stream.handle : NULL);
}

/* With a stream, without the GIL. */
static PyObject *enqueue(PyObject *object, PyObject *stream_object,
                         dg_status (*call)(dg_table *, void *))
{
    dgp_stream stream;
    if (dgp_stream_from_object(stream_object, &stream) < 0)
        return NULL;
    PyThreadState *python = PyEval_SaveThread();
    const dg_status status = call(((table_object *)object)->table, stream.handle);
    PyEval_RestoreThread(python);
    return status == DG_OK ? Py_NewRef(Py_None) : dgp_raise(status);
}

static PyObject *table_update(PyObject *object, PyObject *stream)
{
    table_object *self = (table_object *)object;
    PyObject *live = PyList_GetSlice(self->kept, 0, self->problems), *before = self->live;
    PyObject *result = live == NULL ? NULL : enqueue(object, stream, dg_table_update);
    if (result != NULL)
        self->live = live;
    Py_XDECREF(result != NULL ? before : live);
    return result;
}

static PyObject *table_run(PyObject *self, PyObject *stream)
{
    return enqueue(self, stream, dg_table_run);
}

/* update_device(m, n, k, a, b, c, d, bias, scale_a, scale_b, scale_d, stream) */
static PyObject *table_update_device(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    static const char *const names[] = {"m",   "n",    "k",       "a",       "b",        "c",
                                        "out", "bias", "scale_a", "scale_b", "scale_out"};
    enum { VALUES = sizeof names / sizeof names[0], SIZES = 3 };
    table_object *self = (table_object *)object;
    dgp_operand o[VALUES];
    dgp_stream stream;
    if (dgp_check_count(count, VALUES + 1) < 0 ||
        dgp_stream_from_object(args[VALUES], &stream) < 0 ||
        dgp_operands_take(args, names, VALUES, &stream, o) < 0)
        return NULL;
    PyObject *result = NULL;
    const void *data[VALUES];
    for (int i = 0; i < VALUES; i++) {
        if (dgp_as_array(&o[i], names[i], i < SIZES ? DGP_INT32 : DGP_INT64, self->problems,
                         &data[i]) < 0)
            goto done;
        if (o[i].dtype != DG_NONE && o[i].device != self->device) {
            dgp_fail(DG_DEVICE_MISMATCH, "%s is not on the table's device", names[i]);
            goto done;
        }
    }
    const dg_table_values values = {sizeof values, data[0], data[1], data[2], data[3], data[4],
                                    data[5],       data[6], data[7], data[8], data[9], data[10]};
    PyThreadState *python = PyEval_SaveThread();
    const dg_status status = dg_table_update_device(self->table, &values, stream.handle);
    PyEval_RestoreThread(python);
    result = status == DG_OK ? Py_NewRef(Py_None) : dgp_raise(status);
done:
    dgp_operands_release(o, VALUES);
    return result;
}

static dg_status explain(void *table, char *text, size_t *bytes)
{
    return dg_table_explain(table, text, bytes);
}

static PyObject *table_explain(PyObject *self, PyObject *unused)
{
    (void)unused;
    return dgp_text(explain, ((table_object *)self)->table);
}

static PyObject *table_repr(PyObject *self)
{
    PyObject *device = dgp_device_to_object(((table_object *)self)->device);
    PyObject *text = device == NULL
                         ? NULL
                         : PyUnicode_FromFormat("<deepgemm._C.Table of %d problems, %U>",
                                                (int)((table_object *)self)->problems, device);
    Py_XDECREF(device);
    return text;
}

static PyMethodDef table_methods[] = {
    {"set", (PyCFunction)(void (*)(void))table_set, METH_FASTCALL, NULL},
    {"update", table_update, METH_O, NULL},
    {"update_device", (PyCFunction)(void (*)(void))table_update_device, METH_FASTCALL, NULL},
    {"run", table_run, METH_O, NULL},
    {"explain", table_explain, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int dgp_table_init(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, table_free},
        {Py_tp_repr, table_repr},
        {Py_tp_methods, table_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {
        "deepgemm._C.Table", sizeof(table_object), 0,
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    table_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return table_type == NULL ? -1 : PyModule_AddObjectRef(module, "Table", (PyObject *)table_type);
}
