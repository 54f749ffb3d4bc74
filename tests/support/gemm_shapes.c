/* SPDX-License-Identifier: MIT */
/* The GEMMs that tests describe: recipes, given shapes, random ones. See gemm_case.h. */
#include "gemm_case.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

const recipe recipes[] = {
    {"tensor", 0, 0, 0, 0, DG_F32},         {"token_channel", 1, 0, 1, 0, DG_F32},
    {"block128", 1, 128, 128, 128, DG_F32}, {"block1x128", 1, 128, 1, 128, DG_F32},
    {"block32", 32, 32, 32, 32, DG_F32},    {"mx", 1, 32, 1, 32, DG_UE8M0},
};
const int recipe_count = sizeof recipes / sizeof recipes[0];

const recipe *recipe_named(const char *name)
{
    for (int i = 0; i < recipe_count; i++)
        if (strcmp(recipes[i].name, name) == 0)
            return &recipes[i];
    fail_msg("there is no recipe named %s", name);
    return NULL;
}

dg_scale scale_of(dg_dtype dtype, int64_t rows, int64_t cols, int32_t block_rows,
                  int32_t block_cols, int32_t row_phase, int32_t col_phase)
{
    dg_scale s = dg_scale_of(NULL, dtype, rows, cols, block_rows, block_cols);
    s.row_phase = row_phase;
    s.col_phase = col_phase;
    s.rows = dg_scale_count(rows, block_rows, row_phase);
    s.cols = s.row_stride = dg_scale_count(cols, block_cols, col_phase);
    return s;
}

dg_gemm gemm_of(const recipe *recipe, int64_t m, int64_t n, int64_t k, dg_dtype d)
{
    dg_gemm g = DG_GEMM_INIT;
    g.a = dg_matrix_of(NULL, DG_E4M3, m, k);
    g.b = dg_matrix_of(NULL, DG_E4M3, n, k);
    g.d = dg_matrix_of(NULL, d, m, n);
    g.scale_a = scale_of(recipe->scale, m, k, recipe->a_rows, recipe->a_cols, 0, 0);
    g.scale_b = scale_of(recipe->scale, n, k, recipe->b_rows, recipe->b_cols, 0, 0);
    if (d == DG_E4M3 || d == DG_E5M2)
        g.scale_d = scale_of(DG_F32, m, n, 1, 0, 0, 0);
    return g;
}

/* ---- parts --------------------------------------------------------------------------- */

static dg_matrix matrix_part(dg_matrix m, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    m.data = (char *)m.data + (size_t)(row * m.ld + col) * dg_dtype_bytes(m.dtype);
    m.rows = rows, m.cols = cols;
    return m;
}

/* Moves one axis of a scale to begin at matrix row or column `first`. */
static void scale_axis_part(dg_scale *s, int64_t first, int64_t size, int32_t block, int64_t stride,
                            int32_t *phase, int64_t *count)
{
    if (block == 0)
        return;
    s->data =
        (char *)s->data + (size_t)((first + *phase) / block * stride) * dg_dtype_bytes(s->dtype);
    *phase = (int32_t)((first + *phase) % block);
    *count = dg_scale_count(size, block, *phase);
}

static dg_scale scale_part(dg_scale s, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    scale_axis_part(&s, row, rows, s.block_rows, s.row_stride, &s.row_phase, &s.rows);
    scale_axis_part(&s, col, cols, s.block_cols, s.col_stride, &s.col_phase, &s.cols);
    return s;
}

dg_gemm gemm_part(const dg_gemm *whole, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    dg_gemm g = *whole;
    int64_t k = g.a.cols;
    g.a = matrix_part(g.a, row, rows, 0, k);
    g.scale_a = scale_part(g.scale_a, row, rows, 0, k);
    g.b = matrix_part(g.b, col, cols, 0, k);
    g.scale_b = scale_part(g.scale_b, col, cols, 0, k);
    g.d = matrix_part(g.d, row, rows, col, cols);
    if (g.scale_d.dtype != DG_NONE)
        g.scale_d = scale_part(g.scale_d, row, rows, col, cols);
    if (g.c.dtype != DG_NONE)
        g.c = matrix_part(g.c, row, rows, col, cols);
    if (g.bias.dtype != DG_NONE)
        g.bias = matrix_part(g.bias, 0, 1, col, cols);
    return g;
}

/* ---- random -------------------------------------------------------------------------- */

#define PICK(r, ...)                                                                               \
    ((const int32_t[]){__VA_ARGS__}[rng_range(                                                     \
        r, 0, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t) - 1)])

static dg_dtype random_wide(rng *r)
{
    return (dg_dtype)PICK(r, DG_F32, DG_BF16, DG_F16);
}

static dg_dtype random_fp8(rng *r)
{
    return (dg_dtype)PICK(r, DG_E4M3, DG_E4M3, DG_E5M2);
}

static int64_t random_ld(rng *r, int64_t cols)
{
    return rng_chance(r, 0.5) ? cols : cols + rng_range(r, 1, 40);
}

