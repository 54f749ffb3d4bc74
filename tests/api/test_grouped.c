/* SPDX-License-Identifier: MIT */
/* Grouped products through the public interface, against the oracle, byte by byte of D. */
#include "grouped_case.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool can_pack(const grouped_case *c)
{
    return c->groups.grouping <= DG_GROUPS_MASKED && c->groups.count != 0 &&
           test_device() == DG_CPU;
}

static void random_groups(void **state)
{
    (void)state;
    rng r = rng_new(1);
    dg_context *context = test_context(NULL);
    int ran = 0;
    for (int i = 0; i < 400; i++) {
        grouped_case *c = grouped_case_random(&r, i % 8 == 0 ? 150 : 40);
        const dg_status status = grouped_case_run(c, context, false);
        if (test_device() != DG_CPU &&
            (status == DG_UNSUPPORTED_SCALE || status == DG_MISALIGNED)) {
            grouped_case_check_untouched(c);
            grouped_case_free(c);
            continue;
        }
        assert_ok(status);
        ran++;
        grouped_case_check(c);
        if (can_pack(c)) {
            assert_ok(grouped_case_run(c, context, true));
            grouped_case_check(c);
        }
        if (test_device() == DG_CPU)
            grouped_case_check_bits(c, context);
        grouped_case_free(c);
    }
    assert_true(ran >= 100); /* a GPU does not take every granularity */
    dg_destroy(context);
}

/*
 * Groups of columns that begin anywhere. A GPU reads them from multiples of 16 on: where all begin
 * there they are right, the last of any K, and else every group is left alone.
 */
static void columns_that_begin_anywhere(void **state)
{
    (void)state;
    static const struct {
        int32_t sizes[4];
        bool on_gpu;
    } cases[] = {
        {{16, 48, 0, 21}, true},   {{32, 5, 0, 0}, true},   {{0, 7, 30, 48}, false},
        {{20, 12, 32, 21}, false}, {{64, 16, 4, 1}, false},
    };
    rng r = rng_new(2);
    dg_context *context = test_context(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        grouped_shape s =
            grouped_of(recipe_named("token_channel"), DG_GROUPS_K_COLUMNS, 4, 20, 40, 85, DG_F32);
        s.sizes = cases[i].sizes;
        grouped_case *c = grouped_case_new(&r, &s);
        assert_ok(grouped_case_run(c, context, false));
        if (test_device() == DG_CPU || cases[i].on_gpu)
            grouped_case_check(c);
        else
            grouped_case_check_untouched(c);
        grouped_case_free(c);
    }
    dg_destroy(context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_groups),
        cmocka_unit_test(columns_that_begin_anywhere),
    };
    return test_run(argc, argv, tests);
}
