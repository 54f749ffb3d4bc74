/* SPDX-License-Identifier: MIT */
/* deepgemm info: versions, the processor, and each kernel with the reason when it cannot run. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

static const char *const instruction_sets[] = {"generic", "avx2", "avx512", "avx512_bf16"};
enum { set_count = sizeof instruction_sets / sizeof *instruction_sets };

/*
 * The data caches of the first core in the kernel's own words ("48K"), by level; "" where it does
 * not say. glibc's sysconf answers for the whole socket of a virtual machine's host instead.
 */
enum { cache_levels = 3, cache_text = 16 };

static void read_line(char *text, int index, const char *file)
{
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, file);
    text[0] = '\0';
    FILE *stream = fopen(path, "r");
    if (stream == NULL)
        return;
    if (fgets(text, cache_text, stream) != NULL)
        text[strcspn(text, "\n")] = '\0';
    fclose(stream);
}

static void find_caches(char sizes[cache_levels][cache_text])
{
    memset(sizes, 0, cache_levels * sizeof *sizes);
    char level[cache_text], type[cache_text];
    for (int index = 0; read_line(level, index, "level"), level[0] != '\0'; index++) {
        read_line(type, index, "type");
        if (strcmp(type, "Instruction") != 0 && level[0] >= '1' && level[0] < '1' + cache_levels)
            read_line(sizes[level[0] - '1'], index, "size");
    }
}

/* A set is found when a context that may go so far uses it, whatever the environment caps. */
static bool has_instruction_set(const char *isa)
{
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.isa = isa;
    dg_context *context;
    if (dg_create(&context, DG_CPU, &options) != DG_OK)
        return false;
    dg_device_info device;
    bool found =
        dg_get_device_info(context, &device) == DG_OK && strcmp(device.architecture, isa) == 0;
    dg_destroy(context);
    return found;
}

static void print_json(const dg_context *context, const dg_device_info *device)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "version", dg_version());
    cJSON *cpu = cJSON_AddObjectToObject(root, "cpu");
    cJSON_AddStringToObject(cpu, "name", device->name);
    cJSON_AddStringToObject(cpu, "isa", device->architecture);
    cJSON *found = cJSON_AddArrayToObject(cpu, "isa_found");
    for (int i = 0; i < set_count; i++)
        if (has_instruction_set(instruction_sets[i]))
            cJSON_AddItemToArray(found, cJSON_CreateString(instruction_sets[i]));
    cJSON_AddNumberToObject(cpu, "threads", device->units);
    char sizes[cache_levels][cache_text];
    find_caches(sizes);
    cJSON *caches = cJSON_AddArrayToObject(cpu, "caches");
    for (int i = 0; i < cache_levels; i++)
        cJSON_AddItemToArray(caches, cJSON_CreateString(sizes[i]));
    cJSON *kernels = cJSON_AddArrayToObject(root, "kernels");
    dg_kernel_info kernel;
    for (int32_t i = 0; dg_kernel_at(i, &kernel) == DG_OK; i++) {
        cJSON *row = cJSON_CreateObject();
        bool usable = dg_kernel_usable(context, kernel.name) == DG_OK;
        cJSON_AddStringToObject(row, "name", kernel.name);
        cJSON_AddStringToObject(row, "backend", kernel.backend);
        cJSON_AddStringToObject(row, "architecture", kernel.architecture);
        cJSON_AddBoolToObject(row, "usable", usable);
        if (!usable)
            cJSON_AddStringToObject(row, "reason", dg_last_error());
        cJSON_AddItemToArray(kernels, row);
    }
    cli_json_print(root);
}

static void print_text(const dg_context *context, const dg_device_info *device)
{
    printf("deepgemm      %s\n", dg_version());
    printf("processor     %s\n", device->name);
    printf("threads       %d\n", device->units);
    printf("instructions  %s in use; found:", device->architecture);
    for (int i = 0; i < set_count; i++)
        if (has_instruction_set(instruction_sets[i]))
            printf(" %s", instruction_sets[i]);
    char sizes[cache_levels][cache_text];
    find_caches(sizes);
    printf("\ncaches        %s, %s, %s\n\n", sizes[0], sizes[1], sizes[2]);

    cli_table *table = cli_table_new("kernel", "backend", "needs", "usable", NULL);
    dg_kernel_info kernel;
    for (int32_t i = 0; dg_kernel_at(i, &kernel) == DG_OK; i++) {
        bool usable = dg_kernel_usable(context, kernel.name) == DG_OK;
        cli_table_cell(table, "%s", kernel.name);
        cli_table_cell(table, "%s", kernel.backend);
        cli_table_cell(table, "%s", kernel.architecture);
        cli_table_cell(table, "%s", usable ? "yes" : dg_last_error());
    }
    cli_table_print(table);
}

int cli_info(int argc, char **argv)
{
    bool json = false;
    const cli_option options[] = {
        {"json", NULL, CLI_FLAG, &json, "print one JSON object"},
        {0},
    };
    cli_parse(
        &(cli_usage){"info", "", 0, 0, "Shows what the library and this machine can do.", options},
        argc, argv);

    dg_context *context;
    dg_device_info device;
    cli_check(dg_create(&context, DG_CPU, NULL), "opening the processor");
    cli_check(dg_get_device_info(context, &device), "asking for the processor");
    (json ? print_json : print_text)(context, &device);
    dg_destroy(context);
    return CLI_OK;
}
