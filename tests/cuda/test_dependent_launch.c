/* SPDX-License-Identifier: MIT */
/*
 * Kernels that begin before the ones before them have ended, on a GPU: chains, streams and graphs
 * give the bits of kernels that run one after the other, however often. Run it with --device
 * cuda:0; without a GPU its tests are skipped. DEEPGEMM_STRESS is the number of launches of the
 * stress test.
 */
#include "gemm_case.h"
#include "test.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void need_gpu(void)
{
    if (test_device() == DG_CPU)
        skip();
}

/* The driver's streams and graphs, which the library's interface leaves to its users. */
typedef struct driver {
    int (*cuDevicePrimaryCtxRetain)(void **context, int device);
    int (*cuCtxSetCurrent)(void *context);
    int (*cuStreamCreate)(void **stream, unsigned flags);
    int (*cuStreamBeginCapture_v2)(void *stream, int mode);
    int (*cuStreamEndCapture)(void *stream, void **graph);
    int (*cuGraphInstantiateWithFlags)(void **executable, void *graph, unsigned long long flags);
    int (*cuGraphLaunch)(void *executable, void *stream);
} driver;

static driver open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    assert_non_null(library);
    driver d;
#define FIND(function) assert_non_null(*(void **)&d.function = dlsym(library, #function))
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuCtxSetCurrent);
    FIND(cuStreamCreate);
    FIND(cuStreamBeginCapture_v2);
    FIND(cuStreamEndCapture);
    FIND(cuGraphInstantiateWithFlags);
    FIND(cuGraphLaunch);
#undef FIND
    void *primary;
    assert_int_equal(d.cuDevicePrimaryCtxRetain(&primary, test_device()), 0);
    assert_int_equal(d.cuCtxSetCurrent(primary), 0);
    return d;
}

static void *upload(dg_context *context, const void *host, size_t bytes)
{
    void *memory;
    assert_ok(dg_memory_alloc(context, bytes, &memory));
    if (host != NULL)
        assert_ok(dg_memory_copy(context, memory, host, bytes, DG_HOST_TO_DEVICE, NULL));
    return memory;
}

static void download(dg_context *context, void *host, const void *memory, size_t bytes)
{
    assert_ok(dg_memory_copy(context, host, memory, bytes, DG_DEVICE_TO_HOST, NULL));
    assert_ok(dg_synchronize(context, NULL));
}

/*
 * A chain: each product's FP8 result is the next one's A. Widths differ, so that kernels with
 * different splits follow each other, and there are two buffers, which all products write in turn.
 */
enum { LAYERS = 12, WIDEST = 4096, TOKENS_MOST = 200 };
static const int64_t widths[LAYERS + 1] = {1024, 576, 2048, 128,  4096, 1536, 640,
                                           64,   512, 256,  2112, 384,  1024};

static int layers(void)
{
    return test_rounds(LAYERS, 4);
}

/* How a product gets its weights. */
enum { PACKED, ROWS, CONSTANT, COPIED, FORMS };
static const char *const form_names[FORMS] = {"packed", "row-major", "constant",
                                              "constant, copied by each call"};

typedef struct chain {
    dg_weights *weights[LAYERS];
    dg_matrix b[LAYERS], misaligned[LAYERS];
    dg_scale scale_b[LAYERS];
    void *first, *buffers[2];
    float *scales;
} chain;

static void fill(rng *r, dg_context *context, chain *c, int64_t tokens)
{
    uint8_t *const memory = malloc((size_t)WIDEST * WIDEST + 1), *const codes = memory + 1;
    float scales[TOKENS_MOST * WIDEST / 128];
    assert_non_null(memory);
    for (int i = 0; i < TOKENS_MOST * WIDEST / 128; i++)
        scales[i] = 1.0f;
    rng_fill_normal(r, codes, DG_E4M3, tokens * widths[0], 1.0);
    c->first = upload(context, codes, (size_t)(tokens * widths[0]));
    c->scales = upload(context, scales, sizeof scales);
    for (int i = 0; i < 2; i++)
        c->buffers[i] = upload(context, NULL, (size_t)tokens * WIDEST);
    for (int i = 0; i < layers(); i++) {
        const int64_t n = widths[i + 1], k = widths[i];
        rng_fill_normal(r, codes, DG_E4M3, n * k, 1.0);
        c->b[i] = dg_matrix_of(upload(context, codes, (size_t)(n * k)), DG_E4M3, n, k);
        c->misaligned[i] = c->b[i];
        c->misaligned[i].data = (char *)upload(context, memory, (size_t)(n * k) + 1) + 1;
        c->scale_b[i] = dg_scale_of(c->scales, DG_F32, n, k, 128, 128);
        assert_ok(
            dg_weights_pack(context, &c->b[i], &c->scale_b[i], NULL, 0, NULL, &c->weights[i]));
    }
    free(memory);
}

