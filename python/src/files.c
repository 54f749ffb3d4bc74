/* SPDX-License-Identifier: MIT */
/* What calls that read and write files share: names, paths, and reports while they run. */
#include "extension.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static int refuse_zero(const char *argument, PyObject *object)
{
    return dgp_fail(DG_INVALID_ARGUMENT, "%s is %R: a zero byte would end it there", argument,
                    object);
}

const char *dgp_name(PyObject *object, const char *argument)
{
    Py_ssize_t length;
    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s is %R: expected a str", argument, object);
        return NULL;
    }
    const char *text = PyUnicode_AsUTF8AndSize(object, &length);
    if (text == NULL || strlen(text) == (size_t)length)
        return text;
    refuse_zero(argument, object);
    return NULL;
}

PyObject *dgp_path(PyObject *object, const char *argument)
{
    PyObject *path = PyOS_FSPath(object), *bytes = NULL;
    if (path == NULL)
        return NULL;
    bytes = PyUnicode_Check(path) ? PyUnicode_EncodeFSDefault(path) : Py_NewRef(path);
    if (bytes != NULL && strlen(PyBytes_AsString(bytes)) != (size_t)PyBytes_Size(bytes)) {
        refuse_zero(argument, object);
        Py_CLEAR(bytes);
    }
    Py_DECREF(path);
    return bytes;
}

const char **dgp_texts(PyObject *tuple, const char *argument, int32_t *count)
{
    const Py_ssize_t size = PyTuple_Size(tuple);
    const char **texts = size < 0 ? NULL : calloc((size_t)size + 1, sizeof *texts);
    if (size >= 0 && texts == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; texts != NULL && i < size; i++) {
        texts[i] = dgp_name(PyTuple_GetItem(tuple, i), argument);
        if (texts[i] == NULL) {
            free(texts);
            return NULL;
        }
    }
    *count = (int32_t)size;
    return texts;
}

bool dgp_report(dgp_reporter *reporter, const char *format, ...)
{
    const PyGILState_STATE state = PyGILState_Ensure();
    va_list values;
    va_start(values, format);
    PyObject *args = Py_VaBuildValue(format, values);
    va_end(values);
    PyObject *answer = args == NULL ? NULL : PyObject_CallObject(reporter->function, args);
    const bool go_on = answer != NULL && answer != Py_False;
    if (answer == NULL)
        PyErr_Fetch(&reporter->type, &reporter->value, &reporter->traceback);
    Py_XDECREF(args);
    Py_XDECREF(answer);
    PyGILState_Release(state);
    return go_on;
}

int dgp_reported(dgp_reporter *reporter, dg_status status)
{
    if (reporter->type != NULL)
        PyErr_Restore(reporter->type, reporter->value, reporter->traceback);
    else if (status != DG_OK)
        dgp_raise(status);
    else
        return 0;
    return -1;
}
