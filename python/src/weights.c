/* SPDX-License-Identifier: MIT */
/* deepgemm.Weights: B and its scales, laid out for a device. */
#include "extension.h"

typedef struct weights_object {
    PyObject_HEAD dg_weights *weights;
    PyObject *context; /* kept alive, or None for a default context, which always lives */
    dg_device device;
    int64_t n, k;
    int dtype, scale_dtype;
    int32_t block[2], phase[2];
    int64_t scale_rows, scale_cols;
    size_t bytes;
} weights_object;

static PyTypeObject *weights_type;

bool dgp_weights_check(PyObject *object)
{
    return Py_TYPE(object) == weights_type;
}

const dg_weights *dgp_weights_get(PyObject *object, int64_t *n, int32_t block[2])
{
    const weights_object *self = (const weights_object *)object;
    *n = self->n;
    block[0] = self->block[0];
    block[1] = self->block[1];
    return self->weights;
}

/* Fills in a new object from its arguments: (b, scale_b, granularity, phase, context, stream). */
static int pack(weights_object *self, PyObject *const *args, dgp_operand o[2])
{
    static const char *const names[] = {"b", "scale_b"};
    dgp_stream stream;
    dg_matrix b;
    dg_scale scale;
    if (dgp_stream_from_object(args[5], &stream) < 0 ||
        dgp_operands_take(args, names, 2, &stream, o) < 0)
        return -1;
    if (dgp_block(args[2], "granularity", self->block) < 0 ||
        dgp_pair(args[3], "phase", self->phase) < 0 ||
        dgp_common_device(o, names, 2, &self->device) < 0 || dgp_as_matrix(&o[0], "b", &b) < 0 ||
        dgp_as_scale(&o[1], "scale_b", self->block, self->phase, &scale) < 0)
        return -1;
    dg_context *context = dgp_context_get(args[4], self->device);
    if (context == NULL)
        return -1;
    self->context = Py_NewRef(args[4]);
    self->n = b.rows;
    self->k = b.cols;
    self->dtype = o[0].dtype;
    self->scale_dtype = o[1].dtype;
    self->scale_rows = scale.rows;
    self->scale_cols = scale.cols;
    dg_status status = dg_weights_bytes(context, &b, &scale, &self->bytes);
    if (status == DG_OK) {
        PyThreadState *python = PyEval_SaveThread();
        status = dg_weights_pack(context, &b, &scale, NULL, 0, stream.handle, &self->weights);
        /* b and scale_b may go when the call returns, so on a GPU it waits. */
        if (status == DG_OK)
            status = dg_synchronize(context, stream.handle);
        PyEval_RestoreThread(python);
    }
    return status == DG_OK ? 0 : (dgp_raise(status), -1);
}

