/* SPDX-License-Identifier: MIT */
/* dg_precision_choose: by hand, and against every possible choice of small models. */
#include "random.h"
#include "test.h"

#include <math.h>
#include <string.h>

enum { LAYERS = 6, COUNT = 3, CHOICES = 729 }; /* 3^6 */

static dg_precision total_of(const dg_precision *p, const int32_t *chosen)
{
    dg_precision sum = {0.0, 0.0};
    for (int i = 0; i < LAYERS; i++) {
        sum.bytes += p[i * COUNT + chosen[i]].bytes;
        sum.error += p[i * COUNT + chosen[i]].error;
    }
    return sum;
}

static void unpack(int number, int32_t *chosen)
{
    for (int i = 0; i < LAYERS; i++, number /= COUNT)
        chosen[i] = number % COUNT;
}

/* Two layers in FP8 (1 byte) or 16 bits (2 bytes): the one that hurts more stays in 16 bits. */
static void test_by_hand(void **state)
{
    (void)state;
    const dg_precision p[] = {{100, 3.0}, {200, 0.0}, {100, 5.0}, {200, 0.0}};
    int32_t chosen[2];
    dg_precision total;
    assert_ok(dg_precision_choose(p, 2, 2, DG_BUDGET_BYTES, 300, chosen, &total));
    assert_true(chosen[0] == 0 && chosen[1] == 1 && total.bytes == 300 && total.error == 3.0);
    assert_ok(dg_precision_choose(p, 2, 2, DG_BUDGET_BYTES, 299, chosen, &total));
    assert_true(chosen[0] == 0 && chosen[1] == 0 && total.error == 8.0);
    assert_ok(dg_precision_choose(p, 2, 2, DG_BUDGET_ERROR, 5.0, chosen, &total));
    assert_true(chosen[0] == 0 && chosen[1] == 1 && total.bytes == 300);
    assert_ok(dg_precision_choose(p, 2, 2, DG_BUDGET_ERROR, 0.0, chosen, &total));
    assert_true(chosen[0] == 1 && chosen[1] == 1 && total.bytes == 400);
    /* The first step saves most per byte, but the second alone suffices: the first is given back.
     */
    const dg_precision q[] = {{0, 2.0}, {1, 0.0}, {0, 10.0}, {10, 0.0}};
    assert_ok(dg_precision_choose(q, 2, 2, DG_BUDGET_ERROR, 2.0, chosen, &total));
    assert_true(chosen[0] == 0 && chosen[1] == 1 && total.bytes == 10);
}

static void fill(rng *r, dg_precision *p)
{
    for (int i = 0; i < LAYERS * COUNT; i++) {
        p[i] = (dg_precision){(double)rng_range(r, 1, 40), (double)rng_range(r, 0, 1000)};
        if (rng_chance(r, 0.1) && i % COUNT != 0)
            p[i].bytes = INFINITY; /* not for this layer */
    }
}

/* The largest error that one step of one layer can save. */
static double largest_step(const dg_precision *p)
{
    double largest = 0.0;
    for (int i = 0; i < LAYERS; i++)
        for (int a = 0; a < COUNT; a++)
            for (int b = 0; b < COUNT; b++)
                if (isfinite(p[i * COUNT + a].bytes) && isfinite(p[i * COUNT + b].bytes))
                    largest = fmax(largest, p[i * COUNT + a].error - p[i * COUNT + b].error);
    return largest;
}

