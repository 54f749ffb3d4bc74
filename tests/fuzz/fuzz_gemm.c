/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target for call descriptions: the input describes a GEMM that is right and then edits to its
 * fields. Whatever comes of it, a call either is refused, with a message and without touching
 * memory, or writes D's elements and nothing else.
 *
 * Input: bytes for m, n, k, the granularities and types; then pairs of (field, value).
 */
#include "deepgemm.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* All operands lie in one block of memory, so that edits can make them overlap. */
enum { ARENA = 1 << 16, PART = ARENA / 8, LARGEST = 40 };
static uint8_t *arena, *before;
static dg_context *context;

static void expect(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "%s (last message: %s)\n", what, dg_last_error());
    abort();
}

/* ---- the description ----------------------------------------------------------------- */

typedef enum field_kind { INT64, INT32, FLOAT, POINTER } field_kind;
typedef struct field {
    field_kind kind;
    size_t offset;
} field;

#define OF(kind, member)                                                                           \
    {                                                                                              \
        kind, offsetof(dg_gemm, member)                                                            \
    }
#define MATRIX(name)                                                                               \
    OF(POINTER, name.data), OF(INT32, name.dtype), OF(INT64, name.rows), OF(INT64, name.cols),     \
        OF(INT64, name.ld)
#define SCALE(name)                                                                                \
    OF(POINTER, name.data), OF(INT32, name.dtype), OF(INT32, name.block_rows),                     \
        OF(INT32, name.block_cols), OF(INT32, name.row_phase), OF(INT32, name.col_phase),          \
        OF(INT64, name.rows), OF(INT64, name.cols), OF(INT64, name.row_stride),                    \
        OF(INT64, name.col_stride)
static const field fields[] = {
    MATRIX(a),
    MATRIX(b),
    MATRIX(c),
    MATRIX(d),
    MATRIX(bias),
    SCALE(scale_a),
    SCALE(scale_b),
    SCALE(scale_d),
    OF(FLOAT, alpha),
    OF(FLOAT, beta),
    OF(INT32, accumulation),
    OF(INT64, struct_bytes),
};

static const int64_t values[] = {
    0,   1,   2,   3,        7,        16,        31,         32,         64,        127,
    128, 129, 256, -1,       -128,     INT32_MAX, INT32_MIN,  INT64_MAX,  INT64_MIN, INT64_MAX / 2,
    5,   40,  41,  1L << 31, 1L << 32, 1L << 40,  (1L << 61), (1L << 62), 39,        1000,
};

/* Values of 128 and above are small numbers, places in the arena for a pointer. */
static void edit(dg_gemm *g, uint8_t which, uint8_t value)
{
    field f = fields[which % (sizeof fields / sizeof fields[0])];
    void *target = (char *)g + f.offset;
    int64_t number = value < 128 ? values[value % (sizeof values / sizeof values[0])] : value - 128;
    int32_t narrow = (int32_t)number;
    float real = (float)number / 4.0f;
    uint8_t *place = value == 0    ? NULL
                     : value < 128 ? (uint8_t *)(UINTPTR_MAX - value)
                                   : arena + (size_t)(value - 128) * (ARENA / 128);
    switch (f.kind) {
    case INT64:
        memcpy(target, &number, sizeof number);
        break;
    case INT32:
        memcpy(target, &narrow, sizeof narrow);
        break;
    case FLOAT:
        memcpy(target, &real, sizeof real);
        break;
    case POINTER:
        memcpy(target, &place, sizeof place);
        break;
    }
}

/* The next byte of the input, 0 behind its end. */
static uint8_t next(const uint8_t **data, size_t *size)
{
    if (*size == 0)
        return 0;
    (*size)--;
    return *(*data)++;
}

