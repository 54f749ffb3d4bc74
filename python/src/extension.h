/* SPDX-License-Identifier: MIT */
/*
 * The extension module deepgemm._C: what its files share.
 *
 * Its functions take positional arguments only; the Python files beside it give them names,
 * defaults and documentation. Every function that may be called with an error set returns NULL or
 * -1 with a Python exception, as CPython's own do. The GIL is held everywhere except inside calls
 * of the C library, which release it.
 */
#ifndef DGP_EXTENSION_H
#define DGP_EXTENSION_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <deepgemm.h>
#include <stdbool.h>

#include "dlpack.h"

/* ---- errors.c ------------------------------------------------------------------------ */

int dgp_errors_init(PyObject *module);
/* A message of the library as a str: file names and what was cut need not be UTF-8. */
PyObject *dgp_message(const char *message);
/* Raises the exception of a status with dg_last_error() as its message. Returns NULL. */
PyObject *dgp_raise(dg_status status);
/* Raises the exception of a status with a message of the extension's own, in the language of
 * PyErr_Format. Returns -1. */
int dgp_fail(dg_status status, const char *format, ...);

/* ---- dtypes.c ------------------------------------------------------------------------ */

/* Element types: dg_dtype, and those that operands like a group index or column weights come in. */
enum { DGP_UINT8 = 64, DGP_UINT16, DGP_INT32, DGP_INT64, DGP_FLOAT64, DGP_UNKNOWN };

size_t dgp_dtype_bytes(int dtype);
dg_dtype dgp_library_dtype(int dtype); /* DG_NONE for the others */
/* "float8_e4m3fn" and so on, as array libraries spell them. */
const char *dgp_dtype_name(int dtype);
/* From a name, a NumPy or ml_dtypes type, a torch.dtype...; -1 with TypeError. */
int dgp_dtype_from_object(PyObject *object, const char *name);
int dgp_dtype_from_dlpack(DLDataType type); /* DGP_UNKNOWN where there is none */
DLDataType dgp_dtype_to_dlpack(int dtype);

/* ---- operand.c ----------------------------------------------------------------------- */

enum { DGP_MAX_RANK = 8 };

/* Memory of an array of any library. dgp_operand_release() lets go of it. */
typedef struct dgp_operand {
    void *data;
    int dtype;
    dg_device device;
    int32_t rank;
    bool read_only;
    int64_t shape[DGP_MAX_RANK], strides[DGP_MAX_RANK]; /* strides in elements */
    const DLPackExchangeAPI *exchange;                  /* of its library, or NULL */
    DLManagedTensor *managed;                           /* what is to be released, or NULL */
    DLManagedTensorVersioned *versioned;
} dgp_operand;

/* The stream of a call: unknown until an argument or an operand says it. */
typedef struct dgp_stream {
    void *handle;
    bool known;
} dgp_stream;

/* `object` may be None: then dtype is DG_NONE. Sets `stream` when a CUDA operand comes first. */
int dgp_operand_take(PyObject *object, const char *name, dgp_stream *stream, dgp_operand *operand);
void dgp_operand_release(dgp_operand *operand);
/* The same for the operands of a call. On failure none is left to release. */
int dgp_operands_take(PyObject *const *objects, const char *const *names, int count,
                      dgp_stream *stream, dgp_operand *operands);
void dgp_operands_release(dgp_operand *operands, int count);
/* The `stream` argument of a call: None, an integer handle, or a framework's stream object. */
int dgp_stream_from_object(PyObject *object, dgp_stream *stream);
int dgp_operand_init(void);

/* ---- matrix.c ------------------------------------------------------------------------ */

/* The operand as a row-major matrix: its leading dimensions are taken together as rows. */
int dgp_as_matrix(const dgp_operand *operand, const char *name, dg_matrix *matrix);
/* One row. */
int dgp_as_vector(const dgp_operand *operand, const char *name, dg_matrix *matrix);
int dgp_as_scale(const dgp_operand *operand, const char *name, const int32_t block[2],
                 const int32_t phase[2], dg_scale *scale);
/* A contiguous array of `dtype` with one dimension; `count` elements unless that is -1. NULL where
 * the operand is None. */
int dgp_as_array(const dgp_operand *operand, const char *name, int dtype, int64_t count,
                 const void **data);

/* ---- tensor.c ------------------------------------------------------------------------ */

