/* SPDX-License-Identifier: MIT */
/* Random GEMMs through the public interface, against the oracle. */
#include "gemm_case.h"
#include "test.h"

#include <stdlib.h>

static void random_gemms(void **state)
{
    (void)state;
    rng r = rng_new(1);
    dg_context *context = test_context(NULL);
    int runs = 0;
    for (int i = 0; i < 200; i++) {
        dg_gemm shape = gemm_random(&r, 200);
        bool in_place = shape.d.dtype != DG_E4M3 && shape.d.dtype != DG_E5M2 && rng_chance(&r, 0.3);
        gemm_case *c = gemm_case_new(&r, &shape, in_place ? CASE_IN_PLACE : CASE_PLAIN);
        if (!gemm_case_run_or_refuse(c, context)) {
            gemm_case_free(c);
            continue;
        }
        runs++;
        gemm_case_check(c);
        void *rows = gemm_case_copy_d(c);
        dg_status packed = gemm_case_run_packed(c, context);
        if (test_device() == DG_CPU || packed != DG_UNSUPPORTED_DEVICE) {
            assert_status(packed, DG_OK);
            gemm_case_check(c);
            assert_memory_equal(rows, c->d.data, c->d.bytes);
        }
        free(rows);
        gemm_case_free(c);
    }
    print_message("%d of 200 random problems ran\n", runs);
    assert_true(runs >= 50);
    dg_destroy(context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_gemms)};
    return test_run(argc, argv, tests);
}
