/* SPDX-License-Identifier: MIT */
/*
 * The AVX-512 BF16 micro-kernel (needs AVX512_BF16 and VBMI). Both FP8 formats are exact in BF16,
 * so VDPBF16PS multiplies two pairs of codes a lane exactly and adds them in FP32.
 *
 * A code becomes BF16 by two look-ups of its seven magnitude bits, one for each byte of the
 * result; the format is only a choice of tables.
 */
#include "cpu/avx512.h"

/* ---- decoding ------------------------------------------------------------------------ */

/* The BF16 bits of magnitude m; see core/formats.h. Subnormals are spelled out by leading bit. */
#define E4M3(m)                                                                                    \
    ((m) == 0x7F ? 0x7FC0                                                                          \
     : (m) >= 8  ? (((m) >> 3) + 120) << 7 | ((m)&7) << 4                                          \
     : (m) >= 4  ? 120 << 7 | ((m)&3) << 5                                                         \
     : (m) >= 2  ? 119 << 7 | ((m)&1) << 6                                                         \
     : (m) == 1  ? 118 << 7                                                                        \
                 : 0)
#define E5M2(m)                                                                                    \
    ((m) >= 0x7C ? 0x7F80 | ((m)&3) << 5                                                           \
     : (m) >= 4  ? (((m) >> 2) + 112) << 7 | ((m)&3) << 5                                          \
     : (m) >= 2  ? 112 << 7 | ((m)&1) << 6                                                         \
     : (m) == 1  ? 111 << 7                                                                        \
                 : 0)
#define HIGH(format, m) (uint8_t)(format(m) >> 8)
#define LOW(format, m)  (uint8_t)(format(m))
#define EACH4(x, f, m)  x(f, m), x(f, (m) + 1), x(f, (m) + 2), x(f, (m) + 3)
#define EACH16(x, f, m)                                                                            \
    EACH4(x, f, m), EACH4(x, f, (m) + 4), EACH4(x, f, (m) + 8), EACH4(x, f, (m) + 12)
#define EACH64(x, f, m)                                                                            \
    EACH16(x, f, m), EACH16(x, f, (m) + 16), EACH16(x, f, (m) + 32), EACH16(x, f, (m) + 48)
#define TABLE(format)                                                                              \
    {                                                                                              \
        {EACH64(HIGH, format, 0)}, {EACH64(HIGH, format, 64)}, {EACH64(LOW, format, 0)},           \
        {                                                                                          \
            EACH64(LOW, format, 64)                                                                \
        }                                                                                          \
    }
static const _Alignas(64) uint8_t e4m3_bytes[4][64] = TABLE(E4M3);
static const _Alignas(64) uint8_t e5m2_bytes[4][64] = TABLE(E5M2);

/* High and low bytes of the BF16 value of each magnitude, 128 entries in two registers each. */
typedef struct tables {
    __m512i high[2], low[2];
} tables;

INLINE tables load_tables(dg_dtype dtype)
{
    const uint8_t(*bytes)[64] = dtype == DG_E4M3 ? e4m3_bytes : e5m2_bytes;
    return (tables){{_mm512_load_si512(bytes[0]), _mm512_load_si512(bytes[1])},
                    {_mm512_load_si512(bytes[2]), _mm512_load_si512(bytes[3])}};
}

/* 64 codes as BF16: `first` has codes 0 to 7 of each 128-bit lane, `second` codes 8 to 15. */
typedef struct decoded {
    __m512i first, second;
} decoded;

