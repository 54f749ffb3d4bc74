/* SPDX-License-Identifier: MIT */
/*
 * What every test program includes: cmocka, the device under test, and assertions about a status.
 *
 * A program's main() is `return test_run(argc, argv, tests);` with `tests` an array of CMUnitTest.
 * `--device cpu` (the default) or `--device cuda:0` says where to run.
 */
#ifndef TEST_H
#define TEST_H

#include "deepgemm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Takes the program's arguments; exits with a message when it does not understand them. */
void test_begin(int argc, char **argv);
#define test_run(argc, argv, tests)                                                                \
    (test_begin(argc, argv), cmocka_run_group_tests(tests, NULL, NULL))

/* The device under test. */
dg_device test_device(void);
/* Where everything takes a hundred times as long - under compute-sanitizer, on a simulated GPU -
 * DEEPGEMM_REDUCED=1 asks for less: `few` rounds in place of `usual`. */
int test_rounds(int usual, int few);
/* A context for it; the test fails when it cannot be had. `options` may be NULL. */
dg_context *test_context(const dg_context_options *options);

/*
 * Host memory as the device sees it: on the CPU `host` itself, on a GPU a copy that keeps the
 * address's place modulo 256, so that alignment is tested too. NULL for no bytes.
 */
void *test_to_device(dg_context *context, void *host, size_t bytes);
/* Copies back what the device wrote, waits for it, and releases the copy. */
void test_from_device(dg_context *context, void *device, void *host, size_t bytes);
/* Releases the copy. */
void test_release(dg_context *context, void *device, void *host);

#define assert_status(call, expected) test_status(call, expected, #call, __FILE__, __LINE__)
#define assert_ok(call)               assert_status(call, DG_OK)
/* The call fails with that status, and its message contains `text`. */
#define assert_refused(call, expected, text)                                                       \
    test_refused(call, expected, text, #call, __FILE__, __LINE__)

void test_status(dg_status status, dg_status expected, const char *call, const char *file,
                 int line);
void test_refused(dg_status status, dg_status expected, const char *text, const char *call,
                  const char *file, int line);

#endif