static void release(dg_context *context, chain *c)
{
    for (int i = 0; i < layers(); i++) {
        dg_weights_destroy(c->weights[i]);
        assert_ok(dg_memory_free(context, c->b[i].data));
        assert_ok(dg_memory_free(context, (char *)c->misaligned[i].data - 1));
    }
    void *const memory[] = {c->first, c->scales, c->buffers[0], c->buffers[1]};
    for (int i = 0; i < 4; i++)
        assert_ok(dg_memory_free(context, memory[i]));
}

/* Enqueues the chain; the result lies in buffer (layers() - 1) % 2. */
static void enqueue(dg_context *context, const chain *c, int64_t tokens, int form, void *stream)
{
    for (int i = 0; i < layers(); i++) {
        const int64_t n = widths[i + 1], k = widths[i];
        dg_gemm g = DG_GEMM_INIT;
        g.a = dg_matrix_of(i == 0 ? c->first : c->buffers[(i + 1) % 2], DG_E4M3, tokens, k);
        g.d = dg_matrix_of(c->buffers[i % 2], DG_E4M3, tokens, n);
        g.scale_a = dg_scale_of(c->scales, DG_F32, tokens, k, 1, 128);
        g.scale_d = dg_scale_of(c->scales, DG_F32, tokens, n, 0, 0);
        g.alpha = 1.0f / sqrtf((float)k);
        if (form == PACKED)
            g.weights = c->weights[i];
        else
            g.b = form == COPIED ? c->misaligned[i] : c->b[i], g.scale_b = c->scale_b[i];
        g.b_is_constant = form >= CONSTANT;
        assert_ok(dg_gemm_run(context, &g, stream));
    }
}

static void chains_give_the_same_bits(void **state)
{
    (void)state;
    need_gpu();
    enum { ROUNDS = 40 };
    rng r = rng_new(1);
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.serial_launch = true;
    dg_context *serial = test_context(&options), *context = test_context(NULL);
    driver d = open_driver();
    void *stream;
    assert_int_equal(d.cuStreamCreate(&stream, 1), 0);
    static const int64_t counts[] = {1, 8, 16, 33, 64, 200};
    for (int t = 0; t < test_rounds(sizeof counts / sizeof counts[0], 2); t++) {
        const int64_t tokens = counts[t];
        const size_t bytes = (size_t)(tokens * widths[layers()]);
        uint8_t *expected = malloc(bytes), *result = malloc(bytes);
        assert_true(expected != NULL && result != NULL);
        chain c;
        fill(&r, context, &c, tokens);
        assert_ok(dg_synchronize(context, NULL));
        enqueue(serial, &c, tokens, PACKED, stream);
        assert_ok(dg_synchronize(serial, stream));
        download(context, expected, c.buffers[(layers() - 1) % 2], bytes);
        int zeros = 0;
        for (size_t i = 0; i < bytes; i++)
            zeros += (expected[i] & 0x7F) == 0 || (expected[i] & 0x7F) == 0x7F;
        assert_true(zeros < (int)bytes / 4); /* a chain that died out would prove nothing */

        for (int form = 0; form < FORMS; form++) {
            void *graph, *executable;
            enqueue(context, &c, tokens, form, stream); /* loads all kernels */
            assert_ok(dg_synchronize(context, stream));
            assert_int_equal(d.cuStreamBeginCapture_v2(stream, 1), 0);
            enqueue(context, &c, tokens, form, stream);
            enqueue(context, &c, tokens, form, stream);
            assert_int_equal(d.cuStreamEndCapture(stream, &graph), 0);
            assert_int_equal(d.cuGraphInstantiateWithFlags(&executable, graph, 0), 0);
            for (int round = 0; round < test_rounds(ROUNDS, 2); round++) {
                if (round % 2 == 0)
                    enqueue(context, &c, tokens, form, stream);
                else
                    assert_int_equal(d.cuGraphLaunch(executable, stream), 0);
                assert_ok(dg_synchronize(context, stream));
                download(context, result, c.buffers[(layers() - 1) % 2], bytes);
                if (memcmp(expected, result, bytes) != 0)
                    fail_msg("%d tokens, %s, round %d: other bits than without dependent launch",
                             (int)tokens, form_names[form], round);
            }
        }
        release(context, &c);
        free(expected);
        free(result);
    }
    dg_destroy(serial);
    dg_destroy(context);
}

