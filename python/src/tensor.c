/* SPDX-License-Identifier: MIT */
/*
 * deepgemm.Tensor: memory with a type, for arrays of libraries that have no FP8 types, and for
 * results where no array library is there. It shares memory and exports DLPack; it computes
 * nothing.
 */
#include "extension.h"

#include <stdlib.h>
#include <string.h>

typedef struct tensor_object {
    PyObject_HEAD dgp_operand view; /* with what it took over from DLPack */
    PyObject *base;                 /* the object whose memory this is, or NULL */
    dg_context *memory;             /* the context that owns view.data, or NULL */
    void *stream;                   /* where it was last written, on a GPU */
} tensor_object;

static PyTypeObject *tensor_type;

bool dgp_tensor_check(PyObject *object)
{
    return Py_TYPE(object) == tensor_type;
}

static tensor_object *make(void)
{
    tensor_object *self = PyObject_New(tensor_object, tensor_type);
    if (self != NULL) {
        self->view = (dgp_operand){0};
        self->base = NULL;
        self->memory = NULL;
        self->stream = NULL;
    }
    return self;
}

static void tensor_free(PyObject *object)
{
    tensor_object *self = (tensor_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    dgp_operand_release(&self->view);
    Py_XDECREF(self->base);
    if (self->memory != NULL)
        dg_memory_free(self->memory, self->view.data);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* Waits until what was written to the tensor is there for every stream. */
static int wait_for_writer(const tensor_object *self)
{
    dg_context *context = dgp_context_get(Py_None, self->view.device);
    if (context == NULL)
        return -1;
    dg_status status;
    PyThreadState *python = PyEval_SaveThread();
    status = dg_synchronize(context, self->stream);
    PyEval_RestoreThread(python);
    return status == DG_OK ? 0 : (dgp_raise(status), -1);
}

int dgp_tensor_describe(PyObject *tensor, dgp_stream *stream, dgp_operand *operand)
{
    const tensor_object *self = (tensor_object *)tensor;
    *operand = self->view;
    operand->exchange = NULL;
    operand->managed = NULL; /* these stay with the tensor */
    operand->versioned = NULL;
    if (operand->device == DG_CPU)
        return 0;
    if (!stream->known)
        *stream = (dgp_stream){self->stream, true};
    return stream->handle == self->stream ? 0 : wait_for_writer(self);
}

void dgp_tensor_written(PyObject *object, void *stream)
{
    if (dgp_tensor_check(object))
        ((tensor_object *)object)->stream = stream;
}

PyObject *dgp_tensor_new(int dtype, int32_t rank, const int64_t *shape, dg_device device,
                         void *stream)
{
    dg_context *context = dgp_context_get(Py_None, device);
    tensor_object *self = context != NULL ? make() : NULL;
    if (self == NULL)
        return NULL;
    self->view.dtype = dtype;
    self->view.device = device;
    self->view.rank = rank;
    self->stream = stream;
    int64_t bytes = (int64_t)dgp_dtype_bytes(dtype);
    for (int i = rank - 1; i >= 0; i--) {
        self->view.shape[i] = shape[i];
        self->view.strides[i] = i == rank - 1 ? 1 : self->view.strides[i + 1] * shape[i + 1];
        if (shape[i] < 0 || __builtin_mul_overflow(bytes, shape[i], &bytes)) {
            dgp_fail(DG_INVALID_ARGUMENT, "shape has a size that is negative or too large");
            Py_DECREF(self);
            return NULL;
        }
    }
    const dg_status status = dg_memory_alloc(context, (size_t)bytes, &self->view.data);
    if (status != DG_OK) {
        dgp_raise(status);
        Py_DECREF(self);
        return NULL;
    }
    self->memory = context;
    return (PyObject *)self;
}

PyObject *dgp_tensor_host(int dtype, int32_t rank, const int64_t *shape, void **data)
{
    PyObject *made = dgp_tensor_new(dtype, rank, shape, DG_CPU, NULL);
    *data = made == NULL ? NULL : ((tensor_object *)made)->view.data;
    return made;
}

PyObject *dgp_tensor_view(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (dgp_check_count(count, 2) < 0)
        return NULL;
    dgp_stream stream = {NULL, false};
    dgp_operand view;
    if (dgp_operand_take(args[0], "data", &stream, &view) < 0)
        return NULL;
    int dtype = view.dtype;
    if (args[1] != Py_None && (dtype = dgp_dtype_from_object(args[1], "dtype")) < 0)
        goto fail;
    if (view.dtype == DG_NONE || dgp_dtype_bytes(dtype) != dgp_dtype_bytes(view.dtype)) {
        dgp_fail(DG_INVALID_ARGUMENT, "data has elements of %zu bytes, but %s has %zu",
                 dgp_dtype_bytes(view.dtype), dgp_dtype_name(dtype), dgp_dtype_bytes(dtype));
        goto fail;
    }
    tensor_object *self = make();
    if (self == NULL)
        goto fail;
    self->view = view;
    self->view.exchange = NULL;
    self->view.dtype = dtype;
    self->base = Py_NewRef(args[0]);
    self->stream = stream.handle;
    return (PyObject *)self;
fail:
    dgp_operand_release(&view);
    return NULL;
}

PyObject *dgp_tensor_empty(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    int64_t shape[DGP_MAX_RANK];
    if (dgp_check_count(count, 3) < 0)
        return NULL;
    PyObject *sizes = PySequence_Tuple(args[0]);
    if (sizes == NULL)
        return NULL;
    const Py_ssize_t rank = PyTuple_Size(sizes);
    for (Py_ssize_t i = 0; i < rank && i < DGP_MAX_RANK; i++)
        shape[i] = PyLong_AsLongLong(PyTuple_GetItem(sizes, i));
    Py_DECREF(sizes);
    if (PyErr_Occurred())
        return NULL;
    if (rank > DGP_MAX_RANK) {
        dgp_fail(DG_INVALID_ARGUMENT, "shape has %zd dimensions: at most %d are taken", rank,
                 (int)DGP_MAX_RANK);
        return NULL;
    }
    const int dtype = dgp_dtype_from_object(args[1], "dtype");
    const dg_device device = dtype < 0 ? -2 : dgp_device_from_object(args[2]);
    return device < DG_CPU ? NULL : dgp_tensor_new(dtype, (int32_t)rank, shape, device, NULL);
}

/* ---- DLPack out ---------------------------------------------------------------------- */

/* What an exported capsule owns: the tensor's description, and a reference that keeps it alive. */
typedef struct exported {
    union {
        DLManagedTensor plain;
        DLManagedTensorVersioned versioned;
    } managed;
    PyObject *tensor;
} exported;

static void release(exported *self)
{
    if (!Py_IsInitialized()) /* a consumer that outlives Python */
        return;
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(self->tensor);
    PyGILState_Release(state);
    free(self);
}

static void delete_plain(DLManagedTensor *managed)
{
    release(managed->manager_ctx);
}

static void delete_versioned(DLManagedTensorVersioned *managed)
{
    release(managed->manager_ctx);
}

/* A capsule that nobody took over. */
static void drop_capsule(PyObject *capsule)
{
    const char *name = PyCapsule_GetName(capsule);
    if (name != NULL && (strcmp(name, "dltensor") == 0 || strcmp(name, "dltensor_versioned") == 0))
        release(PyCapsule_GetContext(capsule));
}

/* The consumer's stream must see what was written to the tensor. */
static int hand_over(const tensor_object *self, PyObject *stream_object)
{
    if (self->view.device == DG_CPU) {
        if (stream_object != NULL && stream_object != Py_None)
            return dgp_fail(DG_INVALID_ARGUMENT, "stream is %R: a tensor on the CPU has none",
                            stream_object);
        return 0;
    }
    long long stream = 1; /* DLPack: 1 is the legacy default stream, -1 asks for nothing */
    if (stream_object != NULL && stream_object != Py_None)
        stream = PyLong_AsLongLong(stream_object);
    if (stream == -1 || (void *)(uintptr_t)(stream == 1 ? 0 : stream) == self->stream)
        return PyErr_Occurred() ? -1 : 0;
    return wait_for_writer(self);
}

static PyObject *tensor_dlpack(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    tensor_object *self = (tensor_object *)object;
    PyObject *stream = NULL, *version = NULL, *device = NULL, *copy = NULL;
    int major = 0, minor = 0, type, ordinal;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO:__dlpack__", names, &stream, &version,
                                     &device, &copy))
        return NULL;
    if (version != NULL && version != Py_None && !PyArg_ParseTuple(version, "ii", &major, &minor))
        return NULL;
    const int own_type = self->view.device == DG_CPU ? kDLCPU : kDLCUDA;
    const int own_ordinal = self->view.device == DG_CPU ? 0 : self->view.device;
    if (device != NULL && device != Py_None) {
        if (!PyArg_ParseTuple(device, "ii", &type, &ordinal))
            return NULL;
        if (type != own_type || ordinal != own_ordinal) {
            PyErr_SetString(PyExc_BufferError, "a deepgemm.Tensor stays on its device");
            return NULL;
        }
    }
    if (copy == Py_True || (self->view.read_only && major < 1)) {
        PyErr_SetString(PyExc_BufferError,
                        copy == Py_True ? "a deepgemm.Tensor is exported without a copy"
                                        : "read-only memory needs DLPack 1: max_version=(1, 0)");
        return NULL;
    }
    if (hand_over(self, stream) < 0)
        return NULL;
    exported *made = calloc(1, sizeof *made);
    if (made == NULL)
        return PyErr_NoMemory();
    const DLTensor tensor = {
        .data = self->view.data,
        .device = {own_type, own_ordinal},
        .ndim = self->view.rank,
        .dtype = dgp_dtype_to_dlpack(self->view.dtype),
        .shape = self->view.shape,
        .strides = self->view.strides,
    };
    void *managed;
    if (major >= 1) {
        made->managed.versioned = (DLManagedTensorVersioned){
            .version = {1, 0},
            .manager_ctx = made,
            .deleter = delete_versioned,
            .flags = self->view.read_only ? DLPACK_FLAG_READ_ONLY : 0,
            .dl_tensor = tensor,
        };
        managed = &made->managed.versioned;
    } else {
        made->managed.plain = (DLManagedTensor){tensor, made, delete_plain};
        managed = &made->managed.plain;
    }
    PyObject *capsule =
        PyCapsule_New(managed, major >= 1 ? "dltensor_versioned" : "dltensor", NULL);
    if (capsule == NULL) {
        free(made);
        return NULL;
    }
    made->tensor = Py_NewRef(object);
    PyCapsule_SetContext(capsule, made);
    PyCapsule_SetDestructor(capsule, drop_capsule);
    return capsule;
}

