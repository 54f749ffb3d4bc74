/* SPDX-License-Identifier: MIT */
/* Statistics of activations: what they count, that splits and files lose nothing, static scales. */
#include "files.h"
#include "random.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 90, COLS = 200, BLOCK = 128 };

static dg_statistics *new_statistics(int32_t block_cols, int32_t bits)
{
    dg_statistics_options options = DG_STATISTICS_OPTIONS_INIT;
    options.block_cols = block_cols;
    options.bits = bits;
    dg_statistics *s;
    assert_ok(dg_statistics_create(&s, &options));
    return s;
}

/* Normal values in BF16 with a few large features. */
static void fill(rng *r, uint16_t *data, int64_t rows, int64_t cols)
{
    float *wide = malloc((size_t)(rows * cols) * sizeof *wide);
    for (int64_t i = 0; i < rows * cols; i++)
        wide[i] = (float)(rng_normal(r) * (i % cols % 37 == 5 ? 30.0 : 1.0));
    assert_ok(dg_convert(wide, DG_F32, data, DG_BF16, rows * cols, DG_SATURATE));
    free(wide);
}

static float at(const uint16_t *data, int64_t index)
{
    float value;
    assert_ok(dg_convert(data + index, DG_BF16, &value, DG_F32, 1, DG_SATURATE));
    return value;
}

static dg_observed observed(const dg_statistics *s, const char *layer)
{
    dg_observed o = DG_OBSERVED_INIT;
    assert_ok(dg_statistics_layer(s, layer, &o));
    return o;
}

static dg_status choose(const dg_statistics *s, const char *layer, dg_scale_method method,
                        int32_t block_cols, float *scales, int64_t features, dg_scale_quality *q)
{
    dg_scale_choice choice = DG_SCALE_CHOICE_INIT;
    choice.method = method;
    dg_scale scale = dg_scale_of(scales, DG_F32, 1, features, 0, block_cols);
    return dg_statistics_choose(s, layer, &choice, &scale, q);
}

/* ---- collecting ---------------------------------------------------------------------- */

static void test_counts_and_sums(void **state)
{
    (void)state;
    static uint16_t data[ROWS * COLS];
    static const int32_t blocks[] = {0, 1, 32, 128, 150, 1000};
    rng r = rng_new(1);
    dg_context *context = test_context(NULL);
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
        fill(&r, data, ROWS, COLS);
        data[3] = 0x7FC0; /* NaN */
        data[7] = 0xFF80; /* -infinity */
        dg_statistics *s = new_statistics(blocks[b], 7);
        dg_matrix x = dg_matrix_of(data, DG_BF16, ROWS - 10, COLS);
        assert_ok(dg_statistics_observe(context, s, "layer", &x));
        x = dg_matrix_of(data + (ROWS - 10) * COLS, DG_BF16, 10, COLS);
        assert_ok(dg_statistics_observe(context, s, "layer", &x));
        dg_observed o = observed(s, "layer");
        assert_int_equal(o.tokens, ROWS);
        assert_int_equal(o.batches, 2);
        assert_int_equal(o.features, COLS);
        assert_int_equal(o.non_finite, 2);
        float all = 0.0f;
        for (int c = 0; c < COLS; c++) {
            float amax = 0.0f;
            double squares = 0.0;
            for (int t = 0; t < ROWS; t++) {
                float value = at(data, t * COLS + c);
                if (!isfinite(value))
                    continue;
                amax = fmaxf(amax, fabsf(value));
                squares += (double)value * (double)value;
            }
            assert_true(o.amaxes[c] == amax);
            assert_true(fabs(o.squares[c] - squares) <= 1e-12 * squares);
            all = fmaxf(all, amax);
        }
        assert_true(o.amax == all);
        int64_t bins = 0;
        assert_ok(dg_statistics_histogram(s, "layer", NULL, &bins));
        dg_bin *list = malloc((size_t)bins * sizeof *list);
        assert_ok(dg_statistics_histogram(s, "layer", list, &bins));
        double count = 0.0, outside = 2.0;                   /* not finite */
        const float lowest = ldexpf(1.0f, ilogbf(all) - 31); /* of the bins */
        for (int i = 0; i < ROWS * COLS; i++)
            outside += fabsf(at(data, i)) < lowest;
        for (int64_t i = 0; i < bins; i++) {
            count += list[i].count;
            assert_true(i == 0 || list[i].magnitude > list[i - 1].magnitude);
        }
        assert_true(count + outside == ROWS * COLS);
        assert_true(list[bins - 1].magnitude == all);
        free(list);
        dg_statistics_destroy(s);
    }
    dg_destroy(context);
}