/* A product of random codes without scales, [m, k] by [n, k], into `d`. */
static dg_gemm plain_product(rng *r, dg_context *context, int64_t m, int64_t n, int64_t k,
                             dg_matrix d, float *ones)
{
    uint8_t *codes = malloc((size_t)((m + n) * k));
    assert_non_null(codes);
    rng_fill_normal(r, codes, DG_E4M3, (m + n) * k, 1.0);
    dg_gemm g = DG_GEMM_INIT;
    g.a = dg_matrix_of(upload(context, codes, (size_t)(m * k)), DG_E4M3, m, k);
    g.b = dg_matrix_of(upload(context, codes + m * k, (size_t)(n * k)), DG_E4M3, n, k);
    g.scale_a = dg_scale_of(ones, DG_F32, m, k, 0, 0);
    g.scale_b = dg_scale_of(ones, DG_F32, n, k, 0, 0);
    if (d.dtype == DG_E4M3)
        g.scale_d = dg_scale_of(ones, DG_F32, m, n, 0, 0);
    g.d = d;
    g.alpha = 1.0f / sqrtf((float)k);
    free(codes);
    return g;
}

static void free_operands(dg_context *context, const dg_gemm *g)
{
    assert_ok(dg_memory_free(context, g->a.data));
    assert_ok(dg_memory_free(context, g->b.data));
}

/*
 * Weights without a promise may be written by the work just before: other codes for each product,
 * other scales for every second one, by kernels that let the next one begin early.
 */
static void weights_that_change(void **state)
{
    (void)state;
    need_gpu();
    enum { STEPS = 16, M = 16, K = 2048, FROM = 256, ROUNDS = 20 };
    const int steps = test_rounds(STEPS, 4);
    static const int64_t heights[] = {96,
                                      1024}; /* codes by a kernel for few tokens, and for many */
    rng r = rng_new(4);
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.serial_launch = true;
    dg_context *serial = test_context(&options), *context = test_context(NULL);
    for (int h = 0; h < 2; h++) {
        const int64_t n = heights[h], blocks = dg_scale_count(n, 128, 0);
        const size_t bytes = (size_t)(M * n) * sizeof(float);
        float ones[M * K / 128];
        for (int i = 0; i < M * K / 128; i++)
            ones[i] = 1.0f;
        float *const one = upload(context, ones, sizeof ones);
        dg_gemm product = plain_product(&r, context, M, n, K, (dg_matrix){0}, one);
        const dg_matrix weights = product.b;
        const dg_matrix scales = dg_matrix_of(upload(context, NULL, (size_t)(blocks * K / 128) * 4),
                                              DG_F32, blocks, K / 128);
        product.scale_a = dg_scale_of(one, DG_F32, M, K, 1, 128);
        product.scale_b = dg_scale_of(scales.data, DG_F32, n, K, 128, 128);
        dg_gemm write_codes[2], write_scales[2];
        for (int i = 0; i < 2; i++) {
            write_codes[i] = plain_product(&r, context, n, K, FROM, weights, one);
            write_scales[i] = plain_product(&r, context, blocks, K / 128, FROM, scales, one);
        }
        char *const d = upload(context, NULL, bytes * (size_t)steps);
        char *expected = malloc(bytes * (size_t)steps), *result = malloc(bytes * (size_t)steps);
        assert_true(expected != NULL && result != NULL);
        for (int round = 0; round <= test_rounds(ROUNDS, 2); round++) { /* the first one serially */
            dg_context *const with = round == 0 ? serial : context;
            for (int i = 0; i < steps; i++) {
                const dg_gemm *const codes = &write_codes[i % 2], *const scale =
                                                                      &write_scales[i / 2 % 2];
                product.d = dg_matrix_of(d + (size_t)i * bytes, DG_F32, M, n);
                assert_ok(dg_gemm_run(with, round % 2 == 0 ? codes : scale, NULL));
                assert_ok(dg_gemm_run(with, round % 2 == 0 ? scale : codes, NULL));
                assert_ok(dg_gemm_run(with, &product, NULL));
            }
            download(context, round == 0 ? expected : result, d, bytes * (size_t)steps);
            for (int i = 0; round > 0 && i < steps; i++)
                if (memcmp(expected + (size_t)i * bytes, result + (size_t)i * bytes, bytes) != 0)
                    fail_msg("n %d, round %d, step %d: other bits than without dependent launch",
                             (int)n, round, i);
        }
        for (int i = 0; i < 3; i++) /* of other weights, or nothing would be shown */
            assert_true(memcmp(expected + i * bytes, expected + (i + 1) * bytes, bytes) != 0);
        for (int i = 0; i < 2; i++) {
            free_operands(context, &write_codes[i]);
            free_operands(context, &write_scales[i]);
        }
        free_operands(context, &product);
        void *const memory[] = {one, scales.data, d};
        for (int i = 0; i < 3; i++)
            assert_ok(dg_memory_free(context, memory[i]));
        free(expected);
        free(result);
    }
    dg_destroy(serial);
    dg_destroy(context);
}

