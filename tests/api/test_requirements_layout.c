/* SPDX-License-Identifier: MIT */
/*
 * Requirements G19 to G24 and G46 (docs/requirements.md): strides, alignment, layouts and
 * granularities of scales, shards.
 */
#include "core/formats.h"
#include "gemm_case.h"
#include "oracle.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t ONE = 0x38; /* 1.0 in E4M3 */

/* D's elements of two cases of the same shape, but perhaps not the same ld, have the same bits. */
static void assert_same_result(const gemm_case *x, const gemm_case *y)
{
    const dg_matrix *dx = &x->gemm.d, *dy = &y->gemm.d;
    size_t element = dg_dtype_bytes(dx->dtype);
    for (int64_t i = 0; i < dx->rows; i++)
        assert_memory_equal((char *)dx->data + (size_t)(i * dx->ld) * element,
                            (char *)dy->data + (size_t)(i * dy->ld) * element,
                            (size_t)dx->cols * element);
}

/* A, B and D as views into wider buffers, alone and together. */
static void g19_views_into_wider_buffers(void **state)
{
    (void)state;
    rng r = rng_new(19);
    dg_context *context = test_context(NULL);
    dg_gemm shape = gemm_of(recipe_named("block128"), 512, 512, 512, DG_BF16);
    rng same = r;
    gemm_case *packed = gemm_case_new(&same, &shape, CASE_PLAIN);
    assert_ok(gemm_case_run(packed, context));
    gemm_case_check(packed);
    for (int views = 1; views < 8; views++) {
        dg_gemm viewed = shape;
        viewed.a.ld = views & 1 ? 1024 : 512;
        viewed.b.ld = views & 2 ? 1024 : 512;
        viewed.d.ld = views & 4 ? 1024 : 512;
        same = r; /* the same draws fill the views */
        gemm_case *c = gemm_case_new(&same, &viewed, CASE_PLAIN);
        assert_ok(gemm_case_run(c, context));
        assert_same_result(c, packed);
        gemm_case_check_surroundings(c);
        gemm_case_free(c);
    }
    gemm_case_free(packed);
    dg_destroy(context);
}

/* GPUs refuse elements that are not at a multiple of their size; everything else is right. */
static bool refused_at(size_t shift, dg_dtype dtype)
{
    return test_device() != DG_CPU && shift % dg_dtype_bytes(dtype) != 0;
}

/* The call was refused for that operand, whose address and need are told. */
static void assert_misaligned(dg_status status, const char *name, size_t shift, dg_dtype dtype)
{
    char text[128];
    snprintf(text, sizeof text, "%s is at 0x", name);
    assert_refused(status, DG_MISALIGNED, text);
    snprintf(text, sizeof text,
             ", %zu past a multiple of 16: on CUDA devices an element of %s lies at a multiple of "
             "%zu",
             shift, dg_dtype_name(dtype), dg_dtype_bytes(dtype));
    assert_refused(status, DG_MISALIGNED, text);
}

/*
 * Each operand one to four bytes behind an aligned address: right, on the CPU with the same bits;
 * or refused, and nothing written.
 */
