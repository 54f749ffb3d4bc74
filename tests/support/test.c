/* SPDX-License-Identifier: MIT */
/* The device under test and the assertions about a status: see test.h. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dg_device device = DG_CPU;

void test_begin(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        char rest;
        if (strcmp(argv[i], "--device") == 0 && i + 1 < argc &&
            (strcmp(argv[i + 1], "cpu") == 0 ||
             sscanf(argv[i + 1], "cuda:%d%c", &device, &rest) == 1)) {
            i++;
        } else {
            fprintf(stderr, "usage: %s [--device cpu|cuda:N]\n", argv[0]);
            exit(2);
        }
    }
}

dg_device test_device(void)
{
    return device;
}

int test_rounds(int usual, int few)
{
    return getenv("DEEPGEMM_REDUCED") != NULL ? few : usual;
}

dg_context *test_context(const dg_context_options *options)
{
    /* The first context on a GPU sets the device up, the last one takes it down; both take long. */
    static dg_context *keeper;
    dg_context *context = NULL;
    if (device != DG_CPU && keeper == NULL)
        assert_ok(dg_create(&keeper, device, NULL));
    assert_ok(dg_create(&context, device, options));
    return context;
}

/* ---- memory -------------------------------------------------------------------------- */

static size_t place(const void *host)
{
    return (uintptr_t)host % 256;
}

void *test_to_device(dg_context *context, void *host, size_t bytes)
{
    if (device == DG_CPU || bytes == 0)
        return host;
    void *memory;
    assert_ok(dg_memory_alloc(context, bytes + place(host), &memory));
    memory = (char *)memory + place(host);
    assert_ok(dg_memory_copy(context, memory, host, bytes, DG_HOST_TO_DEVICE, NULL));
    return memory;
}

void test_from_device(dg_context *context, void *memory, void *host, size_t bytes)
{
    if (memory == host)
        return;
    assert_ok(dg_memory_copy(context, host, memory, bytes, DG_DEVICE_TO_HOST, NULL));
    assert_ok(dg_synchronize(context, NULL));
    test_release(context, memory, host);
}

void test_release(dg_context *context, void *memory, void *host)
{
    if (memory != host)
        assert_ok(dg_memory_free(context, (char *)memory - place(host)));
}

/* ---- assertions ---------------------------------------------------------------------- */

void test_status(dg_status status, dg_status expected, const char *call, const char *file, int line)
{
    if (status == expected)
        return;
    print_error("%s\ngives %s (%s), not %s\n", call, dg_status_name(status), dg_last_error(),
                dg_status_name(expected));
    _fail(file, line);
}

void test_refused(dg_status status, dg_status expected, const char *text, const char *call,
                  const char *file, int line)
{
    test_status(status, expected, call, file, line);
    if (strstr(dg_last_error(), text) != NULL)
        return;
    print_error("%s\nsays \"%s\", which lacks \"%s\"\n", call, dg_last_error(), text);
    _fail(file, line);
}
