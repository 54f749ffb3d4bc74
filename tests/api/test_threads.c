/* SPDX-License-Identifier: MIT */
/*
 * Many threads on one context (requirement G28): results equal to those of a single thread, bit for
 * bit, and messages that do not mix. CI runs this program under ThreadSanitizer too.
 */
#include "gemm_case.h"
#include "test.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 25 };

typedef struct worker {
    int index;
    dg_context *context;
    const dg_gemm *gemm; /* shared operands, in host memory */
    const dg_weights *weights;
    const void *expected;
    size_t d_bytes;
    const char *failure; /* cmocka's assertions belong to the main thread */
} worker;

/* A call of each kind on outputs of this thread's own. */
static const char *work(const worker *w)
{
    dg_gemm g = *w->gemm;
    float d[16 * 96], alpha = g.alpha;
    g.d.data = d;
    for (int round = 0; round < ROUNDS; round++) {
        memset(d, 0xFF, sizeof d);
        if (dg_gemm_run(w->context, &g, NULL) != DG_OK || memcmp(d, w->expected, w->d_bytes) != 0)
            return "a GEMM differs";

        dg_gemm packed = g;
        packed.weights = w->weights;
        packed.b = (dg_matrix){0};
        packed.scale_b = (dg_scale){0};
        memset(d, 0xFF, sizeof d);
        if (dg_gemm_run(w->context, &packed, NULL) != DG_OK ||
            memcmp(d, w->expected, w->d_bytes) != 0)
            return "a GEMM with packed weights differs";

        dg_gemm wrong = g;
        char text[32];
        wrong.a.rows = 1000 + w->index;
        snprintf(text, sizeof text, "%d", 1000 + w->index);
        if (dg_gemm_run(w->context, &wrong, NULL) != DG_INVALID_ARGUMENT ||
            strstr(dg_last_error(), text) == NULL)
            return "a message is not this thread's";

        dg_quantize q = DG_QUANTIZE_INIT;
        uint8_t codes[16 * 96];
        float scales[16];
        q.input = g.d;
        q.output = dg_matrix_of(codes, DG_E4M3, g.d.rows, g.d.cols);
        q.scale = dg_scale_of(scales, DG_F32, g.d.rows, g.d.cols, 1, 0);
        if (dg_quantize_run(w->context, &q, NULL) != DG_OK)
            return "a quantisation fails";
    }
    return g.alpha == alpha ? NULL : "a description was changed";
}

static void *thread_main(void *argument)
{
    worker *w = argument;
    w->failure = work(w);
    return NULL;
}

/* `threads`: how many the context may use inside one call. */
static void run_threads(int32_t threads)
{
    rng r = rng_new(28);
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.threads = threads;
    dg_context *context = test_context(&options);
    dg_gemm shape = gemm_of(recipe_named("block128"), 16, 96, 400, DG_F32);
    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
    assert_ok(gemm_case_run(c, context));
    gemm_case_check(c);
    dg_weights *weights;
    assert_ok(dg_weights_pack(context, &c->gemm.b, &c->gemm.scale_b, NULL, 0, NULL, &weights));

    pthread_t thread[THREADS];
    worker workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){i, context, &c->gemm, weights, c->d.data, c->d.bytes, NULL};
        assert_int_equal(pthread_create(&thread[i], NULL, thread_main, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (int i = 0; i < THREADS; i++)
        if (workers[i].failure != NULL)
            fail_msg("thread %d: %s", i, workers[i].failure);
    dg_weights_destroy(weights);
    gemm_case_free(c);
    dg_destroy(context);
}

static void g28_many_threads_on_one_context(void **state)
{
    (void)state;
    if (test_device() != DG_CPU)
        skip();
    run_threads(1);
}

static void g28_many_threads_with_threads_of_their_own(void **state)
{
    (void)state;
    if (test_device() != DG_CPU)
        skip();
    run_threads(3);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(g28_many_threads_on_one_context),
        cmocka_unit_test(g28_many_threads_with_threads_of_their_own),
    };
    return test_run(argc, argv, tests);
}
