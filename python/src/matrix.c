/* SPDX-License-Identifier: MIT */
/* Operands as the matrices, vectors, scales and arrays that the library takes. */
#include "extension.h"

static bool is_empty(const dgp_operand *o)
{
    for (int i = 0; i < o->rank; i++)
        if (o->shape[i] == 0)
            return true;
    return false;
}

/*
 * Takes all dimensions but the last as one. False where no single stride reaches all their
 * elements.
 */
static bool collapse(const dgp_operand *o, int64_t *rows, int64_t *stride)
{
    *rows = 1;
    *stride = 0;
    for (int i = 0; i < o->rank - 1; i++)
        *rows *= o->shape[i];
    if (*rows <= 1)
        return true;
    int64_t next = 0;
    for (int i = o->rank - 2; i >= 0; i--) {
        if (o->shape[i] == 1)
            continue;
        if (*stride == 0 && next == 0)
            *stride = o->strides[i];
        else if (o->strides[i] != next)
            return false;
        next = o->strides[i] * o->shape[i];
    }
    return true;
}

static int check_library_dtype(const dgp_operand *o, const char *name)
{
    if (o->dtype <= DG_UE8M0)
        return 0;
    return dgp_fail(DG_UNSUPPORTED_TYPE,
                    o->dtype == DGP_UINT8 ? "%s has type %s: say what its bytes are, e.g. "
                                            "deepgemm.tensor(x, \"float8_e4m3fn\")"
                                          : "%s has type %s: expected float32, float16, bfloat16 "
                                            "or an FP8 type",
                    name, dgp_dtype_name(o->dtype));
}

int dgp_as_matrix(const dgp_operand *o, const char *name, dg_matrix *matrix)
{
    *matrix = (dg_matrix){0};
    if (o->dtype == DG_NONE)
        return 0;
    if (check_library_dtype(o, name) < 0)
        return -1;
    if (o->rank < 2)
        return dgp_fail(DG_INVALID_ARGUMENT, "%s has %d dimensions: expected [rows, columns]", name,
                        (int)o->rank);
    const int64_t cols = o->shape[o->rank - 1], step = o->strides[o->rank - 1];
    int64_t rows, ld;
    if (is_empty(o)) { /* whatever its strides are */
        collapse(o, &rows, &ld);
        *matrix = dg_matrix_of(o->data, dgp_library_dtype(o->dtype), rows, cols);
        return 0;
    }
    if (cols > 1 && step != 1)
        return dgp_fail(DG_INVALID_ARGUMENT,
                        "%s has a stride of %lld along its last dimension: that one must be "
                        "contiguous",
                        name, (long long)step);
    if (!collapse(o, &rows, &ld))
        return dgp_fail(DG_INVALID_ARGUMENT,
                        "%s has leading dimensions that no single stride describes: give a "
                        "matrix, or a contiguous copy",
                        name);
    *matrix = (dg_matrix){o->data, dgp_library_dtype(o->dtype), rows, cols, rows > 1 ? ld : cols};
    return 0;
}

int dgp_as_vector(const dgp_operand *o, const char *name, dg_matrix *matrix)
{
    *matrix = (dg_matrix){0};
    if (o->dtype == DG_NONE)
        return 0;
    if (check_library_dtype(o, name) < 0)
        return -1;
    if (o->rank != 1 || (o->shape[0] > 1 && o->strides[0] != 1))
        return dgp_fail(DG_INVALID_ARGUMENT, "%s must have one dimension and be contiguous", name);
    *matrix = (dg_matrix){o->data, dgp_library_dtype(o->dtype), 1, o->shape[0], o->shape[0]};
    return 0;
}

int dgp_as_array(const dgp_operand *o, const char *name, int dtype, int64_t count,
                 const void **data)
{
    *data = NULL;
    if (o->dtype == DG_NONE)
        return 0;
    if (o->dtype != dtype || o->rank != 1 || (o->shape[0] > 1 && o->strides[0] != 1))
        return dgp_fail(DG_INVALID_ARGUMENT,
                        "%s must be a contiguous array of %s with one dimension, not %s with %d",
                        name, dgp_dtype_name(dtype), dgp_dtype_name(o->dtype), (int)o->rank);
    if (count >= 0 && o->shape[0] != count)
        return dgp_fail(DG_INVALID_ARGUMENT, "%s has %lld elements: expected %lld", name,
                        (long long)o->shape[0], (long long)count);
    *data = o->data;
    return 0;
}

int dgp_as_scale(const dgp_operand *o, const char *name, const int32_t block[2],
                 const int32_t phase[2], dg_scale *scale)
{
    *scale = (dg_scale){0};
    if (o->dtype == DG_NONE)
        return 0;
    if (check_library_dtype(o, name) < 0)
        return -1;
    int64_t rows = 1, cols = 1, row_stride = 1, col_stride = 1;
    if (o->rank == 1 && block[1] == 0) {
        rows = o->shape[0];
        row_stride = o->strides[0];
    } else if (o->rank == 1 && block[0] == 0) {
        cols = o->shape[0];
        col_stride = o->strides[0];
    } else if (o->rank >= 2) {
        cols = o->shape[o->rank - 1];
        col_stride = o->strides[o->rank - 1];
        if (!collapse(o, &rows, &row_stride))
            return dgp_fail(DG_INVALID_ARGUMENT,
                            "%s has leading dimensions that no single stride describes", name);
    } else if (o->rank == 1)
        return dgp_fail(DG_INVALID_ARGUMENT,
                        "%s has one dimension, but blocks of (%d, %d) need [rows, columns]", name,
                        (int)block[0], (int)block[1]);
    /* Strides along a single scale mean nothing, whatever a library writes there. */
    *scale = (dg_scale){o->data,
                        dgp_library_dtype(o->dtype),
                        block[0],
                        block[1],
                        phase[0],
                        phase[1],
                        rows,
                        cols,
                        rows > 1 ? row_stride : 1,
                        cols > 1 ? col_stride : 1};
    return 0;
}