/* One product, many times into slots of their own; all must have the bits of the first. */
enum { SLOTS = 64 };
typedef struct repeated {
    dg_gemm gemm;
    dg_weights *weights;
    void *d, *poison;
    uint8_t *host;
    size_t bytes; /* of one D */
} repeated;

static void repeated_new(rng *r, dg_context *context, repeated *p, int64_t m, int64_t n, int64_t k,
                         const char *recipe_name)
{
    const recipe *recipe = recipe_named(recipe_name);
    dg_gemm g = gemm_of(recipe, m, n, k, DG_F32);
    const size_t largest = (size_t)(n * k > m * k ? n * k : m * k);
    uint8_t *codes = malloc(largest);
    float *scales = malloc(largest * 4 / 32 + 4 * (size_t)(n + m) * 4);
    assert_true(codes != NULL && scales != NULL);
    rng_fill_normal(r, codes, DG_E4M3, m * k, 1.0);
    g.a.data = upload(context, codes, (size_t)(m * k));
    rng_fill_normal(r, codes, DG_E4M3, n * k, 1.0);
    g.b.data = upload(context, codes, (size_t)(n * k));
    dg_scale *const both[] = {&g.scale_a, &g.scale_b};
    for (int i = 0; i < 2; i++) {
        const int64_t count = both[i]->rows * both[i]->cols;
        rng_fill_scales(r, scales, both[i]->dtype, count);
        both[i]->data = upload(context, scales, (size_t)count * dg_dtype_bytes(both[i]->dtype));
    }
    *p = (repeated){.bytes = (size_t)(m * n) * 4};
    p->d = upload(context, NULL, p->bytes * SLOTS);
    p->host = malloc(p->bytes * SLOTS);
    assert_non_null(p->host);
    memset(p->host, 0xFF, p->bytes * SLOTS);
    p->poison = upload(context, p->host, p->bytes * SLOTS);
    if (rng_chance(r, 0.7)) {
        assert_ok(dg_weights_pack(context, &g.b, &g.scale_b, NULL, 0, NULL, &p->weights));
        assert_ok(dg_memory_free(context, g.b.data));
        assert_ok(dg_memory_free(context, g.scale_b.data));
        g.b = (dg_matrix){0};
        g.scale_b = (dg_scale){0};
        g.weights = p->weights;
    }
    p->gemm = g;
    free(codes);
    free(scales);
}

static void repeated_free(dg_context *context, repeated *p)
{
    dg_weights_destroy(p->weights);
    void *const memory[] = {p->gemm.a.data,       p->gemm.b.data, p->gemm.scale_a.data,
                            p->gemm.scale_b.data, p->d,           p->poison};
    for (int i = 0; i < 6; i++)
        assert_ok(dg_memory_free(context, memory[i]));
    free(p->host);
}

