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
 * The value of a code, without a branch so that loops over it vectorise: formats.h in other words.
 * A subnormal is its magnitude in steps of the format.
 */
INLINE float decode(uint32_t code, dg_dtype dtype)
{
    uint32_t magnitude = code & 0x7F, sign = (code & 0x80) << 24;
    if (dtype == DG_E4M3) {
        uint32_t small = dgi_f32_to_bits((float)(int32_t)magnitude * 0x1p-9f);
        uint32_t bits = magnitude < 8 ? small : (magnitude << 20) + (120u << 23);
        bits = magnitude == 0x7F ? 0x7FC00000u : bits;
        return dgi_f32_from_bits(bits | sign);
    }
    uint32_t small = dgi_f32_to_bits((float)(int32_t)magnitude * 0x1p-16f);
    uint32_t bits = magnitude < 4 ? small : (magnitude << 21) + (112u << 23);
    bits = magnitude >= 0x7C ? 0x7F800000u | (magnitude & 3) << 21 : bits;
    return dgi_f32_from_bits(bits | sign);
}

INLINE void decode_row(const uint8_t *codes, dg_dtype dtype, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = decode(codes[i], dtype);
    for (int64_t i = count; i % DGI_QUAD != 0; i++)
        out[i] = 0.0f;
}

static void decode_a(const uint8_t *codes, dg_dtype dtype, int64_t count, void *out)
{
    if (dtype == DG_E4M3)
        decode_row(codes, DG_E4M3, count, out);
    else
        decode_row(codes, DG_E5M2, count, out);
}

/* Two k of 16 columns: the 16-bit words of half a line's lanes. */
INLINE void decode_pair(const uint8_t *half_lanes, dg_dtype dtype, int64_t step, float *out)
{
    uint16_t words[DGI_PANEL];
    for (int lane = 0; lane < 4; lane++)
        memcpy(words + 4 * lane, half_lanes + 16 * lane, 8);
    for (int n = 0; n < DGI_PANEL; n++)
        out[n] = decode(words[n] & 0xFF, dtype);
    for (int n = 0; n < DGI_PANEL; n++)
        out[step + n] = decode(words[n] >> 8, dtype);
}

INLINE void decode_panels(const uint8_t *panel, int64_t stride, dg_dtype dtype, int32_t panels,
                          int32_t lines, float *out)
{
    int64_t step = panels * DGI_PANEL; /* floats from one k to the next */
    for (int32_t p = 0; p < panels; p++)
        for (int32_t i = 0; i < lines; i++) {
            const uint8_t *line = panel + p * stride + i * DGI_LINE_BYTES;
            float *to = out + p * DGI_PANEL + i * DGI_QUAD * step;
            decode_pair(line, dtype, step, to);
            decode_pair(line + 8, dtype, step, to + 2 * step);
        }
}

static void decode_b(const uint8_t *panel, int64_t stride, dg_dtype dtype, int32_t panels,
                     int32_t lines, void *out)
{
    if (dtype == DG_E4M3)
        decode_panels(panel, stride, DG_E4M3, panels, lines, out);
    else
        decode_panels(panel, stride, DG_E5M2, panels, lines, out);
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
    if (rows > TILE_ROWS)
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
