/* SPDX-License-Identifier: MIT */
/* The exceptions: one class for each status, below deepgemm.Error. */
#include "extension.h"

#include <stdarg.h>
#include <string.h>

static PyObject *base;                      /* deepgemm.Error */
static PyObject *classes[DG_CANCELLED + 1]; /* by status */

/* Each also is the built-in exception that Python code would expect. */
static int add(PyObject *module, dg_status status, const char *name, PyObject *builtin,
               const char *doc)
{
    char qualified[64];
    PyOS_snprintf(qualified, sizeof qualified, "deepgemm.%s", name);
    PyObject *bases =
        builtin == PyExc_RuntimeError ? PyTuple_Pack(1, base) : PyTuple_Pack(2, base, builtin);
    PyObject *members = Py_BuildValue("{s:s}", "status", dg_status_name(status));
    PyObject *made = bases != NULL && members != NULL
                         ? PyErr_NewExceptionWithDoc(qualified, doc, bases, members)
                         : NULL;
    Py_XDECREF(bases);
    Py_XDECREF(members);
    classes[status] = made;
    return made == NULL ? -1 : PyModule_AddObjectRef(module, name, made);
}

int dgp_errors_init(PyObject *module)
{
    base = PyErr_NewExceptionWithDoc(
        "deepgemm.Error",
        "A call that the library refused or could not do.\n\n"
        "The message names the argument, its value and what is needed. `status` is the C\n"
        "library's name for the kind of failure, e.g. \"DG_INVALID_ARGUMENT\".",
        PyExc_RuntimeError, NULL);
    if (base == NULL || PyModule_AddObjectRef(module, "Error", base) < 0)
        return -1;
    const struct {
        dg_status status;
        const char *name;
        PyObject *builtin;
        const char *doc;
    } table[] = {
        {DG_INVALID_ARGUMENT, "InvalidArgument", PyExc_ValueError,
         "A size, stride or choice out of range, or an output that overlaps an input."},
        {DG_UNSUPPORTED_SHAPE, "UnsupportedShape", PyExc_ValueError,
         "Well formed, but the device has no kernel for the shape."},
        {DG_UNSUPPORTED_TYPE, "UnsupportedType", PyExc_TypeError,
         "A data type that the call does not take."},
        {DG_UNSUPPORTED_SCALE, "UnsupportedScale", PyExc_ValueError,
         "A scale granularity, type or value that the call does not take."},
        {DG_UNSUPPORTED_DEVICE, "UnsupportedDevice", PyExc_RuntimeError,
         "No such device, no driver, or a GPU that the build has no code for."},
        {DG_DEVICE_MISMATCH, "DeviceMismatch", PyExc_ValueError,
         "Operands, stream and context that are not on one device."},
        {DG_MISALIGNED, "Misaligned", PyExc_ValueError, "An address that no kernel can take."},
        {DG_NOT_PREPARED, "NotPrepared", PyExc_RuntimeError,
         "The call would have to load or allocate during graph capture: prepare it first."},
        {DG_OUT_OF_MEMORY, "OutOfMemory", PyExc_MemoryError,
         "No memory on the host or the device."},
        {DG_NOT_FOUND, "NotFound", PyExc_LookupError,
         "A file, a tensor or a kernel of that name does not exist."},
        {DG_IO_ERROR, "InputOutputError", PyExc_OSError, "The operating system refused."},
        {DG_BAD_FILE, "BadFile", PyExc_ValueError,
         "A file that is truncated, malformed or inconsistent."},
        {DG_DRIVER_ERROR, "DriverError", PyExc_RuntimeError, "The GPU driver failed."},
        {DG_CANCELLED, "Cancelled", PyExc_RuntimeError, "A callback asked to stop."},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (add(module, table[i].status, table[i].name, table[i].builtin, table[i].doc) < 0)
            return -1;
    return 0;
}

static PyObject *class_of(dg_status status)
{
    return status > DG_OK && status <= DG_CANCELLED ? classes[status] : base;
}

PyObject *dgp_message(const char *message)
{
    return PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "backslashreplace");
}

PyObject *dgp_raise(dg_status status)
{
    PyObject *message = dgp_message(dg_last_error());
    if (message != NULL)
        PyErr_SetObject(class_of(status), message);
    Py_XDECREF(message);
    return NULL;
}

int dgp_fail(dg_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    PyErr_FormatV(class_of(status), format, arguments);
    va_end(arguments);
    return -1;
}