static void repeated_enqueue(dg_context *context, const repeated *p, int slots, void *stream)
{
    dg_gemm g = p->gemm;
    assert_ok(
        dg_memory_copy(context, p->d, p->poison, p->bytes * SLOTS, DG_DEVICE_TO_DEVICE, stream));
    for (int i = 0; i < slots; i++) {
        g.d.data = (char *)p->d + (size_t)i * p->bytes;
        assert_ok(dg_gemm_run(context, &g, stream));
    }
}

/* `expected` is filled by the first call. */
static void repeated_check(dg_context *context, const repeated *p, int slots, uint8_t **expected)
{
    download(context, p->host, p->d, p->bytes * SLOTS);
    if (*expected == NULL) {
        *expected = malloc(p->bytes);
        assert_non_null(*expected);
        memcpy(*expected, p->host, p->bytes);
    }
    for (int i = 0; i < slots; i++)
        if (memcmp(*expected, p->host + (size_t)i * p->bytes, p->bytes) != 0)
            fail_msg("launch %d of %d gives other bits: m %lld n %lld k %lld", i, slots,
                     (long long)p->gemm.d.rows, (long long)p->gemm.d.cols,
                     (long long)p->gemm.a.cols);
    for (size_t i = 0; i < p->bytes / 4; i++) /* and every element was written */
        assert_true(((const uint32_t *)p->host)[i] != 0xFFFFFFFFu);
}

static void repeated_launches(void **state)
{
    (void)state;
    need_gpu();
    const char *const wanted = getenv("DEEPGEMM_STRESS");
    const long launches = wanted != NULL ? atol(wanted) : test_rounds(20000, SLOTS);
    static const char *const names[] = {"tensor", "token_channel", "block128", "block1x128", "mx"};
    rng r = rng_new(2);
    dg_context *context = test_context(NULL);
    long done = 0;
    while (done < launches) {
        repeated p;
        repeated_new(&r, context, &p, rng_range(&r, 1, rng_chance(&r, 0.7) ? 16 : 64),
                     rng_range(&r, 1, rng_chance(&r, 0.7) ? 700 : 5000),
                     16 * rng_range(&r, 1, rng_chance(&r, 0.5) ? 500 : 100),
                     names[rng_range(&r, 0, 4)]);
        uint8_t *expected = NULL;
        for (int batch = 0; batch < test_rounds(16, 1); batch++, done += SLOTS) {
            repeated_enqueue(context, &p, SLOTS, NULL);
            repeated_check(context, &p, SLOTS, &expected);
        }
        free(expected);
        repeated_free(context, &p);
    }
    print_message("%ld launches\n", done);
    dg_destroy(context);
}

/* The same product, whose K is split, on two streams at once: G28. */
static void two_streams(void **state)
{
    (void)state;
    need_gpu();
    rng r = rng_new(3);
    dg_context *context = test_context(NULL);
    driver d = open_driver();
    repeated p[2];
    void *stream[2];
    uint8_t *expected[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        repeated_new(&r, context, &p[i], 16, i == 0 ? test_rounds(4096, 512) : 576,
                     i == 0 ? test_rounds(16384, 2048) : test_rounds(7168, 1024), "block128");
        assert_int_equal(d.cuStreamCreate(&stream[i], 1), 0);
        repeated_enqueue(context, &p[i], 1, NULL);
        repeated_check(context, &p[i], 1, &expected[i]);
    }
    for (int round = 0; round < test_rounds(20, 1); round++) {
        for (int i = 0; i < 2; i++)
            repeated_enqueue(context, &p[i], SLOTS, stream[i]);
        for (int i = 0; i < 2; i++)
            assert_ok(dg_synchronize(context, stream[i]));
        for (int i = 0; i < 2; i++)
            repeated_check(context, &p[i], SLOTS, &expected[i]);
    }
    for (int i = 0; i < 2; i++) {
        free(expected[i]);
        repeated_free(context, &p[i]);
    }
    dg_destroy(context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains_give_the_same_bits),
        cmocka_unit_test(weights_that_change),
        cmocka_unit_test(two_streams),
        cmocka_unit_test(repeated_launches),
    };
    return test_run(argc, argv, tests);
}