static void g20_any_alignment(void **state)
{
    (void)state;
    rng r = rng_new(20);
    dg_context *context = test_context(NULL);
    const int64_t m = test_rounds(200, 70), n = test_rounds(264, 136);
    dg_gemm shape = gemm_of(recipe_named("block128"), m, n, 512, DG_F32);
    shape.c = dg_matrix_of(NULL, DG_F32, m, n);
    shape.beta = 1.0f;
    shape.bias = dg_matrix_of(NULL, DG_F32, 1, n);
    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
    assert_ok(gemm_case_run(c, context));
    gemm_case_check(c);
    void *bits = gemm_case_copy_d(c);
    dg_gemm *g = &c->gemm;
    const struct {
        const char *name;
        guard *memory;
        void **data;
        dg_dtype dtype;
    } operands[] = {
        {"a", &c->a, &g->a.data, g->a.dtype},
        {"b", &c->b, &g->b.data, g->b.dtype},
        {"c", &c->c, &g->c.data, g->c.dtype},
        {"d", &c->d, &g->d.data, g->d.dtype},
        {"bias", &c->bias, &g->bias.data, g->bias.dtype},
        {"scale_a", &c->scale_a, &g->scale_a.data, g->scale_a.dtype},
        {"scale_b", &c->scale_b, &g->scale_b.data, g->scale_b.dtype},
    };
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++)
        for (size_t shift = 1; shift <= 4; shift++) {
            const guard aligned = *operands[i].memory;
            const dg_dtype dtype = operands[i].dtype;
            guard moved = guard_new(aligned.bytes + shift, GUARD_BEFORE, 0xFF);
            moved.data = (char *)moved.data + shift;
            moved.bytes = aligned.bytes;
            memcpy(moved.data, aligned.data, aligned.bytes);
            *operands[i].memory = moved;
            *operands[i].data = moved.data;
            for (int packed = 0; packed < 2; packed++) {
                const dg_status status =
                    packed ? gemm_case_run_packed(c, context) : gemm_case_run(c, context);
                if (refused_at(shift, dtype)) {
                    assert_misaligned(status, operands[i].name, shift, dtype);
                    gemm_case_check_untouched(c);
                    continue;
                }
                assert_ok(status);
                gemm_case_check(c);
                if (test_device() == DG_CPU)
                    assert_memory_equal(c->d.data, bits, c->d.bytes);
            }
            *operands[i].memory = aligned;
            *operands[i].data = aligned.data;
            guard_free(&moved);
        }
    free(bits);
    gemm_case_free(c);
    dg_destroy(context);
}

/* What a quantisation and its inverse read and write. */
enum { WIDE, CODES, SCALES, BACK, ARRAYS };
enum { ROWS = 5, COLS = 300, ROOM = ROWS * COLS * 4 + 8, UNTOUCHED = 0x5A };

static dg_status quantise_and_back(dg_context *context, dg_dtype type, char *const host[ARRAYS])
{
    const size_t bytes = ROOM - 8;
    void *at[ARRAYS];
    for (int i = 0; i < ARRAYS; i++)
        at[i] = test_to_device(context, host[i], bytes);
    dg_quantize q = DG_QUANTIZE_INIT;
    q.input = dg_matrix_of(at[WIDE], type, ROWS, COLS);
    q.output = dg_matrix_of(at[CODES], DG_E4M3, ROWS, COLS);
    q.scale = dg_scale_of(at[SCALES], DG_F32, ROWS, COLS, 1, 128);
    dg_dequantize d = DG_DEQUANTIZE_INIT;
    d.input = q.output, d.scale = q.scale;
    d.output = dg_matrix_of(at[BACK], type, ROWS, COLS);
    dg_status status = dg_quantize_run(context, &q, NULL);
    if (status == DG_OK)
        status = dg_dequantize_run(context, &d, NULL);
    for (int i = 0; i < ARRAYS; i++)
        test_from_device(context, at[i], host[i], bytes);
    return status;
}

/* The same for quantising and its inverse: each array in turn `shift` bytes off, the same bits. */
static void g20_any_alignment_of_quantised(void **state)
{
    (void)state;
    static const char *const names[ARRAYS] = {"input", "output", "scale", "output"};
    static const dg_dtype types[] = {DG_F32, DG_BF16, DG_F16};
    static _Alignas(256) char aligned[ARRAYS][(ROOM + 255) / 256 * 256];
    static _Alignas(256) char others[ARRAYS][(ROOM + 255) / 256 * 256];
    rng r = rng_new(220);
    dg_context *context = test_context(NULL);
    for (int t = 0; t < 3; t++)
        for (int array = 0; array < ARRAYS; array++)
            for (size_t shift = 1; shift <= 4; shift++) {
                char *from[ARRAYS], *to[ARRAYS];
                memset(aligned, UNTOUCHED, sizeof aligned);
                memset(others, UNTOUCHED, sizeof others);
                for (int i = 0; i < ARRAYS; i++)
                    from[i] = aligned[i], to[i] = others[i] + (i == array ? shift : 0);
                rng_fill_normal(&r, from[WIDE], types[t], ROWS * COLS, 3.0);
                memcpy(to[WIDE], from[WIDE], ROOM - 8);
                assert_ok(quantise_and_back(context, types[t], from));

                const dg_dtype dtypes[ARRAYS] = {types[t], DG_E4M3, DG_F32, types[t]};
                const bool refused = refused_at(shift, dtypes[array]);
                const dg_status status = quantise_and_back(context, types[t], to);
                if (refused)
                    assert_misaligned(status, names[array], shift, dtypes[array]);
                else
                    assert_ok(status);
                /* The inverse alone may be refused: then the codes and scales are there. */
                const int first_unwritten = !refused ? ARRAYS : array == BACK ? BACK : CODES;
                for (int i = 0; i < ROOM - 8; i++)
                    for (int j = 0; j < ARRAYS; j++)
                        assert_int_equal(to[j][i], j < first_unwritten ? from[j][i] : UNTOUCHED);
            }
    dg_destroy(context);
}

