/* SPDX-License-Identifier: MIT */
/* deepgemm info agrees with the library, and obeys a cap on the instruction set. */
#include "test.h"
#include "tool.h"

#include <string.h>

static void json_agrees_with_the_library(void **state)
{
    (void)state;
    dg_context *context;
    dg_device_info device;
    assert_ok(dg_create(&context, DG_CPU, NULL));
    assert_ok(dg_get_device_info(context, &device));

    tool_result r = tool_run("", "info --json");
    cJSON *root = tool_json(&r), *cpu = cJSON_GetObjectItem(root, "cpu");
    assert_string_equal(tool_string(root, "version"), dg_version());
    assert_string_equal(tool_string(cpu, "name"), device.name);
    assert_string_equal(tool_string(cpu, "isa"), device.architecture);
    assert_int_equal(tool_number(cpu, "threads"), device.units);
    const cJSON *kernel = cJSON_GetObjectItem(root, "kernels")->child;
    dg_kernel_info row;
    for (int32_t i = 0; dg_kernel_at(i, &row) == DG_OK; i++, kernel = kernel->next) {
        assert_non_null(kernel);
        assert_string_equal(tool_string(kernel, "name"), row.name);
        assert_string_equal(tool_string(kernel, "architecture"), row.architecture);
        assert_int_equal(cJSON_IsTrue(cJSON_GetObjectItem(kernel, "grouped")), row.grouped);
        if (strcmp(row.backend, "cpu") != 0)
            continue;
        bool usable = dg_kernel_usable(context, row.name) == DG_OK;
        assert_int_equal(cJSON_IsTrue(cJSON_GetObjectItem(kernel, "usable")), usable);
    }
    assert_null(kernel);
    if (cJSON_GetArraySize(cJSON_GetObjectItem(root, "gpus")) == 0)
        assert_true(strlen(tool_string(root, "no_gpu")) > 0);
    cJSON_Delete(root);
    tool_free(&r);
    dg_destroy(context);
}

/* Under the lowest cap every wider kernel is refused with a reason; the machine stays the same. */
static void cap_on_the_instruction_set(void **state)
{
    (void)state;
    tool_result free_run = tool_run("DEEPGEMM_CPU_ISA=", "info --json");
    tool_result capped_run = tool_run("DEEPGEMM_CPU_ISA=generic", "info --json");
    cJSON *all = tool_json(&free_run), *capped = tool_json(&capped_run);
    assert_string_equal(tool_string(cJSON_GetObjectItem(capped, "cpu"), "isa"), "generic");
    char *found = cJSON_Print(cJSON_GetObjectItem(cJSON_GetObjectItem(all, "cpu"), "isa_found"));
    char *found_capped =
        cJSON_Print(cJSON_GetObjectItem(cJSON_GetObjectItem(capped, "cpu"), "isa_found"));
    assert_string_equal(found, found_capped);
    for (const cJSON *k = cJSON_GetObjectItem(capped, "kernels")->child; k != NULL; k = k->next)
        if (strcmp(tool_string(k, "architecture"), "generic") != 0) {
            assert_true(cJSON_IsFalse(cJSON_GetObjectItem(k, "usable")));
            assert_true(strlen(tool_string(k, "reason")) > 0);
        }
    cJSON_free(found);
    cJSON_free(found_capped);
    cJSON_Delete(all);
    cJSON_Delete(capped);
    tool_free(&free_run);
    tool_free(&capped_run);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_agrees_with_the_library),
        cmocka_unit_test(cap_on_the_instruction_set),
    };
    return test_run(argc, argv, tests);
}