static void test_against_every_choice(void **state)
{
    (void)state;
    rng r = rng_new(1);
    dg_precision p[LAYERS * COUNT], total;
    int32_t chosen[LAYERS], other[LAYERS];
    int exact = 0, rounds = 300;
    for (int round = 0; round < rounds; round++) {
        fill(&r, p);
        double limit = (double)rng_range(&r, LAYERS, 40 * LAYERS), least = INFINITY;
        double fewest = INFINITY;
        for (int c = 0; c < CHOICES; c++) {
            unpack(c, other);
            dg_precision sum = total_of(p, other);
            if (sum.bytes <= limit)
                least = fmin(least, sum.error);
            fewest = fmin(fewest, sum.bytes);
        }
        if (fewest > limit) {
            assert_refused(
                dg_precision_choose(p, LAYERS, COUNT, DG_BUDGET_BYTES, limit, chosen, &total),
                DG_INVALID_ARGUMENT, "least possible");
            continue;
        }
        assert_ok(dg_precision_choose(p, LAYERS, COUNT, DG_BUDGET_BYTES, limit, chosen, &total));
        dg_precision sum = total_of(p, chosen);
        assert_true(sum.bytes == total.bytes && sum.error == total.error);
        assert_true(total.bytes <= limit);
        assert_true(total.error >= least && total.error <= least + largest_step(p));
        exact += total.error == least;

        double limit_error = (double)rng_range(&r, 0, 1000);
        least = fewest = INFINITY;
        for (int c = 0; c < CHOICES; c++) {
            unpack(c, other);
            sum = total_of(p, other);
            if (isfinite(sum.bytes))
                least = fmin(least, sum.error);
            if (sum.error <= limit_error)
                fewest = fmin(fewest, sum.bytes);
        }
        limit_error = least > limit_error ? least : limit_error;
        assert_ok(
            dg_precision_choose(p, LAYERS, COUNT, DG_BUDGET_ERROR, limit_error, chosen, &total));
        assert_true(total.error <= limit_error && isfinite(total.bytes));
        if (isfinite(fewest)) /* one step of 40 bytes from the least */
            assert_true(total.bytes >= fewest && total.bytes <= fewest + 40.0);
    }
    assert_true(exact > rounds / 2);
}

static void test_refusals(void **state)
{
    (void)state;
    const dg_precision p[] = {{1, 1}, {2, 0}}, negative[] = {{1, 1}, {-2, 0}};
    const dg_precision none[] = {{INFINITY, 1}, {2, INFINITY}}, nan[] = {{1, NAN}, {1, 1}};
    int32_t chosen[1] = {7};
    assert_refused(dg_precision_choose(NULL, 1, 2, DG_BUDGET_BYTES, 9, chosen, NULL),
                   DG_INVALID_ARGUMENT, "precisions");
    assert_refused(dg_precision_choose(p, 1, 2, DG_BUDGET_BYTES, 9, NULL, NULL),
                   DG_INVALID_ARGUMENT, "chosen");
    assert_refused(dg_precision_choose(p, -1, 2, DG_BUDGET_BYTES, 9, chosen, NULL),
                   DG_INVALID_ARGUMENT, "-1 x 2");
    assert_refused(dg_precision_choose(p, 1, 2, (dg_budget)5, 9, chosen, NULL), DG_INVALID_ARGUMENT,
                   "budget");
    assert_refused(dg_precision_choose(p, 1, 2, DG_BUDGET_BYTES, NAN, chosen, NULL),
                   DG_INVALID_ARGUMENT, "limit");
    assert_refused(dg_precision_choose(p, 1, 2, DG_BUDGET_ERROR, -1, chosen, NULL),
                   DG_INVALID_ARGUMENT, "least possible is 0");
    assert_refused(dg_precision_choose(negative, 1, 2, DG_BUDGET_BYTES, 9, chosen, NULL),
                   DG_INVALID_ARGUMENT, "-2 bytes");
    assert_refused(dg_precision_choose(nan, 1, 2, DG_BUDGET_BYTES, 9, chosen, NULL),
                   DG_INVALID_ARGUMENT, "nan");
    assert_refused(dg_precision_choose(none, 1, 2, DG_BUDGET_BYTES, 9, chosen, NULL),
                   DG_INVALID_ARGUMENT, "layer 0");
    assert_int_equal(chosen[0], 7);
    assert_ok(dg_precision_choose(NULL, 0, 2, DG_BUDGET_BYTES, 0, NULL, NULL));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_against_every_choice),
        cmocka_unit_test(test_refusals),
    };
    return test_run(argc, argv, tests);
}
