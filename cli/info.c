/* SPDX-License-Identifier: MIT */
/* deepgemm info: the version, the devices, and each kernel with the reason when it cannot run. */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
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

/* Every device here; `no_gpu` says why there is none, or no further one. */
enum { most_gpus = 16 };
typedef struct devices {
    dg_context *cpu, *gpus[most_gpus];
    int gpu_count;
    char *no_gpu;
} devices;

static devices open_devices(void)
{
    devices d = {0};
    d.cpu = cli_context(0);
    while (d.gpu_count < most_gpus && dg_create(&d.gpus[d.gpu_count], d.gpu_count, NULL) == DG_OK)
        d.gpu_count++;
    d.no_gpu = cli_format("%s", dg_last_error());
    return d;
}

static void close_devices(devices *d)
{
    for (int i = 0; i < d->gpu_count; i++)
        dg_destroy(d->gpus[i]);
    dg_destroy(d->cpu);
    free(d->no_gpu);
}

static dg_device_info facts_of(const dg_context *context)
{
    dg_device_info facts;
    cli_check(dg_get_device_info(context, &facts), "asking for the device");
    return facts;
}

/* NULL when a kernel can run on its own kind of device, the first GPU for GPUs; or why not. */
static const char *refusal(const devices *d, const dg_kernel_info *kernel)
{
    bool cpu = strcmp(kernel->backend, "cpu") == 0;
    if (!cpu && d->gpu_count == 0)
        return d->no_gpu;
    return dg_kernel_usable(cpu ? d->cpu : d->gpus[0], kernel->name) == DG_OK ? NULL
                                                                              : dg_last_error();
}

static cJSON *kernels_json(const devices *d)
{
    cJSON *kernels = cJSON_CreateArray();
    dg_kernel_info kernel;
    for (int32_t i = 0; dg_kernel_at(i, &kernel) == DG_OK; i++) {
        const char *reason = refusal(d, &kernel);
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "name", kernel.name);
        cJSON_AddStringToObject(row, "backend", kernel.backend);
        cJSON_AddStringToObject(row, "architecture", kernel.architecture);
        cJSON_AddBoolToObject(row, "grouped", kernel.grouped);
        cJSON_AddBoolToObject(row, "usable", reason == NULL);
        if (reason != NULL)
            cJSON_AddStringToObject(row, "reason", reason);
        cJSON_AddItemToArray(kernels, row);
    }
    return kernels;
}

static void print_json(const devices *d)
{
    dg_device_info facts = facts_of(d->cpu);
    cJSON *root = cli_json_new("info");
    cJSON_AddStringToObject(root, "version", dg_version());
    cJSON *cpu = cJSON_AddObjectToObject(root, "cpu");
    cJSON_AddStringToObject(cpu, "name", facts.name);
    cJSON_AddStringToObject(cpu, "isa", facts.architecture);
    cJSON *found = cJSON_AddArrayToObject(cpu, "isa_found");
    for (int i = 0; i < set_count; i++)
        if (has_instruction_set(instruction_sets[i]))
            cJSON_AddItemToArray(found, cJSON_CreateString(instruction_sets[i]));
    cJSON_AddNumberToObject(cpu, "threads", facts.units);
    char sizes[cache_levels][cache_text];
    find_caches(sizes);
    cJSON *caches = cJSON_AddArrayToObject(cpu, "caches");
    for (int i = 0; i < cache_levels; i++)
        cJSON_AddItemToArray(caches, cJSON_CreateString(sizes[i]));

    cJSON *gpus = cJSON_AddArrayToObject(root, "gpus");
    for (int i = 0; i < d->gpu_count; i++) {
        facts = facts_of(d->gpus[i]);
        cJSON *gpu = cJSON_CreateObject();
        cJSON_AddStringToObject(gpu, "name", facts.name);
        cJSON_AddStringToObject(gpu, "architecture", facts.architecture);
        cJSON_AddNumberToObject(gpu, "multiprocessors", facts.units);
        cJSON_AddItemToArray(gpus, gpu);
    }
    if (d->gpu_count == 0)
        cJSON_AddStringToObject(root, "no_gpu", d->no_gpu);
    cJSON_AddItemToObject(root, "kernels", kernels_json(d));
    cli_json_print(root);
}

static void print_text(const devices *d)
{
    dg_device_info facts = facts_of(d->cpu);
    char sizes[cache_levels][cache_text];
    find_caches(sizes);
    printf("deepgemm      %s\n", dg_version());
    printf("processor     %s, %d threads, caches %s, %s, %s\n", facts.name, facts.units, sizes[0],
           sizes[1], sizes[2]);
    printf("instructions  %s in use; found:", facts.architecture);
    for (int i = 0; i < set_count; i++)
        if (has_instruction_set(instruction_sets[i]))
            printf(" %s", instruction_sets[i]);
    putchar('\n');
    for (int i = 0; i < d->gpu_count; i++) {
        facts = facts_of(d->gpus[i]);
        printf("GPU %-10d%s, %s, %d multiprocessors\n", i, facts.name, facts.architecture,
               facts.units);
    }
    if (d->gpu_count == 0)
        printf("GPU           none: %s\n", d->no_gpu);
    putchar('\n');

    cli_table *table = cli_table_new("kernel", "backend", "needs", "usable", NULL);
    dg_kernel_info kernel;
    for (int32_t i = 0; dg_kernel_at(i, &kernel) == DG_OK; i++) {
        const char *reason = refusal(d, &kernel);
        cli_table_cell(table, "%s", kernel.name);
        cli_table_cell(table, "%s", kernel.backend);
        cli_table_cell(table, "%s", kernel.architecture);
        /* Why there is no GPU stands above. */
        cli_table_cell(table, "%s",
                       reason == NULL        ? "yes"
                       : reason == d->no_gpu ? "no GPU"
                                             : reason);
    }
    cli_table_print(table);
}

int cli_info(int argc, char **argv)
{
    bool json = false;
    const cli_option options[] = {
        CLI_JSON(&json),
        {0},
    };
    cli_parse(
        &(cli_usage){"info", "", 0, 0, "Shows what the library and this machine can do.", options},
        argc, argv);
    devices d = open_devices();
    (json ? print_json : print_text)(&d);
    close_devices(&d);
    return CLI_OK;
}
