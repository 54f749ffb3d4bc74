/* SPDX-License-Identifier: MIT */
/* Status names, the calling thread's message, the version, and the names of types. */
#include "core/status.h"
#include "test.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void status_names(void **state)
{
    (void)state;
    assert_string_equal(dg_status_name(DG_OK), "DG_OK");
    for (int s = DG_OK; s <= DG_CANCELLED; s++) {
        assert_memory_equal(dg_status_name((dg_status)s), "DG_", 3);
        for (int t = DG_OK; t < s; t++)
            assert_string_not_equal(dg_status_name((dg_status)s), dg_status_name((dg_status)t));
    }
    assert_string_equal(dg_status_name((dg_status)(DG_CANCELLED + 1)), "unknown status");
    assert_string_equal(dg_status_name((dg_status)-1), "unknown status");
}

static void *fail_in_another_thread(void *as_expected)
{
    bool empty = strcmp(dg_last_error(), "") == 0;
    dg_status status = dgi_fail(DG_IO_ERROR, "theirs");
    *(bool *)as_expected = empty && status == DG_IO_ERROR && strcmp(dg_last_error(), "theirs") == 0;
    return NULL;
}

/* A message belongs to its thread, and a call that succeeds leaves it alone. */
static void messages(void **state)
{
    (void)state;
    assert_int_equal(dgi_fail(DG_BAD_FILE, "mine %d", 1), DG_BAD_FILE);
    pthread_t thread;
    bool as_expected = false;
    assert_int_equal(pthread_create(&thread, NULL, fail_in_another_thread, &as_expected), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(as_expected);
    assert_string_equal(dg_last_error(), "mine 1");
    assert_ok(dg_convert(NULL, DG_F32, NULL, DG_BF16, 0, DG_SATURATE));
    assert_string_equal(dg_last_error(), "mine 1");
}

/* A message longer than its buffer is cut, not lost. */
static void long_messages(void **state)
{
    (void)state;
    static char name[100000];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_int_equal(dgi_fail(DG_NOT_FOUND, "no %s", name), DG_NOT_FOUND);
    assert_memory_equal(dg_last_error(), "no xxxx", 7);
    assert_true(strlen(dg_last_error()) < sizeof name);
}

static void version(void **state)
{
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", DG_VERSION_MAJOR, DG_VERSION_MINOR, DG_VERSION_PATCH);
    assert_string_equal(dg_version(), text);
}

static void dtypes(void **state)
{
    (void)state;
    const struct {
        dg_dtype dtype;
        const char *name;
        size_t bytes;
    } expected[] = {
        {DG_NONE, "none", 0},         {DG_F32, "f32", 4},
        {DG_F16, "f16", 2},           {DG_BF16, "bf16", 2},
        {DG_E4M3, "e4m3", 1},         {DG_E5M2, "e5m2", 1},
        {DG_UE8M0, "ue8m0", 1},       {(dg_dtype)(DG_UE8M0 + 1), "unknown", 0},
        {(dg_dtype)-1, "unknown", 0},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        assert_string_equal(dg_dtype_name(expected[i].dtype), expected[i].name);
        assert_int_equal(dg_dtype_bytes(expected[i].dtype), expected[i].bytes);
    }
}

static void scale_counts(void **state)
{
    (void)state;
    assert_int_equal(dg_scale_count(0, 128, 0), 0);
    assert_int_equal(dg_scale_count(0, 0, 0), 1);
    assert_int_equal(dg_scale_count(INT64_MAX, 1, 0), INT64_MAX);
    assert_int_equal(dg_scale_count(INT64_MAX, INT32_MAX, INT32_MAX - 1),
                     INT64_MAX / INT32_MAX + 1);
    for (int32_t block = 1; block < 9; block++)
        for (int32_t phase = 0; phase < block; phase++)
            for (int64_t size = 1; size < 40; size++)
                assert_int_equal(dg_scale_count(size, block, phase),
                                 (size - 1 + phase) / block + 1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_names), cmocka_unit_test(messages), cmocka_unit_test(long_messages),
        cmocka_unit_test(version),      cmocka_unit_test(dtypes),   cmocka_unit_test(scale_counts),
    };
    return test_run(argc, argv, tests);
}
