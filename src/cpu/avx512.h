/* SPDX-License-Identifier: MIT */
/* What the two AVX-512 kernels share: vectors, the epilogue, and packing (layout in kernel.h). */
#include <immintrin.h>

#define VECTOR_FLOATS     16
#define WIDEN_F16(halves) _mm512_cvtph_ps((__m256i)(halves))
#define NARROW_F16(value, to)                                                                      \
    _mm256_storeu_si256(to, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT))
#include "cpu/finish.h"

/* Exchanges lanes: r[j] becomes lane j of r[0], r[1], r[2] and r[3]. */
INLINE void transpose_lanes(__m512i r[4])
{
    __m512i even01 = _mm512_shuffle_i32x4(r[0], r[1], 0x88),
            odd01 = _mm512_shuffle_i32x4(r[0], r[1], 0xDD);
    __m512i even23 = _mm512_shuffle_i32x4(r[2], r[3], 0x88),
            odd23 = _mm512_shuffle_i32x4(r[2], r[3], 0xDD);
    r[0] = _mm512_shuffle_i32x4(even01, even23, 0x88);
    r[1] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
    r[2] = _mm512_shuffle_i32x4(even01, even23, 0xDD);
    r[3] = _mm512_shuffle_i32x4(odd01, odd23, 0xDD);
}

/* In each lane, rows r[0] to r[3] of 16 codes into the quarters of 4 lines. */
INLINE void transpose_quads(__m512i r[4])
{
    const __m512i pairs =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    __m512i low01 = _mm512_unpacklo_epi32(r[0], r[1]), high01 = _mm512_unpackhi_epi32(r[0], r[1]);
    __m512i low23 = _mm512_unpacklo_epi32(r[2], r[3]), high23 = _mm512_unpackhi_epi32(r[2], r[3]);
    r[0] = _mm512_shuffle_epi8(_mm512_unpacklo_epi64(low01, low23), pairs);
    r[1] = _mm512_shuffle_epi8(_mm512_unpackhi_epi64(low01, low23), pairs);
    r[2] = _mm512_shuffle_epi8(_mm512_unpacklo_epi64(high01, high23), pairs);
    r[3] = _mm512_shuffle_epi8(_mm512_unpackhi_epi64(high01, high23), pairs);
}

/*
 * Up to 16 rows of up to 64 codes into `count` lines. Each row is read by one load, so that rows
 * which lie a power of two apart do not drive each other out of the cache.
 */
INLINE void pack_square(const uint8_t *codes, int64_t ld, int64_t rows, __mmask64 have,
                        uint8_t *lines, int64_t stride, const int count)
{
    __m512i square[4][4]; /* [n % 4][n / 4], then [n % 4][k / 16] */
    /* A row that is not there has no address: a single one may have any ld. */
    FOR (n, DGI_PANEL) {
        const uint8_t *row = n < rows ? codes + n * ld : codes;
        square[n % 4][n / 4] = _mm512_maskz_loadu_epi8(n < rows ? have : 0, row);
    }
    FOR (n, 4)
        transpose_lanes(square[n]);
    FOR (k, 4) {
        __m512i line[4] = {square[0][k], square[1][k], square[2][k], square[3][k]};
        transpose_quads(line);
        FOR (i, 4)
            if (4 * k + i < count)
                _mm512_storeu_si512(lines + (4 * k + i) * stride, line[i]);
    }
}

static void pack(const uint8_t *codes, int64_t ld, int64_t rows, int64_t length, uint8_t *lines,
                 int64_t stride)
{
    int64_t k = 0;
    for (; k + 64 <= length; k += 64, lines += 16 * stride)
        pack_square(codes + k, ld, rows, ~0ull, lines, stride, 16);
    if (k < length)
        pack_square(codes + k, ld, rows, (1ull << (length - k)) - 1, lines, stride,
                    (int)dgi_ceil_div(length - k, DGI_QUAD));
}
