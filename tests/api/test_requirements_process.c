/* SPDX-License-Identifier: MIT */
/*
 * Requirements G29 to G31, G33, G34 and G36 (docs/requirements.md): processes, first calls, devices
 * that are not there, instruction sets, the same bits every time. G28 is test_threads.c, G32 is
 * tests/structure/exports.sh.
 */
#include "core/formats.h"
#include "files.h"
#include "gemm_case.h"
#include "test.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static bool is_mapped(const char *library)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    char line[4096];
    bool found = false;
    while (!found && fgets(line, sizeof line, maps) != NULL)
        found = strstr(line, library) != NULL;
    fclose(maps);
    return found;
}

/* A case; its result goes into `pipe_end`. Exits the process. NULL: a context of its own. */
static void multiply_and_exit(uint64_t stream, dg_context *context, int pipe_end)
{
    rng r = rng_new(stream);
    if (context == NULL && dg_create(&context, test_device(), NULL) != DG_OK)
        _exit(2);
    dg_gemm shape = gemm_of(recipe_named("block128"), 30, 200, 300, DG_F32);
    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
    if (gemm_case_run(c, context) != DG_OK)
        _exit(3);
    gemm_case_check(c);
    bool written = write(pipe_end, c->d.data, c->d.bytes) == (ssize_t)c->d.bytes;
    _exit(written ? 0 : 4);
}

/* The child's result; it fails the test when the child does. */
static void run_in_child(uint64_t stream, dg_context *context, void *result, size_t bytes)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60); /* a child that waits for ever fails the test */
        multiply_and_exit(stream, context, ends[1]);
    }
    close(ends[1]);
    size_t got = 0;
    for (ssize_t part; (part = read(ends[0], (char *)result + got, bytes - got)) > 0;)
        got += (size_t)part;
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(got, bytes);
}

/* Loading the library touches no GPU driver, and a child of fork() computes. */
static void g29_load_then_fork(void **state)
{
    (void)state;
    assert_string_not_equal(dg_version(), "");
    assert_false(is_mapped("libcuda"));
    assert_false(is_mapped("libcudart"));
    static float result[30 * 200];
    run_in_child(29, NULL, result, sizeof result);
}

/* Nor does it matter that the parent has computed before, with threads that no child inherits. */
static void g29_compute_then_fork(void **state)
{
    (void)state;
    rng r = rng_new(30);
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.threads = 4;
    dg_context *context = NULL;
    assert_ok(dg_create(&context, DG_CPU, &options));
    dg_gemm shape = gemm_of(recipe_named("block128"), 100, 200, 300, DG_F32);
    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
    static float result[30 * 200];
    for (int i = 0; i < 3; i++) {
        assert_ok(gemm_case_run(c, context));
        gemm_case_check(c);
        run_in_child(29, i == 0 ? NULL : context, result, sizeof result);
    }
    gemm_case_free(c);
    dg_destroy(context);
}

/* G30: processes that start together leave nothing on the disk that another one could find damaged,
 * and need no folder that they may write to. */
