/* SPDX-License-Identifier: MIT */
/* Element types and their names in the libraries that arrays come from. */
#include "extension.h"

#include <string.h>

static const struct {
    const char *name; /* NumPy's, ml_dtypes' and PyTorch's */
    int dtype;
    uint8_t code, bits;
} types[] = {
    {"float32", DG_F32, kDLFloat, 32},
    {"float16", DG_F16, kDLFloat, 16},
    {"bfloat16", DG_BF16, kDLBfloat, 16},
    {"float8_e4m3fn", DG_E4M3, kDLFloat8_e4m3fn, 8},
    {"float8_e5m2", DG_E5M2, kDLFloat8_e5m2, 8},
    {"float8_e8m0fnu", DG_UE8M0, kDLFloat8_e8m0fnu, 8},
    {"uint8", DGP_UINT8, kDLUInt, 8},
    {"uint16", DGP_UINT16, kDLUInt, 16},
    {"int32", DGP_INT32, kDLInt, 32},
    {"int64", DGP_INT64, kDLInt, 64},
    {"float64", DGP_FLOAT64, kDLFloat, 64},
};
enum { type_count = sizeof types / sizeof types[0] };

static int find(int dtype)
{
    for (int i = 0; i < type_count; i++)
        if (types[i].dtype == dtype)
            return i;
    return -1;
}

size_t dgp_dtype_bytes(int dtype)
{
    int i = find(dtype);
    return i < 0 ? 0 : types[i].bits / 8;
}

dg_dtype dgp_library_dtype(int dtype)
{
    return dtype >= 0 && dtype <= DG_UE8M0 ? (dg_dtype)dtype : DG_NONE;
}

const char *dgp_dtype_name(int dtype)
{
    int i = find(dtype);
    return i < 0 ? "unknown" : types[i].name;
}

int dgp_dtype_from_dlpack(DLDataType type)
{
    for (int i = 0; i < type_count; i++)
        if (types[i].code == type.code && types[i].bits == type.bits && type.lanes == 1)
            return types[i].dtype;
    return DGP_UNKNOWN;
}

DLDataType dgp_dtype_to_dlpack(int dtype)
{
    int i = find(dtype);
    return (DLDataType){types[i].code, types[i].bits, 1};
}

/* The last word of "torch.float16", "float16" or "<class 'numpy.float16'>". */
static int from_text(const char *text, Py_ssize_t length)
{
    while (length > 0 && (text[length - 1] == '>' || text[length - 1] == '\''))
        length--;
    Py_ssize_t start = length;
    while (start > 0 && text[start - 1] != '.' && text[start - 1] != '\'')
        start--;
    for (int i = 0; i < type_count; i++)
        if (strlen(types[i].name) == (size_t)(length - start) &&
            memcmp(types[i].name, text + start, (size_t)(length - start)) == 0)
            return types[i].dtype;
    return DGP_UNKNOWN;
}

/* The objects that named a type last: calls name the same ones again and again. */
enum { cache_size = 8 };
static struct {
    PyObject *object;
    int dtype;
} cache[cache_size];
static unsigned cache_next;

int dgp_dtype_from_object(PyObject *object, const char *name)
{
    for (int i = 0; i < cache_size; i++)
        if (cache[i].object == object)
            return cache[i].dtype;
    Py_ssize_t length;
    PyObject *text = PyUnicode_Check(object) ? Py_NewRef(object) : PyObject_Str(object);
    const char *utf8 = text != NULL ? PyUnicode_AsUTF8AndSize(text, &length) : NULL;
    int dtype = utf8 != NULL ? from_text(utf8, length) : -1;
    if (dtype == DGP_UNKNOWN) {
        PyErr_Format(PyExc_TypeError,
                     "%s is %R: expected a data type, e.g. \"float8_e4m3fn\", torch.bfloat16 or "
                     "numpy.float32",
                     name, object);
        dtype = -1;
    }
    if (dtype >= 0) {
        const unsigned slot = cache_next++ % cache_size;
        PyObject *old = cache[slot].object;
        cache[slot].object = Py_NewRef(object);
        cache[slot].dtype = dtype;
        Py_XDECREF(old);
    }
    Py_XDECREF(text);
    return dtype;
}