static dg_gemm describe(const uint8_t *data, size_t size)
{
    static const int32_t blocks[] = {0, 1, 128, 32, 3, 16, 100, 5};
    static const dg_dtype wide[] = {DG_F32, DG_BF16, DG_F16, DG_E4M3};
    int64_t m = next(&data, &size) % (LARGEST + 1), n = next(&data, &size) % (LARGEST + 1);
    int64_t k = next(&data, &size) % (LARGEST + 1);
    uint8_t granularity_a = next(&data, &size), granularity_b = next(&data, &size);
    uint8_t types = next(&data, &size), options = next(&data, &size);
    dg_gemm g = DG_GEMM_INIT;
    g.a = dg_matrix_of(arena, types & 1 ? DG_E5M2 : DG_E4M3, m, k);
    g.b = dg_matrix_of(arena + PART, types & 2 ? DG_E5M2 : DG_E4M3, n, k);
    g.c = dg_matrix_of(arena + 2 * PART, wide[types >> 2 & 1], m, n);
    g.d = dg_matrix_of(arena + 3 * PART, wide[types >> 4 & 3], m, n);
    g.bias = dg_matrix_of(arena + 4 * PART, wide[types >> 6 & 1], 1, n);
    g.scale_a = dg_scale_of(arena + 5 * PART, options & 1 ? DG_UE8M0 : DG_F32, m, k,
                            blocks[granularity_a & 7], blocks[granularity_a >> 3 & 7]);
    g.scale_b = dg_scale_of(arena + 6 * PART, options & 2 ? DG_UE8M0 : DG_F32, n, k,
                            blocks[granularity_b & 7], blocks[granularity_b >> 3 & 7]);
    if (g.d.dtype == DG_E4M3)
        g.scale_d = dg_scale_of(arena + 7 * PART, DG_F32, m, n, 1, 0);
    if (options & 4)
        g.bias = (dg_matrix){0};
    if (options & 8)
        g.c = (dg_matrix){0};
    else
        g.beta = 0.5f;
    while (size >= 2) {
        uint8_t which = next(&data, &size);
        edit(&g, which, next(&data, &size));
    }
    return g;
}

/* ---- the call ------------------------------------------------------------------------ */

/* Whether rows x cols elements with these strides lie in the arena: the caller's own duty. */
static bool inside(const void *data, dg_dtype dtype, int64_t rows, int64_t cols, int64_t row_stride,
                   int64_t col_stride)
{
    if (dtype == DG_NONE || rows == 0 || cols == 0)
        return true;
    __int128 last = (__int128)(rows - 1) * row_stride + (__int128)(cols - 1) * col_stride + 1;
    __int128 end = (__int128)(uintptr_t)data + last * (__int128)dg_dtype_bytes(dtype);
    return (uintptr_t)data >= (uintptr_t)arena && end <= (__int128)(uintptr_t)arena + ARENA;
}

static bool matrix_inside(const dg_matrix *m)
{
    return inside(m->data, m->dtype, m->rows, m->cols, m->rows > 1 ? m->ld : 0, 1);
}

static bool scale_inside(const dg_scale *s)
{
    return inside(s->data, s->dtype, s->rows, s->cols, s->row_stride, s->col_stride);
}

/* Copies what D may have changed into `before`, so that all the rest can be compared. */
static void accept_d(const dg_matrix *d)
{
    size_t element = dg_dtype_bytes(d->dtype);
    for (int64_t row = 0; d->cols != 0 && row < d->rows; row++) {
        size_t offset = (size_t)((uint8_t *)d->data - arena) + (size_t)(row * d->ld) * element;
        memcpy(before + offset, arena + offset, (size_t)d->cols * element);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (context == NULL) {
        arena = malloc(ARENA);
        before = malloc(ARENA);
        expect(arena != NULL && before != NULL && dg_create(&context, DG_CPU, NULL) == DG_OK,
               "no context");
    }
    for (size_t i = 0; i < ARENA; i++)
        arena[i] = before[i] = (uint8_t)(i * 37 % 126); /* codes without NaN, scales above 0 */
    /* A struct may say that it is longer than this library's: zeros follow it. */
    static union {
        dg_gemm gemm;
        uint8_t bytes[4096];
    } longer;
    longer.gemm = describe(data, size);
    const dg_gemm g = longer.gemm;
    size_t bytes;
    dg_status status = dg_gemm_workspace(context, &longer.gemm, &bytes);
    if (status != DG_OK) {
        expect(dg_last_error()[0] != 0, "refused without a message");
        expect(dg_gemm_run(context, &longer.gemm, NULL) == status, "two calls refuse differently");
        expect(memcmp(arena, before, ARENA) == 0, "a refused call wrote");
        return 0;
    }
    if (!matrix_inside(&g.a) || !matrix_inside(&g.b) || !matrix_inside(&g.d) ||
        !scale_inside(&g.scale_a) || !scale_inside(&g.scale_b) || !scale_inside(&g.scale_d) ||
        !matrix_inside(&g.bias) || (g.beta != 0.0f && !matrix_inside(&g.c)))
        return 0;
    status = dg_gemm_run(context, &longer.gemm, NULL);
    expect(status == DG_OK, "a call that was accepted fails");
    accept_d(&g.d);
    expect(memcmp(arena, before, ARENA) == 0, "something beside D was written");
    return 0;
}
