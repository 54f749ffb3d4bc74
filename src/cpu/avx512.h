/* SPDX-License-Identifier: MIT */
/* What the two AVX-512 kernels share: vectors, the epilogue, and packing (layout in kernel.h). */
#include <immintrin.h>

#define VECTOR_FLOATS     16
#define WIDEN_F16(halves) _mm512_cvtph_ps((__m256i)(halves))
#define NARROW_F16(value, to)                                                                      \
    _mm256_storeu_si256(to, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT))
#include "cpu/finish.h"

/* 16 bytes of rows n, n + 4, n + 8 and n + 12, one row a 128-bit lane. */
INLINE __m512i pack_load(const uint8_t *row, int64_t ld)
{
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)row));
    v = _mm512_mask_broadcast_i32x4(v, 0x00F0, _mm_loadu_si128((const __m128i *)(row + 4 * ld)));
    v = _mm512_mask_broadcast_i32x4(v, 0x0F00, _mm_loadu_si128((const __m128i *)(row + 8 * ld)));
    return _mm512_mask_broadcast_i32x4(v, 0xF000,
                                       _mm_loadu_si128((const __m128i *)(row + 12 * ld)));
}

/* 16 rows of 16 codes into 4 lines: a transpose of 4 x 4 quads in each lane, then of each quad. */
INLINE void pack_square(const uint8_t *codes, int64_t ld, uint8_t *lines, int64_t stride)
{
    const __m512i quads =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    __m512i r0 = pack_load(codes, ld), r1 = pack_load(codes + ld, ld);
    __m512i r2 = pack_load(codes + 2 * ld, ld), r3 = pack_load(codes + 3 * ld, ld);
    __m512i low01 = _mm512_unpacklo_epi32(r0, r1), high01 = _mm512_unpackhi_epi32(r0, r1);
    __m512i low23 = _mm512_unpacklo_epi32(r2, r3), high23 = _mm512_unpackhi_epi32(r2, r3);
    __m512i line[4] = {_mm512_unpacklo_epi64(low01, low23), _mm512_unpackhi_epi64(low01, low23),
                       _mm512_unpacklo_epi64(high01, high23),
                       _mm512_unpackhi_epi64(high01, high23)};
    for (int i = 0; i < 4; i++)
        _mm512_storeu_si512(lines + i * stride, _mm512_shuffle_epi8(line[i], quads));
}

static void pack(const uint8_t *codes, int64_t ld, int64_t rows, int64_t length, uint8_t *lines,
                 int64_t stride)
{
    int64_t whole = rows == DGI_PANEL ? length / 16 * 16 : 0;
    for (int64_t k = 0; k < whole; k += 16)
        pack_square(codes + k, ld, lines + k / DGI_QUAD * stride, stride);
    for (int64_t k = whole; k < length; k += 16) { /* the edges, by way of a square of zeros */
        uint8_t square[DGI_PANEL * 16] = {0}, packed[4 * DGI_LINE_BYTES];
        int64_t width = length - k < 16 ? length - k : 16;
        for (int64_t r = 0; r < rows; r++)
            memcpy(square + 16 * r, codes + r * ld + k, (size_t)width);
        pack_square(square, 16, packed, DGI_LINE_BYTES);
        for (int64_t i = 0; i < dgi_ceil_div(width, DGI_QUAD); i++)
            memcpy(lines + (k / DGI_QUAD + i) * stride, packed + i * DGI_LINE_BYTES,
                   DGI_LINE_BYTES);
    }
}