/* The leading dimension of a single row is never used, whatever it is. */
static void single_rows_have_any_ld(void **state)
{
    (void)state;
    if (test_device() != DG_CPU)
        skip();
    rng r = rng_new(120);
    dg_context *context = test_context(NULL);
    dg_gemm shape = gemm_of(recipe_named("tensor"), 1, 1, 200, DG_F32);
    shape.c = dg_matrix_of(NULL, DG_F32, 1, 1);
    shape.beta = 1.0f;
    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
    assert_ok(gemm_case_run(c, context));
    gemm_case_check(c);
    const int64_t lds[] = {INT64_MAX, INT64_MAX / 2, 0, INT64_MIN};
    for (size_t i = 0; i < sizeof lds / sizeof lds[0]; i++) {
        float d = -1.0f;
        dg_gemm g = c->gemm;
        g.a.ld = g.b.ld = g.c.ld = g.d.ld = lds[i];
        g.d.data = &d;
        assert_ok(dg_gemm_run(context, &g, NULL));
        assert_memory_equal(&d, c->gemm.d.data, sizeof d);
        dg_weights *weights;
        assert_ok(dg_weights_pack(context, &g.b, &g.scale_b, NULL, 0, NULL, &weights));
        g.b.dtype = g.scale_b.dtype = DG_NONE;
        g.weights = weights;
        d = -1.0f;
        assert_ok(dg_gemm_run(context, &g, NULL));
        assert_memory_equal(&d, c->gemm.d.data, sizeof d);
        dg_weights_destroy(weights);
    }
    gemm_case_free(c);
    dg_destroy(context);
}

/* Scales contiguous along K or along M: the strides say which, and both are right. */
static void g21_either_axis_of_scales_contiguous(void **state)
{
    (void)state;
    rng r = rng_new(21);
    dg_context *context = test_context(NULL);
    for (int m_contiguous = 0; m_contiguous < 2; m_contiguous++) {
        dg_gemm shape = gemm_of(recipe_named("block1x128"), 8, 128, 1024, DG_F32);
        if (m_contiguous)
            shape.scale_a.row_stride = 1, shape.scale_a.col_stride = 8;
        gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
        memset(c->a.data, ONE, c->a.bytes);
        memset(c->b.data, ONE, c->b.bytes);
        const dg_scale *s = &c->gemm.scale_a;
        for (int m = 0; m < 8; m++)
            for (int block = 0; block < 8; block++)
                ((float *)s->data)[m * s->row_stride + block * s->col_stride] =
                    ldexpf(1.0f, m - block);
        for (size_t i = 0; i < c->scale_b.bytes / sizeof(float); i++)
            ((float *)c->scale_b.data)[i] = 1.0f;
        assert_ok(gemm_case_run(c, context));
        for (int m = 0; m < 8; m++)
            for (int n = 0; n < 128; n++)
                assert_true(((float *)c->d.data)[m * 128 + n] == 255.0f * ldexpf(1.0f, m));
        gemm_case_free(c);
    }
    dg_destroy(context);
}

/*
 * What lies in the padding of a scale buffer has no influence: behind its rows, or, where columns
 * lie one after the other, behind its columns.
 */
