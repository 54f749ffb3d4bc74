/* SPDX-License-Identifier: MIT */
/* Runs the deepgemm tool, whose path is in the environment variable DEEPGEMM_TOOL. */
#ifndef TEST_TOOL_H
#define TEST_TOOL_H

#include <cJSON.h>

typedef struct tool_result {
    int code; /* the exit code; -1 when a signal ended it */
    char *out, *err;
} tool_result;

/* "info --json" and the like, as a shell would read it; before it may stand assignments: A=b. */
tool_result tool_run(const char *environment, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void tool_free(tool_result *result);
/* The test fails unless the run ended with that exit code; prints its stderr then. */
void tool_expect(const tool_result *result, int code);
/* What a run with --json printed: exactly one object, nothing on stderr, exit code 0. */
cJSON *tool_json(const tool_result *result);
/* The number at `name`; the test fails when there is none. */
double tool_number(const cJSON *object, const char *name);
const char *tool_string(const cJSON *object, const char *name);
/*
 * The text equals the file tests/cli/golden/<name>. With DEEPGEMM_GOLDEN=write in the environment
 * the file is written instead: look at what changed before it is committed.
 */
void tool_golden(const char *text, const char *name);

#endif
