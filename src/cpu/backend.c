/* SPDX-License-Identifier: MIT */
/* The CPU backend: its table of functions, its contexts and plain memory. */
#include "cpu/cpu.h"

#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/*
 * OpenMP keeps a thread's team for its next call, but a child of fork() has no such threads and
 * would wait for them for ever (GNU OpenMP does). So the team is let go before a fork; the next
 * call makes one again.
 */
static void release_team(void)
{
    omp_pause_resource_all(omp_pause_soft);
}

static void prepare_for_forks(void)
{
    pthread_atfork(release_team, NULL, NULL);
}

static dg_status cpu_open(dg_context *context, const dg_context_options *options)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare_for_forks);
    dgi_cpu *cpu = calloc(1, sizeof *cpu);
    if (cpu == NULL)
        return dgi_fail(DG_OUT_OF_MEMORY, "no memory for a CPU context");
    cpu->threads = options->threads > 0 ? options->threads : omp_get_max_threads();
    dg_status status = dgi_cpu_choose(cpu, options);
    if (status != DG_OK) {
        free(cpu);
        return status;
    }
    dgi_workspaces_open(&cpu->workspaces);
    context->state = cpu;
    return DG_OK;
}

static void cpu_close(dg_context *context)
{
    dgi_cpu *cpu = context->state;
    dgi_workspaces_close(&cpu->workspaces);
    free(cpu);
}

static void cpu_device_info(const dg_context *context, dg_device_info *info)
{
    const dgi_cpu *cpu = context->state;
    *info = (dg_device_info){cpu->name, dgi_isa_name(cpu->isa), cpu->threads};
}

static dg_status cpu_memory_alloc(dg_context *context, size_t bytes, void **memory)
{
    (void)context;
    *memory = bytes > SIZE_MAX - 255 ? NULL : aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*memory == NULL)
        return dgi_fail(DG_OUT_OF_MEMORY, "no memory for %zu bytes", bytes);
    return DG_OK;
}

static dg_status cpu_memory_free(dg_context *context, void *memory)
{
    (void)context;
    free(memory);
    return DG_OK;
}

static dg_status cpu_memory_copy(dg_context *context, void *target, const void *source,
                                 size_t bytes, dg_copy_kind kind, void *stream)
{
    (void)context, (void)kind, (void)stream;
    memmove(target, source, bytes);
    return DG_OK;
}

static dg_status cpu_synchronize(dg_context *context, void *stream)
{
    (void)context, (void)stream;
    return DG_OK;
}

const dgi_backend dgi_backend_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .device_info = cpu_device_info,
    .kernel_usable = dgi_cpu_kernel_usable,
    .memory_alloc = cpu_memory_alloc,
    .memory_free = cpu_memory_free,
    .memory_copy = cpu_memory_copy,
    .synchronize = cpu_synchronize,
    .gemm = dgi_cpu_gemm,
    .gemm_workspace = dgi_cpu_gemm_workspace,
    .gemm_prepare = dgi_cpu_gemm_prepare,
    .gemm_explain = dgi_cpu_gemm_explain,
    .quantize = dgi_cpu_quantize,
    .dequantize = dgi_cpu_dequantize,
    .weights_bytes = dgi_cpu_weights_bytes,
    .weights_pack = dgi_cpu_weights_pack,
    .weights_unpack = dgi_cpu_weights_unpack,
    .grouped = dgi_cpu_grouped,
    .grouped_prepare = dgi_cpu_grouped_prepare,
    .grouped_explain = dgi_cpu_grouped_explain,
    .table_open = dgi_cpu_table_open,
    .table_close = dgi_cpu_table_close,
    .table_update = dgi_cpu_table_update,
    .table_update_device = dgi_cpu_table_update_device,
    .table_run = dgi_cpu_table_run,
    .table_explain = dgi_cpu_table_explain,
};
