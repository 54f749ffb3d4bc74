/* SPDX-License-Identifier: MIT */
/* Runs of the tool, and what they printed: see tool.h. */
#include "tool.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* All of a stream as a string. */
static char *read_all(FILE *stream)
{
    char *text = NULL;
    size_t length = 0, count;
    char chunk[4096];
    do {
        count = fread(chunk, 1, sizeof chunk, stream);
        text = realloc(text, length + count + 1);
        assert_non_null(text);
        memcpy(text + length, chunk, count);
        length += count;
    } while (count > 0);
    text[length] = '\0';
    return text;
}

tool_result tool_run(const char *environment, const char *format, ...)
{
    const char *tool = getenv("DEEPGEMM_TOOL");
    if (tool == NULL || *tool == '\0')
        fail_msg("DEEPGEMM_TOOL must hold the tool's path; ctest sets it");
    char *arguments, *command, errors[] = "/tmp/deepgemm-test-XXXXXX";
    va_list list;
    va_start(list, format);
    assert_true(vasprintf(&arguments, format, list) >= 0);
    va_end(list);
    int descriptor = mkstemp(errors);
    assert_true(descriptor >= 0);
    assert_true(asprintf(&command, "%s '%s' %s 2>%s", environment, tool, arguments, errors) >= 0);

    tool_result result;
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    result.out = read_all(pipe);
    int status = pclose(pipe);
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    FILE *stream = fdopen(descriptor, "r");
    assert_non_null(stream);
    result.err = read_all(stream);
    fclose(stream);
    unlink(errors);
    free(command);
    free(arguments);
    return result;
}

void tool_free(tool_result *result)
{
    free(result->out);
    free(result->err);
}

void tool_expect(const tool_result *result, int code)
{
    if (result->code != code)
        fail_msg("exit code %d, not %d; stderr: %s", result->code, code, result->err);
}

cJSON *tool_json(const tool_result *result)
{
    tool_expect(result, 0);
    assert_string_equal(result->err, "");
    const char *end;
    cJSON *object = cJSON_ParseWithOpts(result->out, &end, false);
    if (!cJSON_IsObject(object))
        fail_msg("no JSON object: %s", result->out);
    assert_string_equal(end, "\n");
    return object;
}

double tool_number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!cJSON_IsNumber(item))
        fail_msg("no number '%s'", name);
    return item->valuedouble;
}

const char *tool_string(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!cJSON_IsString(item))
        fail_msg("no string '%s'", name);
    return item->valuestring;
}

void tool_golden(const char *text, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", TEST_GOLDEN, name);
    const char *mode = getenv("DEEPGEMM_GOLDEN");
    bool write = mode != NULL && strcmp(mode, "write") == 0;
    FILE *file = fopen(path, write ? "w" : "r");
    if (file == NULL)
        fail_msg("%s does not open", path);
    if (write) {
        fputs(text, file);
    } else {
        char *golden = read_all(file);
        if (strcmp(golden, text) != 0)
            fail_msg("differs from %s:\n%s", path, text);
        free(golden);
    }
    fclose(file);
}
