/* SPDX-License-Identifier: MIT */
/*
 * Operands as the device sees them: whose memory a pointer is, and matrices described to the copy
 * engine. Both ask the driver, and calls of a model ask the same again and again, so a context
 * remembers the answers.
 */
#include "cuda/context.h"

#include "core/copy_rules.h"

#include <string.h>

/* ---- pointers ---------------------------------------------------------------------------- */

/* Where the pointer is remembered: one of two places, which it may lose to other pointers. */
static _Atomic uint64_t *places_of(dgi_cuda *cuda, const void *data)
{
    const uint64_t odd = 0x9E3779B97F4A7C15; /* 2^64 over the golden ratio */
    return &cuda->pointers[((uintptr_t)data * odd >> 32) % (DGI_KNOWN_POINTERS / 2) * 2];
}

static uint64_t load(const _Atomic uint64_t *place)
{
    return atomic_load_explicit(place, memory_order_relaxed);
}

static void store(_Atomic uint64_t *place, uint64_t address)
{
    atomic_store_explicit(place, address, memory_order_relaxed);
}

dg_status dgi_cuda_check_pointer(dgi_cuda *cuda, const void *data, const char *name)
{
    _Atomic uint64_t *places = places_of(cuda, data);
    if (load(&places[0]) == (uintptr_t)data || load(&places[1]) == (uintptr_t)data)
        return DG_OK;
    int ordinal = -1;
    CUresult result = cuda->driver.cuPointerGetAttribute(
        &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)(uintptr_t)data);
    if (result == CUDA_SUCCESS && ordinal == cuda->device) {
        store(&places[1], load(&places[0]));
        store(&places[0], (uintptr_t)data);
        return DG_OK;
    }
    if (result != CUDA_SUCCESS)
        return dgi_fail(DG_DEVICE_MISMATCH, "%s at %p is not memory of CUDA device %d", name, data,
                        cuda->device);
    return dgi_fail(DG_DEVICE_MISMATCH,
                    "%s at %p is memory of CUDA device %d, the context is for device %d", name,
                    data, ordinal, cuda->device);
}

static dg_status check_operand(dgi_cuda *cuda, const dgi_cuda_operand *o)
{
    const size_t element = dg_dtype_bytes(o->dtype); /* a power of two */
    if (element > 1 && ((uintptr_t)o->data & (element - 1)) != 0)
        return dgi_fail(DG_MISALIGNED,
                        "%s is at %p, %zu past a multiple of 16: on CUDA devices an element of %s "
                        "lies at a multiple of %zu",
                        o->name, o->data, (size_t)((uintptr_t)o->data % 16),
                        dg_dtype_name(o->dtype), element);
    return dgi_cuda_check_pointer(cuda, o->data, o->name);
}

dg_status dgi_cuda_check_operands(dgi_cuda *cuda, const dgi_cuda_operand *operands, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (operands[i].used)
            DGI_TRY(check_operand(cuda, &operands[i]));
    return DG_OK;
}

void dgi_cuda_forget_pointers(dgi_cuda *cuda)
{
    for (int i = 0; i < DGI_KNOWN_POINTERS; i++)
        store(&cuda->pointers[i], 0);
}

/* ---- tensor maps ------------------------------------------------------------------------- */

bool dgi_cuda_can_copy(const dg_matrix *matrix)
{
    /* The ld of a single row may be anything, and too large for a product. */
    const int64_t pitch =
        matrix->rows > 1 ? matrix->ld * (int64_t)dg_dtype_bytes(matrix->dtype) : 0;
    return dgi_can_map((uintptr_t)matrix->data, matrix->rows, pitch);
}

/* All that a map depends on. No bytes of it are padding: it is a key of the memo. */
typedef struct description {
    void *data;
    cuuint64_t sizes[2], pitch; /* elements along a row, rows; bytes from row to row */
    cuuint32_t box[2];
    uint32_t type, swizzle;
} description;
_Static_assert(sizeof(description) == DGI_MEMO_KEY * sizeof(uint64_t), "a key of the memo");
_Static_assert(sizeof(CUtensorMap) == DGI_MEMO_VALUE * sizeof(uint64_t), "a value of the memo");

static dg_status encode(dgi_cuda *cuda, const description *d, const char *what, CUtensorMap *map)
{
    uint64_t key[DGI_MEMO_KEY], value[DGI_MEMO_VALUE];
    memcpy(key, d, sizeof key);
    if (!dgi_memo_find(&cuda->maps, key, value)) {
        const cuuint32_t steps[2] = {1, 1};
        CUresult result = cuda->driver.cuTensorMapEncodeTiled(
            map, (CUtensorMapDataType)d->type, 2, d->data, d->sizes, &d->pitch, d->box, steps,
            CU_TENSOR_MAP_INTERLEAVE_NONE, (CUtensorMapSwizzle)d->swizzle,
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        DGI_TRY(dgi_driver_check(&cuda->driver, result, what));
        memcpy(value, map, sizeof value);
        dgi_memo_keep(&cuda->maps, key, value);
    }
    memcpy(map, value, sizeof value);
    return DG_OK;
}

dg_status dgi_cuda_describe(dgi_cuda *cuda, const dg_matrix *matrix, uint32_t box_rows,
                            CUtensorMap *map)
{
    const size_t element = dg_dtype_bytes(matrix->dtype);
    /* A single row may come with any ld: its pitch is never used, but must be a valid one. */
    const cuuint64_t row_bytes = ((cuuint64_t)matrix->cols * element + 15) / 16 * 16;
    const description d = {
        .data = matrix->data,
        .sizes = {(cuuint64_t)matrix->cols, (cuuint64_t)matrix->rows},
        .pitch = matrix->rows > 1 ? (cuuint64_t)matrix->ld * element : row_bytes,
        .box = {(cuuint32_t)(128 / element), box_rows},
        .type = element == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
        .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
    };
    return encode(cuda, &d, "describing a matrix to the copy engine", map);
}

dg_status dgi_cuda_describe_scales(dgi_cuda *cuda, const dg_scale *scale, uint32_t box_rows,
                                   uint32_t box_cols, CUtensorMap *map)
{
    const cuuint64_t column = ((cuuint64_t)scale->rows + 3) / 4 * 16;
    const description d = {
        .data = scale->data,
        .sizes = {(cuuint64_t)scale->rows, (cuuint64_t)scale->cols},
        .pitch = scale->cols > 1 ? (cuuint64_t)scale->col_stride * 4 : column,
        .box = {box_rows, box_cols},
        .type = CU_TENSOR_MAP_DATA_TYPE_UINT32,
        .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE,
    };
    return encode(cuda, &d, "describing scales to the copy engine", map);
}