/* deepgemm.Tensor: a typed view of memory, or memory of its own. */
int dgp_tensor_init(PyObject *module);
bool dgp_tensor_check(PyObject *object);
/* Work on `stream` sees what was written to the tensor. */
int dgp_tensor_describe(PyObject *tensor, dgp_stream *stream, dgp_operand *operand);
/* Remembers where a result was written, when it is a deepgemm.Tensor. */
void dgp_tensor_written(PyObject *object, void *stream);
PyObject *dgp_tensor_view(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *dgp_tensor_empty(PyObject *module, PyObject *const *args, Py_ssize_t count);
/* A new contiguous tensor; `stream` is where it will be written. */
PyObject *dgp_tensor_new(int dtype, int32_t rank, const int64_t *shape, dg_device device,
                         void *stream);
/* A new tensor on the CPU and its memory, to be filled in. */
PyObject *dgp_tensor_host(int dtype, int32_t rank, const int64_t *shape, void **data);
/* A tuple of integers. */
PyObject *dgp_sizes(const int64_t *sizes, int32_t rank);

/* ---- output.c ------------------------------------------------------------------------ */

/* A new contiguous array of the library that `like` belongs to, described in *operand. */
PyObject *dgp_output_new(PyObject *like, const dgp_operand *description, int dtype, int32_t rank,
                         const int64_t *shape, void *stream, dgp_operand *operand);

/* Memory for a call on `stream`, which may be given back when the work is enqueued: release
 * *scratch, and *owner if it is not NULL. */
int dgp_scratch_new(const dgp_operand *description, int64_t bytes, void *stream,
                    dgp_operand *scratch, PyObject **owner);

/* ---- context.c ----------------------------------------------------------------------- */

int dgp_context_init(PyObject *module);
/* The context of a call: `object`, or for None the default of the device. Borrowed. */
dg_context *dgp_context_get(PyObject *object, dg_device device);
dg_device dgp_context_device(PyObject *object);
/* -1 (the CPU), an ordinal, or -2 with an exception. */
dg_device dgp_device_from_object(PyObject *object);
PyObject *dgp_device_to_object(dg_device device);

/* ---- calls.c and others: the module's functions -------------------------------------- */

/* The device that all operands are on. -1 with DeviceMismatch. */
int dgp_common_device(const dgp_operand *operands, const char *const *names, int count,
                      dg_device *device);
/* Refuses an output in read-only memory. */
int dgp_check_writable(const dgp_operand *operand, const char *name);
/* Refuses None, for an operand that the call cannot do without. */
int dgp_check_given(const dgp_operand *operand, const char *name);
/* Refuses what is not in the host's memory. */
int dgp_check_host(const dgp_operand *operand, const char *name);

/* A pair of small integers, (rows, columns); None gives (0, 0). */
int dgp_pair(PyObject *object, const char *name, int32_t pair[2]);
/* What one scale covers: the same, but never left out. */
int dgp_block(PyObject *object, const char *name, int32_t block[2]);
/* The two pairs of a product, of A and of B; or a list of the four numbers. */
int dgp_granularity(PyObject *object, int32_t block_a[2], int32_t block_b[2]);
/* One of `names` (ending with NULL) to its index. */
int dgp_choice(PyObject *object, const char *name, const char *const *names);
/* The text that a dg_..._explain() writes. */
PyObject *dgp_text(dg_status (*write)(void *user, char *text, size_t *bytes), void *user);
/* "expected N arguments": an error of the Python part, not of a user. */
int dgp_check_count(Py_ssize_t given, Py_ssize_t expected);

enum { DGP_GEMM_OPERANDS = 9, DGP_GEMM_ARGUMENTS = 19 };

/* A GEMM as Python describes it. `out` is the given result or a new one. */
typedef struct dgp_gemm_call {
    dgp_operand operands[DGP_GEMM_OPERANDS];
    dgp_stream stream;
    dg_context *context;
    dg_gemm gemm;
    PyObject *out;
} dgp_gemm_call;

/* From the arguments of _C.gemm but its last two. dgp_gemm_end() lets go of what it holds. */
int dgp_gemm_begin(dgp_gemm_call *call, PyObject *const *args);
void dgp_gemm_end(dgp_gemm_call *call);

PyObject *dgp_gemm(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *dgp_linear(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *dgp_quantize(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *dgp_dequantize(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *dgp_convert(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *dgp_copy(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *dgp_compare(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *dgp_kernels(PyObject *module, PyObject *unused);

int dgp_weights_init(PyObject *module);
bool dgp_weights_check(PyObject *object);
PyObject *dgp_weights_pack(PyObject *module, PyObject *const *args, Py_ssize_t count);
/* What was packed, with its N and its granularity. */
const dg_weights *dgp_weights_get(PyObject *weights, int64_t *n, int32_t block[2]);

/* ---- table.c ------------------------------------------------------------------------- */

int dgp_table_init(PyObject *module);
PyObject *dgp_table_new(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* ---- files.c ------------------------------------------------------------------------- */

/* A str as a C string that lives as long as it does. NULL with an exception that names `argument`:
 * for other types, and for a text with a zero, which C would cut. */
const char *dgp_name(PyObject *object, const char *argument);
/* A file name in the form that the C library takes: str, bytes or os.PathLike to bytes, by the
 * rules of os.fsencode(). Refuses zeros, too. */
PyObject *dgp_path(PyObject *object, const char *argument);
/* A tuple of dgp_name()s; free() the result. */
const char **dgp_texts(PyObject *tuple, const char *argument, int32_t *count);

/* What a `report` callback needs: the caller's function, and the exception that it raised. */
typedef struct dgp_reporter {
    PyObject *function;
    PyObject *type, *value, *traceback;
} dgp_reporter;
/* Calls the function with values in the language of Py_BuildValue, a tuple. To be called without
 * the GIL, perhaps from a thread of the library's. False: the library is to stop. */
bool dgp_report(dgp_reporter *reporter, const char *format, ...);
/* After the call of the library: raises the function's exception, or that of the status. */
int dgp_reported(dgp_reporter *reporter, dg_status status);

/* ---- checkpoint.c -------------------------------------------------------------------- */

int dgp_checkpoint_init(PyObject *module);
PyObject *dgp_checkpoint_write(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *dgp_checkpoint_rescale(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* ---- calibration.c, statistics.c ----------------------------------------------------- */

/* A deepgemm.ScaleChoice: (method, percentile, dtype, rounding). */
int dgp_scale_choice(PyObject *object, dg_scale_choice *choice);
/* The fields of a deepgemm.ScaleQuality, as a tuple. */
PyObject *dgp_scale_quality(const dg_scale_quality *quality);
PyObject *dgp_scale_choose(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *dgp_scales_write(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *dgp_smooth_choose(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *dgp_precision_choose(PyObject *module, PyObject *const *args, Py_ssize_t count);

int dgp_statistics_init(PyObject *module);
/* What a _C.Statistics holds; NULL with TypeError. */
dg_statistics *dgp_statistics_get(PyObject *object);
PyObject *dgp_statistics_load(PyObject *module, PyObject *path);

#endif