/* Scales from amax are exact for a tensor, a channel and a block of any width. */
static void test_exact_amax_scales(void **state)
{
    (void)state;
    static uint16_t data[ROWS * COLS];
    rng r = rng_new(2);
    fill(&r, data, ROWS, COLS);
    dg_context *context = test_context(NULL);
    dg_statistics *s = new_statistics(1, 4);
    dg_matrix x = dg_matrix_of(data, DG_BF16, ROWS, COLS);
    assert_ok(dg_statistics_observe(context, s, "layer", &x));
    dg_observed o = observed(s, "layer");
    static const int32_t blocks[] = {0, 1, 3, 128};
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
        float scales[COLS];
        assert_ok(choose(s, "layer", DG_METHOD_AMAX, blocks[b], scales, COLS, NULL));
        int width = blocks[b] == 0 ? COLS : blocks[b];
        for (int first = 0; first < COLS; first += width) {
            float amax = 0.0f;
            for (int c = first; c < first + width && c < COLS; c++)
                amax = fmaxf(amax, o.amaxes[c]);
            assert_true(scales[first / width] == amax / 448.0f);
        }
    }
    dg_statistics_destroy(s);
    dg_destroy(context);
}

/* The scale of streamed statistics is the one of the same values at hand, for every method. */
static void test_streaming_equals_at_hand(void **state)
{
    (void)state;
    static uint16_t data[ROWS * COLS];
    rng r = rng_new(3);
    fill(&r, data, ROWS, COLS);
    dg_context *context = test_context(NULL);
    dg_matrix x = dg_matrix_of(data, DG_BF16, ROWS, COLS);
    for (int method = DG_METHOD_AMAX; method <= DG_METHOD_KL; method++) {
        /* at hand, KL looks at coarser bins */
        dg_statistics *s = new_statistics(BLOCK, method == DG_METHOD_KL ? 5 : 7);
        for (int64_t t = 0, rows; t < ROWS; t += rows) {
            rows = rng_range(&r, 0, ROWS - t);
            dg_matrix batch = dg_matrix_of(data + t * COLS, DG_BF16, rows, COLS);
            assert_ok(dg_statistics_observe(context, s, "layer", &batch));
        }
        float streamed[2], at_hand[2];
        dg_scale_quality q = DG_SCALE_QUALITY_INIT, p = q;
        assert_ok(choose(s, "layer", (dg_scale_method)method, BLOCK, streamed, COLS, &q));
        dg_scale_choice choice = DG_SCALE_CHOICE_INIT;
        choice.method = (dg_scale_method)method;
        dg_scale scale = dg_scale_of(at_hand, DG_F32, ROWS, COLS, 0, BLOCK);
        assert_ok(dg_scale_choose(context, &x, &choice, NULL, &scale, &p));
        assert_memory_equal(streamed, at_hand, sizeof at_hand);
        if (method != DG_METHOD_KL) { /* with 7 bits nothing is lost of BF16, so all agrees */
            assert_true(fabs(q.relative_error - p.relative_error) <= 1e-9);
            assert_true(fabs(q.clipped - p.clipped) <= 1e-12);
            assert_true(fabs(q.underflow - p.underflow) <= 1e-12);
        }
        assert_true(q.elements == ROWS * COLS && q.origin == DG_FROM_LAYER);
        dg_statistics_destroy(s);
    }
    dg_destroy(context);
}

