/* SPDX-License-Identifier: MIT */
/* deepgemm.Context, and the contexts that calls without one use: one for each device. */
#include "extension.h"

#include <stdlib.h>
#include <string.h>

typedef struct context_object {
    PyObject_HEAD dg_context *context;
    dg_device device;
} context_object;

static PyTypeObject *context_type;

/* ---- devices ------------------------------------------------------------------------- */

dg_device dgp_device_from_object(PyObject *object)
{
    const dg_device bad = -2;
    if (PyLong_Check(object)) {
        const long ordinal = PyLong_AsLong(object);
        if (ordinal >= 0 && ordinal <= INT32_MAX)
            return (dg_device)ordinal;
        if (PyErr_Occurred())
            PyErr_Clear();
    } else {
        PyObject *text = PyObject_Str(object); /* torch.device("cuda:1") reads "cuda:1" */
        const char *utf8 = text != NULL ? dgp_name(text, "device") : NULL;
        dg_device device = bad;
        if (utf8 != NULL && strcmp(utf8, "cpu") == 0)
            device = DG_CPU;
        else if (utf8 != NULL && strcmp(utf8, "cuda") == 0)
            device = 0;
        else if (utf8 != NULL && strncmp(utf8, "cuda:", 5) == 0 && utf8[5] >= '0' &&
                 utf8[5] <= '9' && strlen(utf8) <= 10 &&
                 strspn(utf8 + 5, "0123456789") == strlen(utf8 + 5))
            device = atoi(utf8 + 5);
        Py_XDECREF(text);
        if (device != bad || PyErr_Occurred())
            return device;
    }
    PyErr_Format(PyExc_ValueError, "device is %R: expected \"cpu\", \"cuda\", \"cuda:<n>\" or <n>",
                 object);
    return bad;
}

PyObject *dgp_device_to_object(dg_device device)
{
    return device == DG_CPU ? PyUnicode_FromString("cpu") : PyUnicode_FromFormat("cuda:%d", device);
}

/* ---- default contexts ---------------------------------------------------------------- */

enum { most_devices = 64 };
/* Made when first used and kept: index 0 is the CPU. The GIL guards them. */
static dg_context *defaults[1 + most_devices];

static dg_context *default_context(dg_device device)
{
    if (device >= most_devices) {
        dgp_fail(DG_UNSUPPORTED_DEVICE, "device is cuda:%d: up to %d devices are supported", device,
                 (int)most_devices);
        return NULL;
    }
    dg_context **found = &defaults[1 + device];
    if (*found == NULL) {
        const dg_status status = dg_create(found, device, NULL);
        if (status != DG_OK) {
            dgp_raise(status);
            return NULL;
        }
    }
    return *found;
}

dg_context *dgp_context_get(PyObject *object, dg_device device)
{
    if (object == Py_None)
        return default_context(device);
    if (!PyObject_TypeCheck(object, context_type)) {
        PyErr_Format(PyExc_TypeError, "context is a %R: expected a deepgemm.Context",
                     Py_TYPE(object));
        return NULL;
    }
    const context_object *self = (context_object *)object;
    if (self->device == device)
        return self->context;
    PyObject *theirs = dgp_device_to_object(device), *ours = dgp_device_to_object(self->device);
    if (theirs != NULL && ours != NULL)
        dgp_fail(DG_DEVICE_MISMATCH, "context is for %U, but the operands are on %U", ours, theirs);
    Py_XDECREF(theirs);
    Py_XDECREF(ours);
    return NULL;
}

dg_device dgp_context_device(PyObject *object)
{
    return object != Py_None && PyObject_TypeCheck(object, context_type)
               ? ((context_object *)object)->device
               : DG_CPU;
}

/* ---- the type ------------------------------------------------------------------------ */

