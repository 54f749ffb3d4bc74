/* SPDX-License-Identifier: MIT */
/* New arrays for results, of the library that an operand came from, and scratch memory. */
#include "extension.h"

static void set_error(void *context, const char *kind, const char *message)
{
    (void)context;
    PyErr_Format(PyExc_RuntimeError, "%s: %s", kind, message);
}

/* Memory of the framework's allocator, described in *operand; NULL with an exception. */
static DLManagedTensorVersioned *allocate(const dgp_operand *description, int dtype, int32_t rank,
                                          const int64_t *shape, dgp_operand *operand)
{
    const DLPackExchangeAPI *exchange = description->exchange;
    *operand = (dgp_operand){
        .dtype = dtype,
        .device = description->device,
        .rank = rank,
        .exchange = exchange,
    };
    for (int i = rank - 1; i >= 0; i--) {
        operand->shape[i] = shape[i];
        operand->strides[i] = i == rank - 1 ? 1 : operand->strides[i + 1] * shape[i + 1];
    }
    DLTensor prototype = {
        .device = {description->device == DG_CPU ? kDLCPU : kDLCUDA,
                   description->device == DG_CPU ? 0 : description->device},
        .ndim = rank,
        .dtype = dgp_dtype_to_dlpack(dtype),
        .shape = operand->shape,
        .strides = operand->strides,
    };
    DLManagedTensorVersioned *made = NULL;
    if (exchange->managed_tensor_allocator(&prototype, &made, NULL, set_error) == 0 && made != NULL)
        operand->data = (char *)made->dl_tensor.data + made->dl_tensor.byte_offset;
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "the framework could not allocate the result");
    return PyErr_Occurred() ? NULL : made;
}

static PyObject *output_of_framework(const dgp_operand *description, int dtype, int32_t rank,
                                     const int64_t *shape, dgp_operand *operand)
{
    void *object = NULL;
    DLManagedTensorVersioned *made = allocate(description, dtype, rank, shape, operand);
    return made != NULL &&
                   operand->exchange->managed_tensor_to_py_object_no_sync(made, &object) == 0
               ? object
               : NULL;
}

/* A NumPy array where `like` is one; else NULL, with an exception only on failure. */
static PyObject *output_of_numpy(PyObject *like, int dtype, int32_t rank, const int64_t *shape)
{
    PyObject *arrays = PyImport_ImportModule("deepgemm._arrays");
    PyObject *sizes = arrays == NULL ? NULL : dgp_sizes(shape, rank);
    PyObject *array = sizes == NULL ? NULL
                                    : PyObject_CallMethod(arrays, "empty_numpy", "OOs", like, sizes,
                                                          dgp_dtype_name(dtype));
    Py_XDECREF(sizes);
    Py_XDECREF(arrays);
    if (array == Py_None)
        Py_CLEAR(array);
    return array;
}

PyObject *dgp_output_new(PyObject *like, const dgp_operand *description, int dtype, int32_t rank,
                         const int64_t *shape, void *stream, dgp_operand *operand)
{
    if (description->exchange != NULL)
        return output_of_framework(description, dtype, rank, shape, operand);
    PyObject *made = NULL;
    if (!dgp_tensor_check(like) && description->device == DG_CPU)
        made = output_of_numpy(like, dtype, rank, shape);
    if (made == NULL && !PyErr_Occurred())
        made = dgp_tensor_new(dtype, rank, shape, description->device, stream);
    dgp_stream known = {stream, true};
    if (made != NULL && dgp_operand_take(made, "result", &known, operand) < 0)
        Py_CLEAR(made);
    return made;
}

int dgp_scratch_new(const dgp_operand *description, int64_t bytes, void *stream,
                    dgp_operand *scratch, PyObject **owner)
{
    *owner = NULL;
    *scratch = (dgp_operand){0};
    if (description->exchange != NULL) { /* no object is made of it */
        scratch->versioned = allocate(description, DGP_UINT8, 1, &bytes, scratch);
        return scratch->versioned == NULL ? -1 : 0;
    }
    dgp_stream known = {stream, true};
    *owner = dgp_tensor_new(DGP_UINT8, 1, &bytes, description->device, stream);
    return *owner == NULL ? -1 : dgp_tensor_describe(*owner, &known, scratch);
}