/* ---- splits and files ---------------------------------------------------------------- */

static void assert_same(const dg_statistics *a, const dg_statistics *b, double squares_tolerance)
{
    dg_observed x = DG_OBSERVED_INIT, y = DG_OBSERVED_INIT;
    for (int64_t i = 0; dg_statistics_layer_at(a, i, &x) == DG_OK; i++) {
        assert_ok(dg_statistics_layer_at(b, i, &y));
        assert_string_equal(x.layer, y.layer);
        assert_true(x.tokens == y.tokens && x.batches == y.batches && x.features == y.features &&
                    x.non_finite == y.non_finite && x.amax == y.amax);
        assert_memory_equal(x.amaxes, y.amaxes, (size_t)x.features * sizeof *x.amaxes);
        for (int64_t c = 0; c < x.features; c++)
            assert_true(fabs(x.squares[c] - y.squares[c]) <= squares_tolerance * x.squares[c]);
        for (int method = DG_METHOD_AMAX; method <= DG_METHOD_KL; method++) {
            float p[4], q[4];
            dg_scale_quality pq = DG_SCALE_QUALITY_INIT, qq = DG_SCALE_QUALITY_INIT;
            int64_t blocks = (x.features + BLOCK - 1) / BLOCK;
            assert_true(blocks <= 4);
            assert_ok(choose(a, x.layer, (dg_scale_method)method, BLOCK, p, x.features, &pq));
            assert_ok(choose(b, x.layer, (dg_scale_method)method, BLOCK, q, x.features, &qq));
            assert_memory_equal(p, q, (size_t)blocks * sizeof *p);
            assert_memory_equal(&pq, &qq, sizeof pq);
        }
    }
    int64_t count = 0;
    while (dg_statistics_layer_at(a, count, &x) == DG_OK)
        count++;
    assert_refused(dg_statistics_layer_at(b, count, &y), DG_NOT_FOUND, "index");
}

/* Several processes, each with some of the data, their files merged: as one run over all of it. */
static void test_merged_files_equal_one_run(void **state)
{
    (void)state;
    enum { PROCESSES = 3, BATCHES = 12 };
    static uint16_t data[ROWS * COLS];
    static const char *const layers[] = {"b.q_proj", "a.down_proj", "c"};
    static const int64_t features[] = {COLS, 77, 130};
    rng r = rng_new(4);
    const char *folder = files_folder();
    dg_context *context = test_context(NULL);
    dg_statistics *whole = new_statistics(BLOCK, 5), *parts[PROCESSES], *merged = NULL;
    for (int p = 0; p < PROCESSES; p++)
        parts[p] = new_statistics(BLOCK, 5);
    for (int i = 0; i < BATCHES; i++) {
        int64_t layer = rng_range(&r, 0, 2), rows = rng_range(&r, 0, ROWS);
        int64_t process = rng_range(&r, 0, PROCESSES - 1);
        fill(&r, data, rows, features[layer]);
        dg_matrix x = dg_matrix_of(data, DG_BF16, rows, features[layer]);
        assert_ok(dg_statistics_observe(context, whole, layers[layer], &x));
        assert_ok(dg_statistics_observe(context, parts[process], layers[layer], &x));
    }
    for (int p = 0; p < PROCESSES; p++) {
        const char *path = files_path(folder, p == 0 ? "0" : p == 1 ? "1" : "2");
        assert_ok(dg_statistics_save(parts[p], path));
        dg_statistics *loaded;
        assert_ok(dg_statistics_load(&loaded, path));
        assert_same(parts[p], loaded, 0.0);
        if (merged == NULL) {
            merged = loaded;
        } else {
            assert_ok(dg_statistics_merge(merged, loaded));
            dg_statistics_destroy(loaded);
        }
        dg_statistics_destroy(parts[p]);
    }
    assert_same(whole, merged, 1e-13);
    /* Saved over a file that is there; nothing else is left beside it. */
    assert_ok(dg_statistics_save(merged, files_path(folder, "0")));
    assert_int_equal(files_count(folder, ""), PROCESSES);
    dg_statistics_destroy(whole);
    dg_statistics_destroy(merged);
    dg_destroy(context);
}

