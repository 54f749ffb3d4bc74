/* SPDX-License-Identifier: MIT */
/* What calls that read and write files share: paths, lists of texts, and reports while they run. */
#include "extension.h"

#include <stdarg.h>
#include <stdlib.h>

PyObject *dgp_path(PyObject *object)
{
    PyObject *bytes = NULL;
    return PyUnicode_FSConverter(object, &bytes) ? bytes : NULL;
}

const char **dgp_texts(PyObject *tuple, const char *name, int32_t *count)
{
    const Py_ssize_t size = PyTuple_Size(tuple);
    const char **texts = size < 0 ? NULL : calloc((size_t)size + 1, sizeof *texts);
    Py_ssize_t length;
    if (size >= 0 && texts == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; texts != NULL && i < size; i++) {
        PyObject *text = PyTuple_GetItem(tuple, i);
        if (!PyUnicode_Check(text))
            PyErr_Format(PyExc_TypeError, "%s has %R: expected a str", name, text);
        else
            texts[i] = PyUnicode_AsUTF8AndSize(text, &length);
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