/* A name that may be left out, or None: then it is NULL. */
static int take_name(PyObject *object, const char *argument, const char **name)
{
    *name = object == NULL || object == Py_None ? NULL : dgp_name(object, argument);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *context_make(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"device",          "threads",       "isa", "kernel",
                            "batch_invariant", "serial_launch", NULL};
    PyObject *device_object = NULL, *isa = NULL, *kernel = NULL;
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    int batch_invariant = 0, serial_launch = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O$iOOpp:Context", names, &device_object,
                                     &options.threads, &isa, &kernel, &batch_invariant,
                                     &serial_launch) ||
        take_name(isa, "isa", &options.isa) < 0 || take_name(kernel, "kernel", &options.kernel) < 0)
        return NULL;
    const dg_device device = device_object == NULL ? DG_CPU : dgp_device_from_object(device_object);
    if (device < DG_CPU)
        return NULL;
    options.batch_invariant = batch_invariant;
    options.serial_launch = serial_launch;
    context_object *self = PyObject_New(context_object, type);
    if (self == NULL)
        return NULL;
    self->device = device;
    self->context = NULL;
    dg_status status;
    PyThreadState *python = PyEval_SaveThread();
    status = dg_create(&self->context, device, &options);
    PyEval_RestoreThread(python);
    if (status != DG_OK) {
        dgp_raise(status);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void context_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    dg_destroy(((context_object *)object)->context);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* False with an exception. */
static bool get_info(PyObject *self, dg_device_info *info)
{
    const dg_status status = dg_get_device_info(((context_object *)self)->context, info);
    if (status != DG_OK)
        dgp_raise(status);
    return status == DG_OK;
}

static PyObject *context_get_device(PyObject *self, void *unused)
{
    (void)unused;
    return dgp_device_to_object(((context_object *)self)->device);
}

static PyObject *context_get_name(PyObject *self, void *unused)
{
    (void)unused;
    dg_device_info info;
    return get_info(self, &info) ? PyUnicode_FromString(info.name) : NULL;
}

static PyObject *context_get_architecture(PyObject *self, void *unused)
{
    (void)unused;
    dg_device_info info;
    return get_info(self, &info) ? PyUnicode_FromString(info.architecture) : NULL;
}

static PyObject *context_get_units(PyObject *self, void *unused)
{
    (void)unused;
    dg_device_info info;
    return get_info(self, &info) ? PyLong_FromLong(info.units) : NULL;
}

static PyObject *context_kernel_usable(PyObject *self, PyObject *name)
{
    const char *utf8 = dgp_name(name, "name");
    if (utf8 == NULL)
        return NULL;
    const dg_status status = dg_kernel_usable(((context_object *)self)->context, utf8);
    if (status == DG_OK)
        return Py_NewRef(Py_None);
    return status == DG_NOT_FOUND ? dgp_raise(status) : dgp_message(dg_last_error());
}

static PyObject *context_synchronize(PyObject *self, PyObject *stream_object)
{
    dgp_stream stream;
    dg_status status;
    if (dgp_stream_from_object(stream_object, &stream) < 0)
        return NULL;
    PyThreadState *python = PyEval_SaveThread();
    status = dg_synchronize(((context_object *)self)->context, stream.handle);
    PyEval_RestoreThread(python);
    return status == DG_OK ? Py_NewRef(Py_None) : dgp_raise(status);
}

static PyObject *context_repr(PyObject *self)
{
    dg_device_info info;
    if (!get_info(self, &info))
        return NULL;
    PyObject *device = dgp_device_to_object(((context_object *)self)->device);
    PyObject *text = device == NULL
                         ? NULL
                         : PyUnicode_FromFormat("<deepgemm.Context %U: %s, %s, %d units>", device,
                                                info.name, info.architecture, (int)info.units);
    Py_XDECREF(device);
    return text;
}

static PyGetSetDef context_members[] = {
    {"device", context_get_device, NULL, "\"cpu\" or \"cuda:<n>\".", NULL},
    {"name", context_get_name, NULL, "The processor's or GPU's name.", NULL},
    {"architecture", context_get_architecture, NULL,
     "The instruction set in use, e.g. \"avx512_bf16\" or \"sm_90a\".", NULL},
    {"units", context_get_units, NULL, "Threads used, or multiprocessors.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef context_methods[] = {
    {"why_not", context_kernel_usable, METH_O,
     "why_not(name)\n--\n\n"
     "Why this context cannot run the kernel of that name; None when it can.\n\n"
     "Raises NotFound when there is no such kernel (kernels() lists them)."},
    {"synchronize", context_synchronize, METH_O,
     "synchronize(stream)\n--\n\n"
     "Waits for the work that was enqueued on a stream (None: the default stream)."},
    {NULL, NULL, 0, NULL},
};

int dgp_context_init(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_new, context_make},
        {Py_tp_dealloc, context_free},
        {Py_tp_repr, context_repr},
        {Py_tp_getset, context_members},
        {Py_tp_methods, context_methods},
        {Py_tp_doc,
         "Context(device=\"cpu\", *, threads=0, isa=None, kernel=None, "
         "batch_invariant=False, serial_launch=False)\n--\n\n"
         "A device with options. Calls without one use a default context of their operands' "
         "device.\n"
         "\n"
         "Parameters\n"
         "----------\n"
         "device : str, int or torch.device\n"
         "    \"cpu\", or \"cuda:<n>\" or n for a GPU.\n"
         "threads : int\n"
         "    CPU: the most threads of a call; 0 takes OpenMP's default. Results do not depend on "
         "it.\n"
         "isa : str, optional\n"
         "    CPU: the widest instruction set to use: \"generic\", \"avx2\", \"avx512\",\n"
         "    \"avx512_bf16\". None: what the machine has.\n"
         "kernel : str, optional\n"
         "    Use this GEMM kernel (a name of `kernels()`) and no other.\n"
         "batch_invariant : bool\n"
         "    A row of the result has the same bits whatever M is. Always so on the CPU.\n"
         "serial_launch : bool\n"
         "    GPU: a kernel begins when those before it in its stream have ended, not a little "
         "earlier.\n"
         "\n"
         "Notes\n"
         "-----\n"
         "Any number of threads may use a context, on a GPU each with its own stream."},
        {0, NULL},
    };
    static PyType_Spec spec = {"deepgemm.Context", sizeof(context_object), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};
    context_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return context_type == NULL
               ? -1
               : PyModule_AddObjectRef(module, "Context", (PyObject *)context_type);
}