PyObject *dgp_weights_pack(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (dgp_check_count(count, 6) < 0)
        return NULL;
    weights_object *self = PyObject_New(weights_object, weights_type);
    if (self == NULL)
        return NULL;
    self->weights = NULL;
    self->context = NULL;
    dgp_operand o[2] = {{0}, {0}};
    const int result = pack(self, args, o);
    dgp_operands_release(o, 2);
    if (result < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void weights_free(PyObject *object)
{
    weights_object *self = (weights_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    dg_weights_destroy(self->weights);
    Py_XDECREF(self->context);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* unpack(out, scale_out, stream): fills given arrays, or new ones of the class of `like`. */
static PyObject *weights_unpack(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    weights_object *self = (weights_object *)object;
    static const char *const names[] = {"out", "scale_out"};
    dgp_operand o[2];
    dgp_stream stream = {NULL, false};
    if (count > 2) {
        PyErr_SetString(PyExc_TypeError, "unpack() takes out and scale_out");
        return NULL;
    }
    const int64_t shape[2] = {self->n, self->k},
                  scale_shape[2] = {self->scale_rows, self->scale_cols};
    PyObject *made[2], *result = NULL;
    made[0] = count > 0 && args[0] != Py_None
                  ? Py_NewRef(args[0])
                  : dgp_tensor_new(self->dtype, 2, shape, self->device, NULL);
    made[1] = count > 1 && args[1] != Py_None
                  ? Py_NewRef(args[1])
                  : dgp_tensor_new(self->scale_dtype, 2, scale_shape, self->device, NULL);
    if (made[0] != NULL && made[1] != NULL && dgp_operands_take(made, names, 2, &stream, o) == 0) {
        dg_matrix b;
        dg_scale scale;
        dg_context *context = dgp_context_get(self->context, self->device);
        if (context != NULL && dgp_check_writable(&o[0], "out") == 0 &&
            dgp_check_writable(&o[1], "scale_out") == 0 && dgp_as_matrix(&o[0], "out", &b) == 0 &&
            dgp_as_scale(&o[1], "scale_out", self->block, self->phase, &scale) == 0) {
            dg_status status;
            PyThreadState *python = PyEval_SaveThread();
            status = dg_weights_unpack(context, self->weights, &b, &scale, stream.handle);
            PyEval_RestoreThread(python);
            result = status == DG_OK ? PyTuple_Pack(2, made[0], made[1]) : dgp_raise(status);
        }
        dgp_operands_release(o, 2);
    }
    Py_XDECREF(made[0]);
    Py_XDECREF(made[1]);
    return result;
}

static PyObject *get_shape(PyObject *self, void *unused)
{
    (void)unused;
    return Py_BuildValue("(LL)", (long long)((weights_object *)self)->n,
                         (long long)((weights_object *)self)->k);
}

static PyObject *get_granularity(PyObject *self, void *unused)
{
    (void)unused;
    const int32_t *block = ((weights_object *)self)->block;
    return Py_BuildValue("(ii)", (int)block[0], (int)block[1]);
}

static PyObject *get_dtype(PyObject *self, void *unused)
{
    (void)unused;
    return PyUnicode_FromString(dgp_dtype_name(((weights_object *)self)->dtype));
}

static PyObject *get_device(PyObject *self, void *unused)
{
    (void)unused;
    return dgp_device_to_object(((weights_object *)self)->device);
}

static PyObject *get_bytes(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(((weights_object *)self)->bytes);
}

static PyObject *weights_repr(PyObject *object)
{
    const weights_object *self = (weights_object *)object;
    PyObject *device = dgp_device_to_object(self->device);
    PyObject *text =
        device == NULL ? NULL
                       : PyUnicode_FromFormat("<deepgemm.Weights [%lld, %lld], %s, %U, %zu bytes>",
                                              (long long)self->n, (long long)self->k,
                                              dgp_dtype_name(self->dtype), device, self->bytes);
    Py_XDECREF(device);
    return text;
}

static PyGetSetDef weights_members[] = {
    {"shape", get_shape, NULL, "(N, K).", NULL},
    {"granularity", get_granularity, NULL, "(rows, columns) that one scale covers; 0: all.", NULL},
    {"dtype", get_dtype, NULL, "The name of the codes' type.", NULL},
    {"device", get_device, NULL, "\"cpu\" or \"cuda:<n>\".", NULL},
    {"nbytes", get_bytes, NULL, "Bytes of memory in use.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef weights_methods[] = {
    {"unpack", (PyCFunction)(void (*)(void))weights_unpack, METH_FASTCALL,
     "unpack(out=None, scale_out=None, /)\n--\n\n"
     "The codes and the scales as they were packed: (out, scale_out), new ones as\n"
     "deepgemm.Tensor. On a GPU the work is enqueued on the current stream of `out`'s library."},
    {NULL, NULL, 0, NULL},
};

int dgp_weights_init(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, weights_free},
        {Py_tp_repr, weights_repr},
        {Py_tp_getset, weights_members},
        {Py_tp_methods, weights_methods},
        {Py_tp_doc, "B and its scales, laid out for a device by pack()."},
        {0, NULL},
    };
    static PyType_Spec spec = {
        "deepgemm.Weights", sizeof(weights_object), 0,
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    weights_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return weights_type == NULL
               ? -1
               : PyModule_AddObjectRef(module, "Weights", (PyObject *)weights_type);
}
