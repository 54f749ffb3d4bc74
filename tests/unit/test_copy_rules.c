/* SPDX-License-Identifier: MIT */
/* What the copy engine asks of operands, as the host and grouped_setup ask it. */
#include "core/copy_rules.h"
#include "test.h"

static void addresses_and_pitches(void **state)
{
    (void)state;
    assert_true(dgi_can_map(256, 2, 48));
    assert_false(dgi_can_map(264, 2, 48));
    assert_false(dgi_can_map(256, 2, 40));
    assert_true(dgi_can_map(256, 1, 40)); /* a single row has no pitch */
    assert_false(dgi_can_map(257, 1, 48));
    assert_false(dgi_can_map(256, 2, (int64_t)1 << 40));
    assert_true(dgi_can_map(256, 1, (int64_t)1 << 40));
}

static void columns(void **state)
{
    (void)state;
    assert_true(dgi_can_copy_columns(0, 5, false));
    assert_true(dgi_can_copy_columns(48, 5, false));
    for (int first = 1; first < 16; first++) {
        assert_false(dgi_can_copy_columns(first, 128, false));
        assert_false(dgi_can_copy_columns(128 + first, 1, false));
        assert_true(dgi_can_copy_columns(first, 0, false)); /* nothing is read */
    }
}

static void columns_that_are_a_matrix(void **state)
{
    (void)state;
    assert_true(dgi_can_copy_columns(32, 48, true));
    assert_false(dgi_can_copy_columns(32, 4, true));
    assert_false(dgi_can_copy_columns(8, 48, true));
    assert_true(dgi_can_copy_columns(8, 0, true));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_and_pitches),
        cmocka_unit_test(columns),
        cmocka_unit_test(columns_that_are_a_matrix),
    };
    return test_run(argc, argv, tests);
}
