/* SPDX-License-Identifier: MIT */
/*
 * The FP32 micro-kernel for every instruction set without BF16 products; gemm_generic.c,
 * gemm_avx2.c and gemm_avx512.c are this body compiled for theirs. Before including it they define
 *
 *     VECTOR_FLOATS              4, 8 or 16
 *     BROADCAST(x)               a vector of x
 *     MULTIPLY_ADD(x, y, z)      x * y + z on vectors
 *     TILE_ROWS, TILE_PANELS     the largest tile; rows at most 12, panels 1 or 2
 *     KERNEL                     the name of the dgi_cpu_kernel to define
 *
 * and provide pack() and finish() of the contract in kernel.h.
 */
#include "cpu/vector.h"

enum { PANEL_VECTORS = DGI_PANEL / VECTOR_FLOATS };

/* ---- decoding ------------------------------------------------------------------------ */

/*
 * The values of codes, formats.h in other words. A normal code's bits are shifted into place and
 * its exponent rebased; a subnormal is its magnitude in steps of the format.
 */
INLINE vector decode(vector_bits code, dg_dtype dtype)
{
    const bool e4m3 = dtype == DG_E4M3;
    const int mantissa = e4m3 ? 3 : 2, special = e4m3 ? 0x7F : 0x7C;
    const uint32_t rebase = (e4m3 ? 127u - 7 : 127u - 15) << 23;
    const float step = e4m3 ? 0x1p-9f : 0x1p-16f;

    const vector_ints magnitude = (vector_ints)(code & 0x7F);
    vector_bits normal = ((vector_bits)magnitude << (23 - mantissa)) + rebase;
    vector_bits small = (vector_bits)(__builtin_convertvector(magnitude, vector) * step);
    vector_bits bits = blend((vector_bits)(magnitude < 1 << mantissa), small, normal);
    bits |= (vector_bits)(magnitude >= special) & 0x7F800000;
    return (vector)(bits | (code & 0x80) << 24);
}

INLINE void decode_row(const uint8_t *codes, dg_dtype dtype, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i += VECTOR_FLOATS) {
        vector_bytes some = {0};
        int64_t left = count - i, padded = dgi_ceil_div(left, DGI_QUAD) * DGI_QUAD;
        memcpy(&some, codes + i, left < VECTOR_FLOATS ? (size_t)left : sizeof some);
        vector values = decode(__builtin_convertvector(some, vector_bits), dtype);
        memcpy(out + i, &values,
               padded < VECTOR_FLOATS ? (size_t)padded * sizeof *out : sizeof values);
    }
}

static void decode_a(const uint8_t *codes, dg_dtype dtype, int64_t count, void *out)
{
    if (dtype == DG_E4M3)
        decode_row(codes, DG_E4M3, count, out);
    else
        decode_row(codes, DG_E5M2, count, out);
}

/* Two k of the columns in one vector, which are the same half of neighbouring 16-byte lanes. */
INLINE void decode_pair(const uint8_t *half_lanes, dg_dtype dtype, int64_t step, float *out)
{
    uint64_t __attribute__((vector_size(2 * VECTOR_FLOATS))) halves;
    FOR (lane, VECTOR_FLOATS / 4) {
        uint64_t half;
        memcpy(&half, half_lanes + 16 * lane, sizeof half);
        halves[lane] = half;
    }
    vector_bits pairs = __builtin_convertvector((vector_halves)halves, vector_bits);
    vector first = decode(pairs & 0xFF, dtype), second = decode(pairs >> 8, dtype);
    memcpy(out, &first, sizeof first);
    memcpy(out + step, &second, sizeof second);
}

INLINE void decode_lines(const uint8_t *lines, int64_t stride, dg_dtype dtype, int32_t panels,
                         int32_t quads, float *out)
{
    const int64_t step = panels * DGI_PANEL; /* floats from one k to the next */
    for (int32_t q = 0; q < quads; q++)
        for (int32_t p = 0; p < panels; p++)
            FOR (v, PANEL_VECTORS) {
                const uint8_t *lanes =
                    lines + q * stride + p * DGI_LINE_BYTES + v * VECTOR_FLOATS * DGI_QUAD;
                float *to = out + q * DGI_QUAD * step + p * DGI_PANEL + v * VECTOR_FLOATS;
                decode_pair(lanes, dtype, step, to);
                decode_pair(lanes + 8, dtype, step, to + 2 * step);
            }
}

static void decode_b(const uint8_t *lines, int64_t stride, dg_dtype dtype, int32_t panels,
                     int32_t quads, void *out)
{
    if (dtype == DG_E4M3)
        decode_lines(lines, stride, DG_E4M3, panels, quads, out);
    else
        decode_lines(lines, stride, DG_E5M2, panels, quads, out);
}

/* ---- multiplying --------------------------------------------------------------------- */

INLINE void tile_of(const dgi_cpu_tile *t, const int rows, const int panels)
{
    const int vectors = panels * PANEL_VECTORS;
    const float *a = t->a, *b = t->b;
    const int64_t a_stride = t->a_stride / (int64_t)sizeof *a;
    for (int s = 0; s < t->segments; s++) {
        vector chunk[TILE_ROWS][TILE_PANELS * PANEL_VECTORS];
        FOR (r, rows)
            FOR (v, vectors)
                chunk[r][v] = (vector){0};
        for (int k = DGI_QUAD * t->segment[s].quads; k != 0; k--) {
            vector column[TILE_PANELS * PANEL_VECTORS];
            FOR (v, vectors)
                column[v] = load(b + v * VECTOR_FLOATS);
            FOR (r, rows) {
                vector row = BROADCAST(a[r * a_stride]);
                FOR (v, vectors)
                    chunk[r][v] = MULTIPLY_ADD(row, column[v], chunk[r][v]);
            }
            a++;
            b += panels * DGI_PANEL;
        }
        const float *scale_b = t->scale_b + s * panels * DGI_PANEL;
        FOR (r, rows) {
            vector scale_a = BROADCAST(t->scale_a[s * t->scale_a_stride + r]);
            float *sums = t->sums + r * t->sums_stride;
            FOR (v, vectors) {
                int64_t i = v * VECTOR_FLOATS;
                vector sum = MULTIPLY_ADD(chunk[r][v] * scale_a, load(scale_b + i), load(sums + i));
                memcpy(sums + i, &sum, sizeof sum);
            }
        }
    }
}

INLINE void tile_rows(const dgi_cpu_tile *t, const int rows)
{
    if (rows > TILE_ROWS) /* never called: keeps the variant out of the code */
        return;
    if (TILE_PANELS == 2 && t->panels == 2)
        tile_of(t, rows, TILE_PANELS);
    else
        tile_of(t, rows, 1);
}

static void tile(const dgi_cpu_tile *t)
{
    switch (t->rows) {
    case 1:
        return tile_rows(t, 1);
    case 2:
        return tile_rows(t, 2);
    case 3:
        return tile_rows(t, 3);
    case 4:
        return tile_rows(t, 4);
    case 5:
        return tile_rows(t, 5);
    case 6:
        return tile_rows(t, 6);
    case 7:
        return tile_rows(t, 7);
    case 8:
        return tile_rows(t, 8);
    case 9:
        return tile_rows(t, 9);
    case 10:
        return tile_rows(t, 10);
    case 11:
        return tile_rows(t, 11);
    default:
        return tile_rows(t, 12);
    }
}

const dgi_cpu_kernel KERNEL = {
    .element_bytes = sizeof(float),
    .decode_a = decode_a,
    .pack = pack,
    .decode_b = decode_b,
    .tile = tile,
    .finish = finish,
};
