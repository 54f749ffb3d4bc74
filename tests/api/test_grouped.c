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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_groups)};
    return test_run(argc, argv, tests);
}