static void g30_no_files(void **state)
{
    (void)state;
    const char *folder = files_folder();
    static const char *const names[] = {"HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"};
    pid_t children[16];
    fflush(stdout);
    for (int i = 0; i < 16; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] != 0)
            continue;
        alarm(60);
        for (size_t j = 0; j < sizeof names / sizeof names[0]; j++)
            setenv(names[j], i % 2 == 0 ? folder : "/nowhere", 1);
        setenv("CUDA_CACHE_DISABLE", "1", 1); /* the driver's own cache, in HOME even if unused */
        if (chdir(folder) != 0)
            _exit(5);
        multiply_and_exit((uint64_t)i, NULL, open("/dev/null", O_WRONLY));
    }
    for (int i = 0; i < 16; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(files_count(folder, ""), 0);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* By how many seconds the first call of a shape, with a context that is new, exceeds the second. */
static double excess_of_first_call(rng *r, const recipe *recipe, int64_t m)
{
    dg_context *context = test_context(NULL);
    dg_gemm shape = gemm_of(recipe, m, 77, 201, DG_BF16);
    gemm_case *c = gemm_case_new(r, &shape, CASE_PLAIN);
    double first = now();
    assert_ok(gemm_case_run(c, context));
    double second = now();
    assert_ok(gemm_case_run(c, context));
    double end = now();
    gemm_case_free(c);
    dg_destroy(context);
    return (second - first) - (end - second);
}

/*
 * The first call of a shape costs no compilation: it is within 100 ms of the second. A machine
 * under load may be late once, but a compilation would be there for each new shape.
 */
static void g31_first_call(void **state)
{
    (void)state;
    rng r = rng_new(31);
    for (int i = 0; i < recipe_count; i++) {
        double least = INFINITY;
        for (int64_t m = 33; least >= 0.1 && m < 40; m++)
            least = fmin(least, excess_of_first_call(&r, &recipes[i], m));
        assert_true(least < 0.1);
    }
}

/* A device that is not there is refused when the context is made, with what would be right. */
static void g33_devices_that_are_not_there(void **state)
{
    (void)state;
    dg_context *context = NULL;
    assert_refused(dg_create(&context, 1000, NULL), DG_UNSUPPORTED_DEVICE, "device is 1000");
    assert_null(context);
    dg_status status = dg_create(&context, 0, NULL); /* there may be a GPU */
    if (status != DG_OK) {
        assert_refused(status, DG_UNSUPPORTED_DEVICE, "device");
        assert_null(context);
    }
    dg_destroy(context);
    /* The CPU is as usable as before. */
    assert_ok(dg_create(&context, DG_CPU, NULL));
    dg_destroy(context);
}

/* Every instruction set that this machine has gives the right result; others are not chosen. */
static void g34_instruction_sets(void **state)
{
    (void)state;
    const char *sets[] = {"generic", "avx2", "avx512", "avx512_bf16"};
    rng r = rng_new(34);
    dg_gemm shape = gemm_of(recipe_named("block128"), 21, 130, 390, DG_F32);
    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
    const char *widest = sets[0];
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
        options.isa = sets[i];
        dg_context *context;
        assert_ok(dg_create(&context, DG_CPU, &options));
        dg_device_info info;
        assert_ok(dg_get_device_info(context, &info));
        /* A cap is an upper limit: never a wider set, and the widest that there is below it. */
        if (strcmp(info.architecture, sets[i]) == 0)
            widest = sets[i];
        assert_string_equal(info.architecture, widest);
        assert_ok(gemm_case_run(c, context));
        gemm_case_check(c);
        dg_destroy(context);
    }
    gemm_case_free(c);
}

/* The same call gives the same bits: again, in another process, and a row whatever M is. */
static void g36_same_bits_every_time(void **state)
{
    (void)state;
    static float child[2][30 * 200];
    run_in_child(36, NULL, child[0], sizeof child[0]);
    run_in_child(36, NULL, child[1], sizeof child[1]);
    assert_memory_equal(child[0], child[1], sizeof child[0]);

    rng r = rng_new(36);
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.batch_invariant = true;
    dg_context *context = test_context(&options);
    dg_gemm shape = gemm_of(recipe_named("block1x128"), 64, 150, 700, DG_F32);
    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
    assert_ok(gemm_case_run(c, context));
    gemm_case_check(c);
    float *first = gemm_case_copy_d(c);
    for (int i = 0; i < 100; i++) {
        assert_ok(gemm_case_run(c, context));
        assert_memory_equal(c->d.data, first, c->d.bytes);
    }
    for (int row = 0; row < 64; row++) {
        dg_gemm one_shape = gemm_of(recipe_named("block1x128"), 1, 150, 700, DG_F32);
        gemm_case *one = gemm_case_new(&r, &one_shape, CASE_PLAIN);
        memcpy(one->a.data, (uint8_t *)c->a.data + row * 700, one->a.bytes);
        memcpy(one->b.data, c->b.data, one->b.bytes);
        memcpy(one->scale_a.data, (float *)c->scale_a.data + row * c->gemm.scale_a.row_stride,
               one->scale_a.bytes);
        memcpy(one->scale_b.data, c->scale_b.data, one->scale_b.bytes);
        assert_ok(gemm_case_run(one, context));
        assert_memory_equal(one->d.data, first + row * 150, one->d.bytes);
        gemm_case_free(one);
    }
    free(first);
    gemm_case_free(c);
    dg_destroy(context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        /* These fork, and no child can use a GPU that its parent has used. */
        cmocka_unit_test(g29_load_then_fork),   cmocka_unit_test(g29_compute_then_fork),
        cmocka_unit_test(g30_no_files),         cmocka_unit_test(g36_same_bits_every_time),
        cmocka_unit_test(g31_first_call),       cmocka_unit_test(g33_devices_that_are_not_there),
        cmocka_unit_test(g34_instruction_sets),
    };
    return test_run(argc, argv, tests);
}
