/* SPDX-License-Identifier: MIT */
/*
 * The epilogue, in vectors of VECTOR_FLOATS that the including gemm_<isa>.c chooses for its
 * instructions. The conversions are those of core/formats.h, bit for bit. The file gives those of
 * FP16, which some processors have: WIDEN_F16(halves) is a vector, NARROW_F16(vector, to) stores.
 */
#include "cpu/vector.h"

/* ---- conversions --------------------------------------------------------------------- */

/* Bytes of an element, worked out once a result: a call for each vector would cost as much as it.
 */
typedef struct element_bytes {
    size_t c, bias, d;
} element_bytes;

/* A vector from element `first` on of which the first `count` are read. */
INLINE vector widen(const dg_matrix *matrix, size_t bytes, int64_t first, const int count)
{
    const char *from = (const char *)matrix->data + first * (int64_t)bytes;
    float buffer[VECTOR_FLOATS] = {0};
    if (count < VECTOR_FLOATS)
        from = memcpy(buffer, from, (size_t)count * bytes);
    vector_halves halves;
    switch (matrix->dtype) {
    case DG_F32:
        return load((const float *)from);
    case DG_BF16:
        memcpy(&halves, from, sizeof halves);
        return (vector)(__builtin_convertvector(halves, vector_bits) << 16);
    default: /* FP16 */
        memcpy(&halves, from, sizeof halves);
        return WIDEN_F16(halves);
    }
}

INLINE void narrow_bf16(vector value, void *to)
{
    vector_bits bits = (vector_bits)value, nan = (vector_bits)((bits & 0x7FFFFFFF) > 0x7F800000);
    vector_bits rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    vector_halves halves =
        __builtin_convertvector(blend(nan, bits >> 16 | 0x40, rounded), vector_halves);
    memcpy(to, &halves, sizeof halves);
}

/* dgi_fp8_from_f32_as() in vectors, saturating. */
INLINE void narrow_fp8(vector value, void *to, int mantissa, int bias, uint32_t largest,
                       uint32_t nan)
{
    const int shift = 23 - mantissa;
    const float anchor = dgi_f32_from_bits((uint32_t)(127 + 1 - bias - mantissa + 23) << 23);
    vector_bits sign = (vector_bits)value >> 24 & 0x80, bits = (vector_bits)value & 0x7FFFFFFF;
    vector_bits small = (vector_bits)((vector)bits + anchor) - dgi_f32_to_bits(anchor);
    vector_bits rounded = bits + ((1u << (shift - 1)) - 1) + (bits >> shift & 1);
    vector_bits normal = (rounded >> shift) - ((uint32_t)(127 - bias) << mantissa);
    vector_bits code = blend((vector_bits)(bits < (uint32_t)(127 + 1 - bias) << 23), small, normal);
    code = blend((vector_bits)(code > largest), (vector_bits){0} + largest, code);
    code = blend((vector_bits)(bits > 0x7F800000), (vector_bits){0} + nan, code);
    vector_bytes bytes = __builtin_convertvector(code | sign, vector_bytes);
    memcpy(to, &bytes, sizeof bytes);
}

/* Stores the first `count` elements of a vector from element `first` on. */
INLINE void store(const dg_matrix *matrix, size_t bytes, int64_t first, const int count,
                  vector value)
{
    char *to = (char *)matrix->data + first * (int64_t)bytes;
    float buffer[VECTOR_FLOATS];
    void *whole = count < VECTOR_FLOATS ? (void *)buffer : to;
    switch (matrix->dtype) {
    case DG_F32:
        memcpy(whole, &value, sizeof value);
        break;
    case DG_BF16:
        narrow_bf16(value, whole);
        break;
    case DG_E4M3:
        narrow_fp8(value, whole, 3, 7, 0x7E, 0x7F);
        break;
    case DG_E5M2:
        narrow_fp8(value, whole, 2, 15, 0x7B, 0x7E);
        break;
    default: /* FP16 */
        NARROW_F16(value, whole);
    }
    if (count < VECTOR_FLOATS)
        memcpy(to, buffer, (size_t)count * bytes);
}

/* ---- a result ------------------------------------------------------------------------ */

/* 1 / scale_d for `count` elements from (row, col) on. */
INLINE vector inverse_scales(const dg_scale *scale, int64_t row, int64_t col, const int count)
{
    const int64_t scale_row = dgi_scale_index(row, scale->block_rows, scale->row_phase);
    float inverse[VECTOR_FLOATS] = {0};
    int64_t at = -1;
    for (int i = 0; i < count; i++) {
        int64_t index = dgi_scale_index(col + i, scale->block_cols, scale->col_phase);
        inverse[i] = index == at ? inverse[i - 1] : 1.0f / dgi_scale_at(scale, scale_row, index);
        at = index;
    }
    return load(inverse);
}

/* `count` (up to VECTOR_FLOATS) elements of row `row` from column `col` on. */
INLINE void finish_vector(const dg_gemm *g, element_bytes bytes, int64_t row, int64_t col,
                          const int count, const float *sums)
{
    vector value = g->alpha * load(sums);
    if (g->beta != 0.0f)
        value += g->beta * widen(&g->c, bytes.c, row * g->c.ld + col, count);
    if (g->bias.dtype != DG_NONE)
        value += widen(&g->bias, bytes.bias, col, count);
    if (g->scale_d.dtype != DG_NONE)
        value *= inverse_scales(&g->scale_d, row, col, count);
    store(&g->d, bytes.d, row * g->d.ld + col, count, value);
}

static void finish(const dgi_cpu_result *result)
{
    const dg_gemm *g = result->gemm;
    const element_bytes bytes = {dg_dtype_bytes(g->c.dtype), dg_dtype_bytes(g->bias.dtype),
                                 dg_dtype_bytes(g->d.dtype)};
    for (int64_t r = 0; r < result->rows; r++) {
        const float *sums = result->sums + r * result->sums_stride;
        const int64_t row = result->row + r;
        int64_t c = 0;
        for (; c + VECTOR_FLOATS <= result->cols; c += VECTOR_FLOATS)
            finish_vector(g, bytes, row, result->col + c, VECTOR_FLOATS, sums + c);
        if (c < result->cols)
            finish_vector(g, bytes, row, result->col + c, (int)(result->cols - c), sums + c);
    }
}
