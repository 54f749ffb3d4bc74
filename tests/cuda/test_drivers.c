/* SPDX-License-Identifier: MIT */
/*
 * GPUs and drivers that the library cannot use (requirements G32 and G33): each is refused when a
 * context is made, with what was found and what is needed. The drivers are fakes, loaded under the
 * real one's name before the library asks for it, so this needs no GPU.
 */
#include "test.h"

#include <dlfcn.h>
#include <string.h>

/* Makes a context with that driver, which must be refused with a message that has both texts. */
static void refuse(const char *driver, const char *found, const char *needed)
{
    void *library = dlopen(driver, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(library);
    dg_context *context = NULL;
    assert_refused(dg_create(&context, 0, NULL), DG_UNSUPPORTED_DEVICE, found);
    assert_non_null(strstr(dg_last_error(), needed));
    assert_null(context);
    assert_int_equal(dlclose(library), 0);
    /* The CPU is as usable as before. */
    assert_ok(dg_create(&context, DG_CPU, NULL));
    dg_destroy(context);
}

static void g32_driver_that_lacks_functions(void **state)
{
    (void)state;
    refuse(FAKE_OLD_DRIVER, "has no cu", "install a driver for CUDA 1");
}

static void g33_gpu_of_another_generation(void **state)
{
    (void)state;
    refuse(FAKE_DRIVER, "is a Test A10 of compute capability 8.6", "9.0 (Hopper) only; use DG_CPU");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(g32_driver_that_lacks_functions),
        cmocka_unit_test(g33_gpu_of_another_generation),
    };
    return test_run(argc, argv, tests);
}