static void g22_padding_of_scales_is_not_read(void **state)
{
    (void)state;
    rng r = rng_new(22);
    dg_context *context = test_context(NULL);
    enum { M = 64, K = 2880, PADDED_COLS = 92, PADDING_ROWS = 64 };
    const int64_t n = test_rounds(2880, 320);
    dg_gemm shape = gemm_of(recipe_named("mx"), M, n, K, DG_BF16);
    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
    assert_ok(gemm_case_run(c, context));
    gemm_case_check(c);
    const uint8_t fills[] = {0xFF, 0x7F};
    for (int i = 0; i < 4; i++) {
        const int fill = fills[i % 2];
        const bool by_column = i >= 2;
        dg_gemm padded_shape = shape;
        dg_scale *scales[] = {&padded_shape.scale_a, &padded_shape.scale_b};
        for (int s = 0; s < 2; s++) {
            scales[s]->row_stride = by_column ? 1 : PADDED_COLS;
            scales[s]->col_stride = by_column ? scales[s]->rows + PADDING_ROWS : 1;
        }
        rng other = rng_new(23);
        gemm_case *padded = gemm_case_new(&other, &padded_shape, CASE_PLAIN);
        memcpy(padded->a.data, c->a.data, c->a.bytes);
        memcpy(padded->b.data, c->b.data, c->b.bytes);
        memset(padded->scale_a.data, fill, padded->scale_a.bytes);
        memset(padded->scale_b.data, fill, padded->scale_b.bytes);
        const dg_scale *from[] = {&c->gemm.scale_a, &c->gemm.scale_b};
        const dg_scale *to[] = {&padded->gemm.scale_a, &padded->gemm.scale_b};
        for (int s = 0; s < 2; s++)
            for (int64_t row = 0; row < from[s]->rows; row++)
                for (int64_t col = 0; col < from[s]->cols; col++)
                    ((uint8_t *)to[s]->data)[row * to[s]->row_stride + col * to[s]->col_stride] =
                        ((uint8_t *)from[s]->data)[row * from[s]->row_stride + col];
        assert_ok(gemm_case_run(padded, context));
        assert_same_result(padded, c);
        assert_ok(gemm_case_run_packed(padded, context));
        assert_same_result(padded, c);
        gemm_case_free(padded);
    }
    for (int64_t i = 0; i < M * n; i++)
        assert_true(dgi_f32_is_finite(dgi_load_f32(c->d.data, DG_BF16, i)));
    gemm_case_free(c);
    dg_destroy(context);
}

/* One scale for each 64 of K, in no recipe: used, or refused by name; never ignored. */
static void g23_granularity_is_never_ignored(void **state)
{
    (void)state;
    rng r = rng_new(24);
    dg_context *context = test_context(NULL);
    dg_gemm shape = gemm_of(recipe_named("token_channel"), 1676, 16, 1536, DG_F32);
    shape.scale_b = scale_of(DG_F32, 16, 1536, 1, 64, 0, 0);
    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
    dg_status status = gemm_case_run(c, context);
    if (test_device() == DG_CPU || status == DG_OK) {
        assert_ok(status);
        gemm_case_check(c);
    } else {
        assert_status(status, DG_UNSUPPORTED_SCALE);
    }
    gemm_case_free(c);
    dg_destroy(context);
}

/* 256 scales for M = N = K = 256 are what their description says, and their count must match. */
static void g24_nothing_is_inferred_from_a_count(void **state)
{
    (void)state;
    rng r = rng_new(25);
    dg_context *context = test_context(NULL);
    const int32_t blocks[][2] = {{1, 0}, {0, 1}, {16, 16}};
    for (int i = 0; i < 3; i++) { /* rows, columns, a square of 16 x 16: 256 scales each time */
        dg_gemm shape = gemm_of(recipe_named("tensor"), 256, 256, 256, DG_F32);
        shape.scale_b = scale_of(DG_F32, 256, 256, blocks[i][0], blocks[i][1], 0, 0);
        assert_int_equal(shape.scale_b.rows * shape.scale_b.cols, 256);
        gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
        if (gemm_case_run_or_refuse(c, context)) {
            gemm_case_check(c);
        } else { /* by a GPU, for a block along K that no kernel takes: it says which */
            char text[64];
            snprintf(text, sizeof text, "with scale_b (%d,%d)", blocks[i][0], blocks[i][1]);
            assert_non_null(strstr(dg_last_error(), text));
            assert_int_not_equal(blocks[i][1], 0);
        }
        dg_gemm g = c->gemm;
        if (g.scale_b.rows > 1)
            g.scale_b.rows--;
        else
            g.scale_b.cols--;
        assert_refused(dg_gemm_run(context, &g, NULL), DG_INVALID_ARGUMENT,
                       i == 2 ? "is 15, but 256" : "is 255, but 256");
        /* One scale where 256 are needed is not spread over them. */
        g.scale_b.rows = g.scale_b.cols = 1;
        assert_refused(dg_gemm_run(context, &g, NULL), DG_INVALID_ARGUMENT, "is 1, but 256");
        gemm_case_free(c);
    }
    dg_destroy(context);
}