static PyObject *tensor_dlpack_device(PyObject *self, PyObject *unused)
{
    (void)unused;
    const dg_device device = ((tensor_object *)self)->view.device;
    return device == DG_CPU ? Py_BuildValue("(ii)", kDLCPU, 0)
                            : Py_BuildValue("(ii)", kDLCUDA, (int)device);
}

/* ---- the type ------------------------------------------------------------------------ */

static PyObject *tensor_numpy(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *arrays = PyImport_ImportModule("deepgemm._arrays");
    PyObject *array = arrays == NULL ? NULL : PyObject_CallMethod(arrays, "to_numpy", "O", self);
    Py_XDECREF(arrays);
    return array;
}

PyObject *dgp_sizes(const int64_t *sizes, int32_t rank)
{
    PyObject *tuple = PyTuple_New(rank);
    for (int i = 0; tuple != NULL && i < rank; i++) {
        PyObject *size = PyLong_FromLongLong(sizes[i]);
        if (size == NULL || PyTuple_SetItem(tuple, i, size) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *get_shape(PyObject *self, void *unused)
{
    (void)unused;
    const dgp_operand *view = &((tensor_object *)self)->view;
    return dgp_sizes(view->shape, view->rank);
}

static PyObject *get_strides(PyObject *self, void *unused)
{
    (void)unused;
    const dgp_operand *view = &((tensor_object *)self)->view;
    return dgp_sizes(view->strides, view->rank);
}

static PyObject *get_dtype(PyObject *self, void *unused)
{
    (void)unused;
    return PyUnicode_FromString(dgp_dtype_name(((tensor_object *)self)->view.dtype));
}

static PyObject *get_device(PyObject *self, void *unused)
{
    (void)unused;
    return dgp_device_to_object(((tensor_object *)self)->view.device);
}

static PyObject *get_data_ptr(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromVoidPtr(((tensor_object *)self)->view.data);
}

static PyObject *tensor_repr(PyObject *self)
{
    PyObject *shape = get_shape(self, NULL), *device = get_device(self, NULL);
    PyObject *text =
        shape == NULL || device == NULL
            ? NULL
            : PyUnicode_FromFormat("<deepgemm.Tensor %R, %s, %U>", shape,
                                   dgp_dtype_name(((tensor_object *)self)->view.dtype), device);
    Py_XDECREF(shape);
    Py_XDECREF(device);
    return text;
}

static PyGetSetDef tensor_members[] = {
    {"shape", get_shape, NULL, "The sizes of its dimensions.", NULL},
    {"strides", get_strides, NULL, "The strides of its dimensions, in elements.", NULL},
    {"dtype", get_dtype, NULL, "The name of its elements' type, e.g. \"float8_e4m3fn\".", NULL},
    {"device", get_device, NULL, "\"cpu\" or \"cuda:<n>\".", NULL},
    {"data_ptr", get_data_ptr, NULL, "The address of its first element.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef tensor_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))tensor_dlpack, METH_VARARGS | METH_KEYWORDS,
     "The tensor as a DLPack capsule, without a copy."},
    {"__dlpack_device__", tensor_dlpack_device, METH_NOARGS,
     "DLPack's type and number of the device."},
    {"numpy", tensor_numpy, METH_NOARGS,
     "numpy()\n--\n\n"
     "The tensor as a NumPy array that shares its memory (CPU only; types that NumPy does not "
     "have\n"
     "come from ml_dtypes)."},
    {NULL, NULL, 0, NULL},
};

int dgp_tensor_init(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, tensor_free},
        {Py_tp_repr, tensor_repr},
        {Py_tp_getset, tensor_members},
        {Py_tp_methods, tensor_methods},
        {Py_tp_doc,
         "Memory with a type. `tensor()` makes one of any array, `empty()` a new one.\n\n"
         "It shares memory and exports DLPack; it computes nothing."},
        {0, NULL},
    };
    static PyType_Spec spec = {
        "deepgemm.Tensor", sizeof(tensor_object), 0,
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    tensor_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return tensor_type == NULL ? -1
                               : PyModule_AddObjectRef(module, "Tensor", (PyObject *)tensor_type);
}
