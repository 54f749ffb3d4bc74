/* SPDX-License-Identifier: MIT */
/*
 * Operands: memory of an array of any library, without a copy.
 *
 * In this order: deepgemm.Tensor; the DLPack exchange table of the array's type (PyTorch), which
 * costs no Python call; NumPy's __array_interface__, which also knows the ml_dtypes; and
 * __dlpack__(), the protocol that everything else speaks.
 */
#include "extension.h"

#include <string.h>

static PyObject *text_exchange, *text_array_interface, *text_dlpack, *text_dlpack_device,
    *text_dtype, *text_cuda_stream, *text_ptr;

int dgp_operand_init(void)
{
    const struct {
        PyObject **text;
        const char *value;
    } table[] = {
        {&text_exchange, "__dlpack_c_exchange_api__"},
        {&text_array_interface, "__array_interface__"},
        {&text_dlpack, "__dlpack__"},
        {&text_dlpack_device, "__dlpack_device__"},
        {&text_dtype, "dtype"},
        {&text_cuda_stream, "cuda_stream"},
        {&text_ptr, "ptr"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if ((*table[i].text = PyUnicode_InternFromString(table[i].value)) == NULL)
            return -1;
    return 0;
}

/* An attribute that need not be there: NULL without an exception where it is not. */
static PyObject *get_optional(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    return value;
}

/* ---- streams ------------------------------------------------------------------------- */

int dgp_stream_from_object(PyObject *object, dgp_stream *stream)
{
    *stream = (dgp_stream){NULL, false};
    if (object == Py_None)
        return 0;
    PyObject *handle = NULL;
    if (PyLong_Check(object))
        handle = Py_NewRef(object);
    else if ((handle = get_optional(object, text_cuda_stream)) == NULL && !PyErr_Occurred())
        handle = get_optional(object, text_ptr);
    if (handle == NULL || !PyLong_Check(handle)) {
        Py_XDECREF(handle);
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError,
                         "stream is %R: expected None, a CUDA stream handle as an integer, or a "
                         "stream object (torch.cuda.Stream, cupy.cuda.Stream)",
                         object);
        return -1;
    }
    stream->handle = PyLong_AsVoidPtr(handle);
    stream->known = true;
    Py_DECREF(handle);
    return PyErr_Occurred() ? -1 : 0;
}

/* ---- DLPack -------------------------------------------------------------------------- */

static int from_dltensor(const DLTensor *tensor, const char *name, dgp_operand *operand)
{
    switch (tensor->device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
        operand->device = DG_CPU;
        break;
    case kDLCUDA:
    case kDLCUDAManaged:
        operand->device = tensor->device.device_id;
        break;
    default:
        return dgp_fail(DG_UNSUPPORTED_DEVICE,
                        "%s is on a device of DLPack type %d: expected the CPU or CUDA", name,
                        (int)tensor->device.device_type);
    }
    if (tensor->ndim > DGP_MAX_RANK)
        return dgp_fail(DG_INVALID_ARGUMENT, "%s has %d dimensions: at most %d are taken", name,
                        (int)tensor->ndim, (int)DGP_MAX_RANK);
    operand->dtype = dgp_dtype_from_dlpack(tensor->dtype);
    if (operand->dtype == DGP_UNKNOWN) {
        const bool fnuz =
            tensor->dtype.code == kDLFloat8_e4m3fnuz || tensor->dtype.code == kDLFloat8_e5m2fnuz;
        return dgp_fail(DG_UNSUPPORTED_TYPE,
                        fnuz ? "%s has an FNUZ type (DLPack code %d, %d bits), whose codes mean "
                               "other values than E4M3FN and E5M2: convert it first"
                             : "%s has a type that this library does not take (DLPack code %d, %d "
                               "bits)",
                        name, (int)tensor->dtype.code, (int)tensor->dtype.bits);
    }
    operand->data = (char *)tensor->data + tensor->byte_offset;
    operand->rank = tensor->ndim;
    int64_t contiguous = 1;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        operand->shape[i] = tensor->shape[i];
        operand->strides[i] = tensor->strides != NULL ? tensor->strides[i] : contiguous;
        contiguous *= tensor->shape[i];
    }
    return 0;
}