static dg_matrix random_matrix(rng *r, dg_dtype dtype, int64_t rows, int64_t cols)
{
    dg_matrix m = dg_matrix_of(NULL, dtype, rows, cols);
    m.ld = random_ld(r, cols);
    return m;
}

static dg_scale random_scale(rng *r, dg_dtype dtype, int64_t rows, int64_t cols, int32_t block_rows,
                             int32_t block_cols)
{
    bool phased = rng_chance(r, 0.3);
    int32_t row_phase = phased && block_rows > 0 ? (int32_t)rng_range(r, 0, block_rows - 1) : 0;
    int32_t col_phase = phased && block_cols > 0 ? (int32_t)rng_range(r, 0, block_cols - 1) : 0;
    dg_scale s = scale_of(dtype, rows, cols, block_rows, block_cols, row_phase, col_phase);
    int64_t padding = rng_chance(r, 0.3) ? rng_range(r, 1, 8) : 0;
    s.row_stride = s.cols + padding;
    if (rng_chance(r, 0.3)) { /* columns contiguous */
        s.row_stride = 1;
        s.col_stride = s.rows + padding;
    }
    return s;
}

static int32_t random_block(rng *r)
{
    return PICK(r, 0, 1, 2, 3, 7, 16, 24, 32, 64, 100, 128, 256);
}

dg_gemm gemm_random(rng *r, int64_t largest)
{
    int64_t m = rng_range(r, 1, rng_chance(r, 0.5) ? largest : largest < 16 ? largest : 16);
    int64_t n = rng_range(r, 1, largest), k = rng_range(r, 1, largest);
    dg_gemm g = DG_GEMM_INIT;
    g.a = random_matrix(r, random_fp8(r), m, k);
    g.b = random_matrix(r, random_fp8(r), n, k);
    g.d = random_matrix(r, rng_chance(r, 0.25) ? random_fp8(r) : random_wide(r), m, n);

    recipe chosen = recipes[rng_range(r, 0, recipe_count - 1)];
    if (rng_chance(r, 0.4)) {
        chosen.a_rows = random_block(r), chosen.a_cols = random_block(r);
        chosen.b_rows = random_block(r), chosen.b_cols = random_block(r);
        chosen.scale = rng_chance(r, 0.5) ? DG_F32 : DG_UE8M0;
    }
    g.scale_a = random_scale(r, chosen.scale, m, k, chosen.a_rows, chosen.a_cols);
    dg_dtype scale_b = rng_chance(r, 0.9) ? chosen.scale : DG_F32;
    g.scale_b = random_scale(r, scale_b, n, k, chosen.b_rows, chosen.b_cols);
    if (g.d.dtype == DG_E4M3 || g.d.dtype == DG_E5M2)
        g.scale_d = random_scale(r, rng_chance(r, 0.8) ? DG_F32 : DG_UE8M0, m, n, random_block(r),
                                 random_block(r));

    if (rng_chance(r, 0.5))
        g.alpha = (float)(rng_normal(r) + 0.1);
    if (rng_chance(r, 0.4)) {
        g.c = random_matrix(r, random_wide(r), m, n);
        g.beta = rng_chance(r, 0.7) ? (float)rng_normal(r) : 0.0f;
    }
    if (rng_chance(r, 0.4))
        g.bias = dg_matrix_of(NULL, random_wide(r), 1, n);
    return g;
}

/* ---- text ---------------------------------------------------------------------------- */

static int scale_text(char *text, size_t bytes, const char *name, const dg_scale *s)
{
    if (s->dtype == DG_NONE)
        return 0;
    return snprintf(text, bytes, ", %s %s (%d,%d) phase (%d,%d) strides (%lld,%lld)", name,
                    dg_dtype_name(s->dtype), s->block_rows, s->block_cols, s->row_phase,
                    s->col_phase, (long long)s->row_stride, (long long)s->col_stride);
}

const char *gemm_text(const dg_gemm *g)
{
    static _Thread_local char text[1024];
    int at = snprintf(text, sizeof text,
                      "m %lld n %lld k %lld, a %s ld %lld, b %s ld %lld, c %s ld %lld, d %s ld "
                      "%lld, bias %s, alpha %g, beta %g",
                      (long long)g->d.rows, (long long)g->d.cols, (long long)g->a.cols,
                      dg_dtype_name(g->a.dtype), (long long)g->a.ld, dg_dtype_name(g->b.dtype),
                      (long long)g->b.ld, dg_dtype_name(g->c.dtype), (long long)g->c.ld,
                      dg_dtype_name(g->d.dtype), (long long)g->d.ld, dg_dtype_name(g->bias.dtype),
                      (double)g->alpha, (double)g->beta);
    at += scale_text(text + at, sizeof text - (size_t)at, "scale_a", &g->scale_a);
    at += scale_text(text + at, sizeof text - (size_t)at, "scale_b", &g->scale_b);
    scale_text(text + at, sizeof text - (size_t)at, "scale_d", &g->scale_d);
    return text;
}