/*
 * A weight with 128 x 128 scales, cut along K into `ranks` shards that begin inside a block: the
 * partial results add up to the unsplit one.
 */
static void check_shards(int64_t k, int ranks)
{
    enum { M = 7, N = 130 };
    rng r = rng_new((uint64_t)k);
    dg_context *context = test_context(NULL);
    dg_gemm shape = gemm_of(recipe_named("block128"), M, N, k, DG_F32);
    gemm_case *whole = gemm_case_new(&r, &shape, CASE_PLAIN);
    assert_ok(gemm_case_run(whole, context));
    gemm_case_check(whole);

    double sum[M * N] = {0};
    int64_t part = k / ranks;
    for (int rank = 0; rank < ranks; rank++) {
        int64_t first = rank * part, block = first / 128;
        int32_t phase = (int32_t)(first % 128);
        dg_gemm cut = gemm_of(recipe_named("block128"), M, N, part, DG_F32);
        cut.a.ld = cut.b.ld = k;
        cut.scale_a = scale_of(DG_F32, M, part, 1, 128, 0, phase);
        cut.scale_b = scale_of(DG_F32, N, part, 128, 128, 0, phase);
        cut.scale_a.row_stride = whole->gemm.scale_a.row_stride;
        cut.scale_b.row_stride = whole->gemm.scale_b.row_stride;
        /* The shard is made of the whole one's data. */
        gemm_case *shard = gemm_case_new(&r, &cut, CASE_PLAIN);
        memcpy(shard->a.data, (char *)whole->a.data + first, shard->a.bytes);
        memcpy(shard->b.data, (char *)whole->b.data + first, shard->b.bytes);
        memcpy(shard->scale_a.data, (float *)whole->scale_a.data + block, shard->scale_a.bytes);
        memcpy(shard->scale_b.data, (float *)whole->scale_b.data + block, shard->scale_b.bytes);
        for (int64_t l = 0; l < part; l++) {
            double used = oracle_scale(&shard->gemm.scale_b, 0, l);
            assert_true(used == oracle_scale(&whole->gemm.scale_b, 0, first + l));
        }
        assert_ok(gemm_case_run(shard, context));
        gemm_case_check(shard);
        void *rows = gemm_case_copy_d(shard);
        assert_ok(gemm_case_run_packed(shard, context));
        assert_memory_equal(rows, shard->d.data, shard->d.bytes);
        free(rows);
        for (int i = 0; i < M * N; i++)
            sum[i] += ((float *)shard->d.data)[i];
        gemm_case_free(shard);
    }
    for (int i = 0; i < M * N; i++)
        assert_true(fabs(sum[i] - whole->reference[i]) <= 1e-3 * whole->magnitude[i]);
    gemm_case_free(whole);
    dg_destroy(context);
}

static void g46_shards_inside_blocks(void **state)
{
    (void)state;
    check_shards(3072, 16); /* 192 each: one and a half blocks */
    check_shards(512, 8);   /* 64 each: two shards share a block */
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(g19_views_into_wider_buffers),
        cmocka_unit_test(g20_any_alignment),
        cmocka_unit_test(g20_any_alignment_of_quantised),
        cmocka_unit_test(single_rows_have_any_ld),
        cmocka_unit_test(g21_either_axis_of_scales_contiguous),
        cmocka_unit_test(g22_padding_of_scales_is_not_read),
        cmocka_unit_test(g23_granularity_is_never_ignored),
        cmocka_unit_test(g24_nothing_is_inferred_from_a_count),
        cmocka_unit_test(g46_shards_inside_blocks),
    };
    return test_run(argc, argv, tests);
}