/* The exchange tables of the types met last; a type without one is kept too. */
enum { cache_size = 8 };
static struct {
    PyTypeObject *type;
    const DLPackExchangeAPI *exchange;
} cache[cache_size];
static unsigned cache_next;

static int find_exchange(PyObject *object, const DLPackExchangeAPI **exchange)
{
    PyTypeObject *type = Py_TYPE(object);
    for (int i = 0; i < cache_size; i++)
        if (cache[i].type == type) {
            *exchange = cache[i].exchange;
            return 0;
        }
    *exchange = NULL;
    PyObject *capsule = get_optional((PyObject *)type, text_exchange);
    if (capsule != NULL) {
        *exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        Py_DECREF(capsule);
        if (*exchange != NULL && ((*exchange)->header.version.major != 1 ||
                                  (*exchange)->dltensor_from_py_object_no_sync == NULL))
            *exchange = NULL; /* the protocol does as well */
    }
    if (PyErr_Occurred())
        return -1;
    unsigned slot = cache_next++ % cache_size;
    PyTypeObject *old = cache[slot].type;
    cache[slot].type = (PyTypeObject *)Py_NewRef((PyObject *)type);
    cache[slot].exchange = *exchange;
    Py_XDECREF((PyObject *)old);
    return 0;
}

static int from_exchange(PyObject *object, const char *name, dgp_stream *stream,
                         dgp_operand *operand)
{
    DLTensor tensor;
    const DLPackExchangeAPI *exchange = operand->exchange;
    if (exchange->dltensor_from_py_object_no_sync(object, &tensor) != 0 ||
        from_dltensor(&tensor, name, operand) < 0)
        return -1;
    if (operand->device == DG_CPU || stream->known)
        return 0;
    stream->known = true;
    return exchange->current_work_stream(kDLCUDA, operand->device, &stream->handle);
}

/* object.__dlpack__(**keywords); `versioned` asks for DLPack 1. */
static PyObject *call_dlpack(PyObject *method, bool cuda, void *stream, bool versioned)
{
    PyObject *none = PyTuple_New(0), *keywords = PyDict_New(), *capsule = NULL, *value = NULL;
    if (none == NULL || keywords == NULL)
        goto done;
    /* In DLPack's numbering the legacy default stream is 1. */
    if (cuda &&
        ((value = stream == NULL ? PyLong_FromLong(1) : PyLong_FromVoidPtr(stream)) == NULL ||
         PyDict_SetItemString(keywords, "stream", value) < 0))
        goto done;
    Py_CLEAR(value);
    if (versioned && ((value = Py_BuildValue("(ii)", 1, 0)) == NULL ||
                      PyDict_SetItemString(keywords, "max_version", value) < 0))
        goto done;
    capsule = PyObject_Call(method, none, keywords);
done:
    Py_XDECREF(value);
    Py_XDECREF(none);
    Py_XDECREF(keywords);
    return capsule;
}

/* Takes over what the capsule holds, so that its destructor leaves it alone. */
static int from_capsule(PyObject *capsule, const char *name, dgp_operand *operand)
{
    const DLTensor *tensor = NULL;
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        DLManagedTensorVersioned *versioned = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (versioned->version.major != 1)
            return dgp_fail(DG_UNSUPPORTED_TYPE, "%s speaks DLPack %u: expected 1", name,
                            (unsigned)versioned->version.major);
        if (PyCapsule_SetName(capsule, "used_dltensor_versioned") < 0)
            return -1;
        operand->versioned = versioned;
        operand->read_only = (versioned->flags & DLPACK_FLAG_READ_ONLY) != 0;
        tensor = &versioned->dl_tensor;
    } else {
        operand->managed = PyCapsule_GetPointer(capsule, "dltensor");
        if (operand->managed == NULL || PyCapsule_SetName(capsule, "used_dltensor") < 0) {
            operand->managed = NULL;
            return -1;
        }
        tensor = &operand->managed->dl_tensor;
    }
    if (from_dltensor(tensor, name, operand) == 0)
        return 0;
    dgp_operand_release(operand);
    return -1;
}

