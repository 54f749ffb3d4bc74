/* SPDX-License-Identifier: MIT */
/* Contexts, their options, device facts, memory, and the kernel table. */
#include "test.h"

#include <stdio.h>
#include <string.h>

static void create_and_destroy(void **state)
{
    (void)state;
    assert_refused(dg_create(NULL, test_device(), NULL), DG_INVALID_ARGUMENT, "context is NULL");
    dg_context *context = NULL;
    assert_refused(dg_create(&context, -2, NULL), DG_INVALID_ARGUMENT, "device is -2");
    assert_null(context);
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.threads = -1;
    assert_refused(dg_create(&context, test_device(), &options), DG_INVALID_ARGUMENT,
                   "options.threads is -1");
    assert_null(context);
    for (int i = 0; i < 100; i++)
        dg_destroy(test_context(NULL));
    dg_destroy(NULL);
}

/* An instruction set or a kernel that does not exist is refused by name. */
static void unknown_names(void **state)
{
    (void)state;
    dg_context *context = NULL;
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    if (test_device() == DG_CPU) {
        options.isa = "avx3";
        assert_refused(dg_create(&context, DG_CPU, &options), DG_INVALID_ARGUMENT, "avx3");
        assert_refused(dg_create(&context, DG_CPU, &options), DG_INVALID_ARGUMENT, "avx2");
        options.isa = NULL;
    }
    options.kernel = "gemm_of_nobody";
    assert_refused(dg_create(&context, test_device(), &options), DG_NOT_FOUND, "gemm_of_nobody");
    assert_null(context);

    context = test_context(NULL);
    assert_refused(dg_kernel_usable(context, "gemm_of_nobody"), DG_NOT_FOUND, "gemm_of_nobody");
    assert_refused(dg_kernel_usable(context, NULL), DG_INVALID_ARGUMENT, "name is NULL");
    assert_refused(dg_kernel_usable(NULL, "x"), DG_INVALID_ARGUMENT, "context is NULL");
    dg_destroy(context);
}

static void device_facts(void **state)
{
    (void)state;
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.threads = 3;
    dg_context *context = test_context(&options);
    dg_device_info info;
    assert_ok(dg_get_device_info(context, &info));
    assert_true(strlen(info.name) > 0 && strlen(info.architecture) > 0);
    if (test_device() == DG_CPU)
        assert_int_equal(info.units, 3);
    else
        assert_true(info.units > 0);
    assert_refused(dg_get_device_info(context, NULL), DG_INVALID_ARGUMENT, "info is NULL");
    assert_refused(dg_get_device_info(NULL, &info), DG_INVALID_ARGUMENT, "context is NULL");
    dg_destroy(context);
}

/* Every row has a name of its own and says for itself whether it can run. */
static void kernel_table(void **state)
{
    (void)state;
    dg_context *context = test_context(NULL);
    dg_kernel_info row, other;
    int usable = 0, count = 0;
    for (; dg_kernel_at(count, &row) == DG_OK; count++) {
        for (int i = 0; i < count; i++) {
            assert_ok(dg_kernel_at(i, &other));
            assert_string_not_equal(row.name, other.name);
        }
        assert_true(row.tile_m > 0 && row.tile_n > 0 && row.tile_k > 0);
        dg_status status = dg_kernel_usable(context, row.name);
        if (status == DG_OK)
            usable++;
        else
            assert_status(status, DG_UNSUPPORTED_DEVICE);
    }
    assert_true(usable > 0);
    char text[16];
    snprintf(text, sizeof text, "%d", count);
    assert_refused(dg_kernel_at(count, &row), DG_NOT_FOUND, text);
    assert_refused(dg_kernel_at(-1, &row), DG_NOT_FOUND, "-1");
    assert_refused(dg_kernel_at(0, NULL), DG_INVALID_ARGUMENT, "info is NULL");
    dg_destroy(context);
}

static void memory(void **state)
{
    (void)state;
    dg_context *context = test_context(NULL);
    void *block = (void *)1;
    assert_ok(dg_memory_alloc(context, 0, &block));
    assert_null(block);
    assert_refused(dg_memory_alloc(context, 1, NULL), DG_INVALID_ARGUMENT, "memory is NULL");
    block = (void *)1;
    assert_refused(dg_memory_alloc(context, SIZE_MAX - 7, &block), DG_OUT_OF_MEMORY, "bytes");
    assert_null(block);
    assert_ok(dg_memory_free(context, NULL));

    char text[100] = "round trip", back[100] = "";
    assert_ok(dg_memory_alloc(context, sizeof text, &block));
    assert_int_equal((uintptr_t)block % 256, 0);
    assert_ok(dg_memory_copy(context, block, text, sizeof text, DG_HOST_TO_DEVICE, NULL));
    assert_ok(dg_memory_copy(context, back, block, sizeof text, DG_DEVICE_TO_HOST, NULL));
    assert_ok(dg_synchronize(context, NULL));
    assert_string_equal(back, text);
    assert_refused(dg_memory_copy(context, block, text, 1, (dg_copy_kind)3, NULL),
                   DG_INVALID_ARGUMENT, "kind is 3");
    assert_refused(dg_memory_copy(context, NULL, text, 1, DG_HOST_TO_DEVICE, NULL),
                   DG_INVALID_ARGUMENT, "target is NULL");
    assert_refused(dg_memory_copy(context, block, NULL, 1, DG_HOST_TO_DEVICE, NULL),
                   DG_INVALID_ARGUMENT, "source is NULL");
    assert_ok(dg_memory_copy(context, NULL, NULL, 0, DG_HOST_TO_DEVICE, NULL));
    assert_ok(dg_memory_free(context, block));
    assert_refused(dg_synchronize(NULL, NULL), DG_INVALID_ARGUMENT, "context is NULL");
    dg_destroy(context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(create_and_destroy),
        cmocka_unit_test(unknown_names),
        cmocka_unit_test(device_facts),
        cmocka_unit_test(kernel_table),
        cmocka_unit_test(memory),
    };
    return test_run(argc, argv, tests);
}