INLINE decoded decode(__m512i codes, tables t)
{
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    __m512i low = _mm512_permutex2var_epi8(t.low[0], codes, t.low[1]);
    __m512i high = _mm512_permutex2var_epi8(t.high[0], codes, t.high[1]);
    high = _mm512_ternarylogic_epi32(high, codes, sign, 0xF8); /* high | codes & sign */
    return (decoded){_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}

static void decode_a(const uint8_t *codes, dg_dtype dtype, int64_t count, void *out)
{
    const tables t = load_tables(dtype);
    /* Puts codes 8i to 8i+7 where the unpacking takes them for place i of the result. */
    const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    uint16_t *to = out;
    int64_t padded = dgi_ceil_div(count, DGI_QUAD) * DGI_QUAD;
    for (int64_t i = 0; i < padded; i += 64) {
        uint64_t have = count - i >= 64 ? ~0ull : (1ull << (count - i)) - 1;
        uint64_t want = padded - i >= 64 ? ~0ull : (1ull << (padded - i)) - 1;
        __m512i some = _mm512_maskz_loadu_epi8(have, codes + i);
        decoded d = decode(_mm512_permutexvar_epi64(order, some), t);
        _mm512_mask_storeu_epi16(to + i, (__mmask32)want, d.first);
        _mm512_mask_storeu_epi16(to + i + 32, (__mmask32)(want >> 32), d.second);
    }
}

static void decode_b(const uint8_t *lines, int64_t stride, dg_dtype dtype, int32_t panels,
                     int32_t quads, void *out)
{
    const tables t = load_tables(dtype);
    const int64_t step = panels * DGI_LINE_BYTES; /* from one pair of k to the next */
    char *to = out;
    for (int32_t q = 0; q < quads; q++, to += 2 * step)
        for (int32_t p = 0; p < panels; p++) {
            const int64_t at = p * DGI_LINE_BYTES;
            decoded d = decode(_mm512_loadu_si512(lines + q * stride + at), t);
            _mm512_store_si512(to + at, d.first);
            _mm512_store_si512(to + step + at, d.second);
        }
}

/* ---- multiplying --------------------------------------------------------------------- */

INLINE __m512 dot(__m512 sum, __m512i a, __m512i b)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

INLINE __m512i broadcast_pair(const char *a)
{
    int32_t pair;
    memcpy(&pair, a, sizeof pair);
    return _mm512_set1_epi32(pair);
}

/* The most rows and panels of a tile; a call uses rows x panels of them. */
enum { ROWS = 6, PANELS = 4 };
typedef __m512 accumulators[ROWS][PANELS];

/* sums += chunk * scale_a * scale_b for segment `s`, in the contract's order. */
INLINE void promote(const dgi_cpu_tile *t, int s, int rows, int panels, accumulators chunk)
{
    const float *scale_a = t->scale_a + s * t->scale_a_stride;
    const float *scale_b = t->scale_b + s * panels * DGI_PANEL;
    const int64_t stride = t->sums_stride;
    float *sums = t->sums;
    FOR (r, rows) {
        __m512 a = _mm512_set1_ps(scale_a[r]);
        FOR (p, panels) {
            float *sum = sums + r * stride + p * DGI_PANEL;
            __m512 b = _mm512_load_ps(scale_b + p * DGI_PANEL);
            __m512 scaled = _mm512_mul_ps(chunk[r][p], a);
            _mm512_store_ps(sum, _mm512_fmadd_ps(scaled, b, _mm512_load_ps(sum)));
        }
    }
}

INLINE void tile_of(const dgi_cpu_tile *t, const int rows, const int panels)
{
    const char *a = t->a, *b = t->b;
    for (int s = 0; s < t->segments; s++) {
        accumulators chunk;
        FOR (r, rows)
            FOR (p, panels)
                chunk[r][p] = _mm512_setzero_ps();
        for (int pairs = 2 * t->segment[s].quads; pairs != 0; pairs--) {
            __m512i column[PANELS];
            FOR (p, panels)
                column[p] = _mm512_load_si512(b + p * DGI_LINE_BYTES);
            FOR (r, rows) {
                __m512i row = broadcast_pair(a + r * t->a_stride);
                FOR (p, panels)
                    chunk[r][p] = dot(chunk[r][p], row, column[p]);
            }
            a += 4;
            b += panels * DGI_LINE_BYTES;
        }
        promote(t, s, rows, panels, chunk);
    }
}

/* How far ahead packed weights are fetched; memory keeps up from 4 KB on. */
enum { AHEAD_BYTES = 8192 };

INLINE void direct_of(const dgi_cpu_tile *t, const int rows, const int panels)
{
    const tables look_up = load_tables(t->b_dtype);
    const char *a = t->a, *b = t->b;
    for (int s = 0; s < t->segments; s++) {
        accumulators chunk;
        FOR (r, rows)
            FOR (p, panels)
                chunk[r][p] = _mm512_setzero_ps();
        for (int quads = t->segment[s].quads; quads != 0; quads--) {
            FOR (p, panels) {
                const char *line = b + p * DGI_LINE_BYTES;
                _mm_prefetch(line + AHEAD_BYTES, _MM_HINT_T0);
                decoded d = decode(_mm512_loadu_si512(line), look_up);
                FOR (r, rows) {
                    const char *pair = a + r * t->a_stride;
                    chunk[r][p] = dot(chunk[r][p], broadcast_pair(pair), d.first);
                    chunk[r][p] = dot(chunk[r][p], broadcast_pair(pair + 4), d.second);
                }
            }
            a += 8;
            b += t->b_stride;
        }
        promote(t, s, rows, panels, chunk);
    }
}

/* ---- the variants -------------------------------------------------------------------- */

INLINE void tile_rows(const dgi_cpu_tile *t, const int rows)
{
    switch (t->panels) {
    case 1:
        return tile_of(t, rows, 1);
    case 2:
        return tile_of(t, rows, 2);
    case 3:
        return tile_of(t, rows, 3);
    default:
        return tile_of(t, rows, 4);
    }
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
    default:
        return tile_rows(t, 6);
    }
}

INLINE void direct_rows(const dgi_cpu_tile *t, const int rows)
{
    switch (t->panels) {
    case 1:
        return direct_of(t, rows, 1);
    case 2:
        return direct_of(t, rows, 2);
    case 3:
        return direct_of(t, rows, 3);
    default:
        return direct_of(t, rows, 4);
    }
}

static void direct(const dgi_cpu_tile *t)
{
    switch (t->rows) {
    case 1:
        return direct_rows(t, 1);
    case 2:
        return direct_rows(t, 2);
    case 3:
        return direct_rows(t, 3);
    default:
        return direct_rows(t, 4);
    }
}

const dgi_cpu_kernel dgi_gemm_avx512_bf16 = {
    .element_bytes = 2,
    .decode_a = decode_a,
    .pack = pack,
    .decode_b = decode_b,
    .tile = tile,
    .direct = direct,
    .finish = finish,
};