static int from_protocol(PyObject *object, PyObject *method, const char *name, dgp_stream *stream,
                         dgp_operand *operand)
{
    int type, ordinal;
    PyObject *device = PyObject_CallMethodObjArgs(object, text_dlpack_device, NULL);
    PyObject *pair = device != NULL ? PySequence_Tuple(device) : NULL;
    const bool told = pair != NULL && PyArg_ParseTuple(pair, "ii", &type, &ordinal);
    Py_XDECREF(device);
    Py_XDECREF(pair);
    if (!told)
        return -1;
    const bool cuda = type == kDLCUDA;
    PyObject *capsule = call_dlpack(method, cuda, stream->handle, true);
    if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) { /* an older library */
        PyErr_Clear();
        capsule = call_dlpack(method, cuda, stream->handle, false);
    }
    if (capsule == NULL)
        return -1;
    if (cuda)
        stream->known = true; /* the producer made this stream wait for its work */
    int result = from_capsule(capsule, name, operand);
    Py_DECREF(capsule);
    return result;
}

/* ---- NumPy --------------------------------------------------------------------------- */

static int numpy_dtype(PyObject *object, PyObject *type_text, int *dtype)
{
    static const struct {
        const char *text;
        int dtype;
    } plain[] = {{"<f4", DG_F32},    {"<f2", DG_F16},    {"|u1", DGP_UINT8},  {"<u2", DGP_UINT16},
                 {"<i4", DGP_INT32}, {"<i8", DGP_INT64}, {"<f8", DGP_FLOAT64}};
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(type_text, &length);
    if (text == NULL)
        return -1;
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strcmp(text, plain[i].text) == 0) {
            *dtype = plain[i].dtype;
            return 0;
        }
    /* ml_dtypes show as raw bytes here; their name says what they are. */
    PyObject *type = PyObject_GetAttr(object, text_dtype);
    if (type == NULL)
        return -1;
    *dtype = dgp_dtype_from_object(type, "dtype");
    if (*dtype < 0) {
        PyErr_Clear();
        *dtype = DGP_UNKNOWN;
    }
    Py_DECREF(type);
    return 0;
}

static bool is_fnuz(PyObject *type)
{
    Py_ssize_t length;
    PyObject *text = PyObject_Str(type);
    const char *name = text != NULL ? PyUnicode_AsUTF8AndSize(text, &length) : NULL;
    const bool found = name != NULL && strstr(name, "fnuz") != NULL;
    Py_XDECREF(text);
    PyErr_Clear();
    return found;
}