/* ---- files that are wrong ------------------------------------------------------------ */

typedef struct change {
    int part; /* of the five tensors; -1: none */
    const char *name, *type;
    size_t element_bytes;
    int64_t rows, cols;
    const void *data;
    const char *message;
} change;

static void test_bad_files(void **state)
{
    (void)state;
    enum { FEATURES = 3, BINS = 2 + (32 << 4) };
    static const float amax[FEATURES] = {1, 2, 3}, bad_amax[FEATURES] = {1, NAN, 3};
    static const double squares[FEATURES] = {1, 4, 9}, bad_squares[FEATURES] = {1, -4, 9};
    static const int64_t counts[3] = {1, 1, 0}, bad_counts[3] = {-1, 1, 0};
    static const int32_t top[1] = {128}, bad_top[1] = {255};
    static double bins[BINS], bad_bins[BINS];
    bad_bins[7] = INFINITY;
    const stored good[] = {{"l.amax", "F32", 4, FEATURES, 0, amax},
                           {"l.sum_of_squares", "F64", 8, FEATURES, 0, squares},
                           {"l.counts", "I64", 8, 3, 0, counts},
                           {"l.histogram_top", "I32", 4, 1, 0, top},
                           {"l.histogram", "F64", 8, 1, BINS, bins}};
    static const char *const right =
        "{\"deepgemm_statistics\":\"1\",\"block_cols\":\"128\",\"bits\":\"4\"}";
    const change changes[] = {
        {0, "l.amax", "F32", 4, FEATURES, 0, bad_amax, "l.amax"},
        {1, "l.sum_of_squares", "F64", 8, FEATURES, 0, bad_squares, "l.sum_of_squares"},
        {1, "l.sum_of_squares", "F32", 4, FEATURES, 0, amax, "l.sum_of_squares"},
        {1, "l.sum_of_squares", "F64", 8, 2, 0, squares, "l.sum_of_squares"},
        {2, "l.counts", "I64", 8, 3, 0, bad_counts, "l.counts"},
        {3, "l.histogram_top", "I32", 4, 1, 0, bad_top, "l.histogram_top"},
        {4, "l.histogram", "F64", 8, 1, BINS, bad_bins, "l.histogram"},
        {4, "l.histogram", "F64", 8, 1, BINS - 1, bins, "l.histogram"},
        {4, "other", "F64", 8, 1, BINS, bins, "has no histogram"},
        {0, "l.Amax", "F32", 4, FEATURES, 0, amax, "5 tensors"},
        {0, "l.amax", "F32", 4, 0, 0, amax, "0 features"},
        {-1, right, NULL, 0, 0, 0, NULL, NULL},
        {-1, "{\"block_cols\":\"128\",\"bits\":\"4\"}", NULL, 0, 0, 0, NULL, "deepgemm_statistics"},
        {-1, "{\"deepgemm_statistics\":\"2\",\"block_cols\":\"128\",\"bits\":\"4\"}", NULL, 0, 0, 0,
         NULL, "version 2"},
        {-1, "{\"deepgemm_statistics\":\"1\",\"block_cols\":\"-1\",\"bits\":\"4\"}", NULL, 0, 0, 0,
         NULL, "block_cols"},
        {-1, "{\"deepgemm_statistics\":\"1\",\"block_cols\":\"128\",\"bits\":\"30\"}", NULL, 0, 0,
         0, NULL, "bits"},
        {-1, NULL, NULL, 0, 0, 0, NULL, "metadata"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const change *c = &changes[i];
        stored tensors[5];
        memcpy(tensors, good, sizeof good);
        if (c->part >= 0)
            tensors[c->part] =
                (stored){c->name, c->type, c->element_bytes, c->rows, c->cols, c->data};
        const char *path = files_path(files_folder(), "s.safetensors");
        safetensors_write_with(path, c->part >= 0 ? right : c->name, tensors, 5);
        dg_statistics *s = NULL;
        if (c->message == NULL) {
            assert_ok(dg_statistics_load(&s, path));
            assert_int_equal(observed(s, "l").tokens, 1);
            dg_statistics_destroy(s);
        } else {
            assert_refused(dg_statistics_load(&s, path), DG_BAD_FILE, c->message);
            assert_null(s);
        }
    }
    dg_statistics *s = NULL;
    assert_refused(dg_statistics_load(&s, files_path(files_folder(), "none")), DG_NOT_FOUND,
                   "none");
    dg_statistics *empty = new_statistics(BLOCK, 5);
    assert_refused(dg_statistics_save(empty, files_path(files_folder(), "no/folder")), DG_NOT_FOUND,
                   "no/folder");
    dg_statistics_destroy(empty);
}

/* ---- scales that are needed all the same --------------------------------------------- */

/* G38: of 8 experts 5 met tokens. */
static void test_experts_without_tokens(void **state)
{
    (void)state;
    static uint16_t data[ROWS * COLS];
    rng r = rng_new(5);
    dg_context *context = test_context(NULL);
    dg_statistics *s = new_statistics(BLOCK, 5), *all = new_statistics(BLOCK, 5);
    for (int e = 0; e < 8; e++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.3.mlp.experts.%d.up_proj", e);
        int64_t rows = e < 5 ? ROWS : 0;
        fill(&r, data, ROWS, COLS);
        dg_matrix x = dg_matrix_of(data, DG_BF16, rows, COLS);
        assert_ok(dg_statistics_observe(context, s, name, &x));
        assert_ok(dg_statistics_observe(context, all, "all", &x));
    }
    /* No siblings: of another block, of another kind, and of another number of features. */
    static const char *const others[] = {"model.layers.4.mlp.experts.0.up_proj",
                                         "model.layers.3.mlp.experts.0.down_proj",
                                         "model.layers.3.mlp.shared_experts.up_proj"};
    for (int i = 0; i < 3; i++) {
        fill(&r, data, ROWS, COLS);
        for (int j = 0; j < ROWS * COLS; j++)
            data[j] += 0x0300; /* 64 times as large */
        dg_matrix x = dg_matrix_of(data, DG_BF16, ROWS, COLS);
        assert_ok(dg_statistics_observe(context, s, others[i], &x));
    }
    for (int method = DG_METHOD_AMAX; method <= DG_METHOD_KL; method++)
        for (int e = 5; e < 8; e++) {
            char name[64];
            float scales[2], expected[2];
            dg_scale_quality q = DG_SCALE_QUALITY_INIT;
            snprintf(name, sizeof name, "model.layers.3.mlp.experts.%d.up_proj", e);
            assert_int_equal(observed(s, name).tokens, 0);
            assert_ok(choose(s, name, (dg_scale_method)method, BLOCK, scales, COLS, &q));
            assert_int_equal(q.origin, DG_FROM_SIBLINGS);
            assert_ok(choose(all, "all", (dg_scale_method)method, BLOCK, expected, COLS, NULL));
            assert_memory_equal(scales, expected, sizeof scales);
        }
    dg_matrix nobody = dg_matrix_of(NULL, DG_BF16, 0, COLS);
    float scale = 0.0f;
    dg_scale_quality q = DG_SCALE_QUALITY_INIT;
    assert_ok(dg_statistics_observe(context, s, "model.layers.9.mlp.experts.1.up_proj", &nobody));
    assert_ok(
        choose(s, "model.layers.9.mlp.experts.1.up_proj", DG_METHOD_MSE, 0, &scale, COLS, &q));
    assert_true(scale == 1.0f && q.origin == DG_FROM_NOTHING);
    dg_statistics_destroy(s);
    dg_statistics_destroy(all);
    dg_destroy(context);
}

/* G37: scales from 10 tokens, judged on others with outliers 10 times as large. */
static void test_held_out_data(void **state)
{
    (void)state;
    static uint16_t data[ROWS * COLS], held_out[ROWS * COLS];
    rng r = rng_new(6);
    dg_context *context = test_context(NULL);
    fill(&r, data, 10, COLS);
    fill(&r, held_out, ROWS, COLS);
    dg_statistics *s = new_statistics(BLOCK, 7), *h = new_statistics(BLOCK, 7);
    dg_matrix x = dg_matrix_of(data, DG_BF16, 10, COLS);
    assert_ok(dg_statistics_observe(context, s, "l", &x));
    float outlier = 10.0f * observed(s, "l").amax;
    for (int t = 0; t < ROWS; t += 9)
        assert_ok(dg_convert(&outlier, DG_F32, &held_out[t * COLS], DG_BF16, 1, DG_SATURATE));
    x = dg_matrix_of(held_out, DG_BF16, ROWS, COLS);
    assert_ok(dg_statistics_observe(context, h, "l", &x));
    for (int method = DG_METHOD_AMAX; method <= DG_METHOD_KL; method++) {
        float value;
        static uint8_t codes[ROWS * COLS];
        dg_scale_quality q = DG_SCALE_QUALITY_INIT, own = q;
        assert_ok(choose(s, "l", (dg_scale_method)method, 0, &value, COLS, &own));
        assert_true(value > 0.0f && isfinite(value));
        dg_scale scale = dg_scale_of(&value, DG_F32, ROWS, COLS, 0, 0);
        assert_ok(dg_statistics_judge(h, "l", &scale, DG_E4M3, &q));
        /* the same count as quantising gives */
        dg_quantize quantize = DG_QUANTIZE_INIT;
        dg_quantize_counts counts;
        quantize.input = x;
        quantize.output = dg_matrix_of(codes, DG_E4M3, ROWS, COLS);
        quantize.scale = scale;
        quantize.source = DG_SCALE_GIVEN;
        quantize.counts = &counts;
        assert_ok(dg_quantize_run(context, &quantize, NULL));
        assert_true(counts.saturated >= 10);
        assert_true(fabs(q.clipped * ROWS * COLS - (double)counts.saturated) < 1e-6);
        assert_true(fabs(q.underflow * ROWS * COLS - (double)counts.underflow) < 1e-6);
        if (method == DG_METHOD_AMAX) /* the others clip some of what they have seen, too */
            assert_true(own.clipped == 0.0 && q.clipped > 0.0);
    }
    dg_statistics_destroy(s);
    dg_statistics_destroy(h);
    dg_destroy(context);
}

/* ---- refusals ------------------------------------------------------------------------ */

static void test_refusals(void **state)
{
    (void)state;
    dg_statistics_options options = DG_STATISTICS_OPTIONS_INIT;
    dg_statistics *s = NULL, *other;
    assert_refused(dg_statistics_create(NULL, NULL), DG_INVALID_ARGUMENT, "statistics");
    options.bits = 8;
    assert_refused(dg_statistics_create(&s, &options), DG_INVALID_ARGUMENT, "options.bits");
    options.bits = 5;
    options.block_cols = -1;
    assert_refused(dg_statistics_create(&s, &options), DG_INVALID_ARGUMENT, "options.block_cols");
    assert_null(s);

    dg_context *context = test_context(NULL);
    float values[6] = {1, 2, 3, 4, 5, 6}, scales[8];
    dg_matrix x = dg_matrix_of(values, DG_F32, 2, 3), wide = dg_matrix_of(values, DG_F32, 1, 6);
    dg_matrix none = dg_matrix_of(values, DG_F32, 1, 0),
              codes = dg_matrix_of(values, DG_E4M3, 1, 6);
    s = new_statistics(2, 5);
    other = new_statistics(4, 5);
    assert_ok(dg_statistics_observe(context, s, "l", &x));
    assert_refused(dg_statistics_observe(NULL, s, "l", &x), DG_INVALID_ARGUMENT, "context");
    assert_refused(dg_statistics_observe(context, NULL, "l", &x), DG_INVALID_ARGUMENT,
                   "statistics");
    assert_refused(dg_statistics_observe(context, s, NULL, &x), DG_INVALID_ARGUMENT, "layer");
    assert_refused(dg_statistics_observe(context, s, "l", &wide), DG_INVALID_ARGUMENT,
                   "6 features");
    assert_refused(dg_statistics_observe(context, s, "m", &none), DG_INVALID_ARGUMENT, "x.cols");
    assert_refused(dg_statistics_observe(context, s, "m", &codes), DG_UNSUPPORTED_TYPE, "x.dtype");
    assert_refused(dg_statistics_merge(s, other), DG_INVALID_ARGUMENT, "block_cols");
    assert_refused(dg_statistics_merge(s, s), DG_INVALID_ARGUMENT, "itself");
    dg_statistics_destroy(other);
    other = new_statistics(2, 5);
    assert_ok(dg_statistics_observe(context, other, "l", &wide));
    assert_refused(dg_statistics_merge(s, other), DG_INVALID_ARGUMENT, "layer l");
    assert_int_equal(observed(s, "l").tokens, 2);
    dg_statistics_destroy(other);

    assert_refused(choose(s, "m", DG_METHOD_AMAX, 0, scales, 3, NULL), DG_NOT_FOUND, "layer m");
    assert_refused(choose(s, "l", DG_METHOD_AMAX, 3, scales, 3, NULL), DG_UNSUPPORTED_SCALE,
                   "multiple of 2");
    assert_refused(choose(s, "l", DG_METHOD_AMAX, 2, scales, 6, NULL), DG_INVALID_ARGUMENT,
                   "scale.cols");
    dg_scale rows = dg_scale_of(scales, DG_F32, 1, 3, 1, 0);
    assert_refused(dg_statistics_choose(s, "l", NULL, &rows, NULL), DG_UNSUPPORTED_SCALE,
                   "block_rows 0");
    dg_scale scale = dg_scale_of(scales, DG_F32, 1, 3, 0, 0);
    dg_scale_quality q = DG_SCALE_QUALITY_INIT;
    scales[0] = NAN;
    assert_refused(dg_statistics_judge(s, "l", &scale, DG_E4M3, &q), DG_UNSUPPORTED_SCALE, "nan");
    scales[0] = 1.0f;
    assert_refused(dg_statistics_judge(s, "l", &scale, DG_F32, &q), DG_UNSUPPORTED_TYPE, "code");
    assert_refused(dg_statistics_judge(s, "l", &scale, DG_E4M3, NULL), DG_INVALID_ARGUMENT,
                   "quality");
    assert_refused(dg_statistics_histogram(s, "l", NULL, NULL), DG_INVALID_ARGUMENT, "count");
    dg_statistics_destroy(s);
    dg_destroy(context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_and_sums),
        cmocka_unit_test(test_exact_amax_scales),
        cmocka_unit_test(test_streaming_equals_at_hand),
        cmocka_unit_test(test_merged_files_equal_one_run),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_experts_without_tokens),
        cmocka_unit_test(test_held_out_data),
        cmocka_unit_test(test_refusals),
    };
    return test_run(argc, argv, tests);
}