static int from_array_interface(PyObject *object, PyObject *interface, const char *name,
                                dgp_operand *operand)
{
    PyObject *data = PyDict_GetItemString(interface, "data");
    PyObject *shape = PyDict_GetItemString(interface, "shape");
    PyObject *strides = PyDict_GetItemString(interface, "strides");
    PyObject *type = PyDict_GetItemString(interface, "typestr");
    PyObject *address = NULL;
    int read_only = 0;
    if (data == NULL || shape == NULL || type == NULL || !PyTuple_Check(shape) ||
        !PyTuple_Check(data) || !PyArg_ParseTuple(data, "Op", &address, &read_only)) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "%s has an incomplete __array_interface__", name);
        return -1;
    }
    const Py_ssize_t rank = PyTuple_Size(shape);
    if (rank > DGP_MAX_RANK)
        return dgp_fail(DG_INVALID_ARGUMENT, "%s has %zd dimensions: at most %d are taken", name,
                        rank, (int)DGP_MAX_RANK);
    if (numpy_dtype(object, type, &operand->dtype) < 0)
        return -1;
    if (operand->dtype == DGP_UNKNOWN) {
        PyObject *spelled = PyObject_GetAttr(object, text_dtype);
        if (spelled != NULL)
            dgp_fail(DG_UNSUPPORTED_TYPE,
                     is_fnuz(spelled) ? "%s has type %S, whose codes mean other values than those "
                                        "of E4M3FN and E5M2: convert it first"
                                      : "%s has type %S: expected float32, float16, bfloat16 or an "
                                        "FP8 type, in this machine's byte order",
                     name, spelled);
        Py_XDECREF(spelled);
        return -1;
    }
    operand->data = PyLong_AsVoidPtr(address);
    operand->device = DG_CPU;
    operand->read_only = read_only;
    operand->rank = (int32_t)rank;
    const int64_t element = (int64_t)dgp_dtype_bytes(operand->dtype);
    int64_t contiguous = 1;
    for (Py_ssize_t i = rank - 1; i >= 0; i--) {
        operand->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        operand->strides[i] = contiguous;
        contiguous *= operand->shape[i];
        if (strides == NULL || strides == Py_None)
            continue;
        const int64_t bytes = PyLong_AsLongLong(PyTuple_GetItem(strides, i));
        if (bytes % element != 0)
            return dgp_fail(DG_MISALIGNED,
                            "%s has a stride of %lld bytes, not a multiple of its element's %lld",
                            name, (long long)bytes, (long long)element);
        operand->strides[i] = bytes / element;
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* ---- any object ---------------------------------------------------------------------- */

int dgp_operand_take(PyObject *object, const char *name, dgp_stream *stream, dgp_operand *operand)
{
    operand->data = NULL;
    operand->dtype = DG_NONE;
    operand->device = DG_CPU;
    operand->rank = 0;
    operand->read_only = false;
    operand->exchange = NULL;
    operand->managed = NULL;
    operand->versioned = NULL;
    if (object == Py_None)
        return 0;
    if (dgp_tensor_check(object))
        return dgp_tensor_describe(object, stream, operand);
    if (find_exchange(object, &operand->exchange) < 0)
        return -1;
    if (operand->exchange != NULL)
        return from_exchange(object, name, stream, operand);

    int result = -1;
    PyObject *found = get_optional(object, text_array_interface);
    if (found != NULL && PyDict_Check(found))
        result = from_array_interface(object, found, name, operand);
    else if (!PyErr_Occurred()) {
        Py_XDECREF(found);
        found = get_optional(object, text_dlpack);
        if (found != NULL)
            result = from_protocol(object, found, name, stream, operand);
        else if (!PyErr_Occurred())
            PyErr_Format(
                PyExc_TypeError,
                "%s is a %R: expected an array that speaks DLPack (PyTorch, JAX, CuPy...), a "
                "NumPy array or a deepgemm.Tensor",
                name, Py_TYPE(object));
    }
    Py_XDECREF(found);
    return result;
}

int dgp_operands_take(PyObject *const *objects, const char *const *names, int count,
                      dgp_stream *stream, dgp_operand *operands)
{
    for (int i = 0; i < count; i++)
        operands[i].managed = NULL, operands[i].versioned = NULL;
    /* First those whose library knows its current stream. */
    for (int later = 0; later < 2; later++)
        for (int i = 0; i < count; i++) {
            const DLPackExchangeAPI *exchange;
            if (find_exchange(objects[i], &exchange) < 0 ||
                ((exchange == NULL) == later &&
                 dgp_operand_take(objects[i], names[i], stream, &operands[i]) < 0)) {
                dgp_operands_release(operands, count);
                return -1;
            }
        }
    return 0;
}

void dgp_operands_release(dgp_operand *operands, int count)
{
    for (int i = 0; i < count; i++)
        dgp_operand_release(&operands[i]);
}

void dgp_operand_release(dgp_operand *operand)
{
    DLManagedTensor *managed = operand->managed;
    DLManagedTensorVersioned *versioned = operand->versioned;
    operand->managed = NULL;
    operand->versioned = NULL;
    if (managed != NULL && managed->deleter != NULL)
        managed->deleter(managed);
    if (versioned != NULL && versioned->deleter != NULL)
        versioned->deleter(versioned);
}
