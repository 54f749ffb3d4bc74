/* SPDX-License-Identifier: MIT */
/*
 * Which instruction sets this machine has and which row of the kernel table a context uses. Called
 * when a context is opened, by dg_kernel_usable() and by dg_gemm_explain().
 */
#include "cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* ---- instruction sets ---------------------------------------------------------------- */

static const char *const isa_names[] = {
    [DGI_ISA_GENERIC] = "generic",
    [DGI_ISA_AVX2] = "avx2",
    [DGI_ISA_AVX512] = "avx512",
    [DGI_ISA_AVX512_BF16] = "avx512_bf16",
};
/* What each needs beyond the one before it. */
static const char *const isa_needs[] = {
    [DGI_ISA_GENERIC] = "nothing",
    [DGI_ISA_AVX2] = "AVX2, FMA and F16C",
    [DGI_ISA_AVX512] = "AVX-512 F, BW, DQ and VL",
    [DGI_ISA_AVX512_BF16] = "AVX-512 BF16 and VBMI",
};
enum { ISAS = sizeof isa_names / sizeof isa_names[0] };

const char *dgi_isa_name(dgi_isa isa)
{
    return isa_names[isa];
}

#if defined(__x86_64__)
static bool has_all(uint32_t word, uint32_t bits)
{
    return (word & bits) == bits;
}

/* The registers that the operating system saves when it switches tasks (XCR0). */
static uint32_t saved_registers(void)
{
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static dgi_isa detect(void)
{
    enum { SAVED_YMM = 0x06, SAVED_ZMM = 0xE6 };
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !has_all(ecx, bit_OSXSAVE))
        return DGI_ISA_GENERIC;
    uint32_t saved = saved_registers();
    if (!has_all(saved, SAVED_YMM) || !has_all(ecx, bit_AVX | bit_FMA | bit_F16C))
        return DGI_ISA_GENERIC;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !has_all(ebx, bit_AVX2))
        return DGI_ISA_GENERIC;
    if (!has_all(saved, SAVED_ZMM) ||
        !has_all(ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL))
        return DGI_ISA_AVX2;
    if (!has_all(ecx, bit_AVX512VBMI) || !__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) ||
        !has_all(eax, bit_AVX512BF16))
        return DGI_ISA_AVX512;
    return DGI_ISA_AVX512_BF16;
}

/* The brand string of the extended CPUID leaves. */
static void processor_name(char name[64])
{
    uint32_t words[12] = {0};
    for (uint32_t i = 0; i < 3; i++)
        __get_cpuid(0x80000002 + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2],
                    &words[4 * i + 3]);
    char text[sizeof words + 1] = {0};
    memcpy(text, words, sizeof words);
    size_t blanks = strspn(text, " "), length = strlen(text);
    while (length > blanks && text[length - 1] == ' ')
        text[--length] = '\0';
    snprintf(name, 64, "%s", text[blanks] == '\0' ? "x86-64 processor" : text + blanks);
}
#else
static dgi_isa detect(void)
{
    return DGI_ISA_GENERIC;
}

static void processor_name(char name[64])
{
    snprintf(name, 64, "processor");
}
#endif

static dg_status find_isa(const char *name, const char *origin, dgi_isa *isa)
{
    for (int i = 0; i < ISAS; i++)
        if (strcmp(name, isa_names[i]) == 0) {
            *isa = (dgi_isa)i;
            return DG_OK;
        }
    return dgi_fail(DG_INVALID_ARGUMENT,
                    "%s is \"%s\": it must be generic, avx2, avx512 or avx512_bf16", origin, name);
}

/* ---- kernels ------------------------------------------------------------------------- */

typedef struct row {
    const char *name;
    dgi_isa isa;
    const dgi_cpu_kernel *kernel;
} row;

/* The CPU's rows of the table, in its order. */
#define generic_ISA     DGI_ISA_GENERIC
#define avx2_ISA        DGI_ISA_AVX2
#define avx512_ISA      DGI_ISA_AVX512
#define avx512_bf16_ISA DGI_ISA_AVX512_BF16
#define DGI_KERNEL(backend, architecture, name, tile_m, tile_n, tile_k)                            \
    {name, architecture##_ISA, &dgi_gemm_##architecture},
static const row rows[] = {
#include "core/kernels.def"
};
#undef DGI_KERNEL
enum { ROWS = sizeof rows / sizeof rows[0] };

static const row *find_row(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

/* Why `cpu` cannot run the row; "" if it can. */
static void refusal(const dgi_cpu *cpu, const row *row, char *text, size_t capacity)
{
    text[0] = '\0';
    if (row->isa <= cpu->isa)
        return;
    dgi_isa machine = detect();
    if (row->isa <= machine)
        snprintf(text, capacity, "it needs %s, and this context is capped to %s",
                 isa_needs[row->isa], isa_names[cpu->isa]);
    else
        snprintf(text, capacity, "it needs %s, and this machine has no more than %s",
                 isa_needs[row->isa], isa_names[machine]);
}

static dg_status check_usable(const dgi_cpu *cpu, const char *name)
{
    const row *row = find_row(name);
    if (row == NULL)
        return dgi_kernel_find(name) == NULL
                   ? dgi_fail(DG_NOT_FOUND, "there is no kernel named %s", name)
                   : dgi_fail(DG_UNSUPPORTED_DEVICE, "kernel %s is not for the CPU", name);
    char reason[160];
    refusal(cpu, row, reason, sizeof reason);
    return reason[0] == '\0' ? DG_OK
                             : dgi_fail(DG_UNSUPPORTED_DEVICE, "kernel %s: %s", name, reason);
}

dg_status dgi_cpu_choose(dgi_cpu *cpu, const dg_context_options *options)
{
    processor_name(cpu->name);
    dgi_isa cap = ISAS - 1;
    const char *environment = getenv("DEEPGEMM_CPU_ISA");
    if (options->isa != NULL)
        DGI_TRY(find_isa(options->isa, "options.isa", &cap));
    else if (environment != NULL && environment[0] != '\0')
        DGI_TRY(find_isa(environment, "the environment variable DEEPGEMM_CPU_ISA", &cap));
    dgi_isa machine = detect();
    cpu->isa = machine < cap ? machine : cap;

    const row *chosen = rows;
    if (options->kernel != NULL) {
        DGI_TRY(check_usable(cpu, options->kernel));
        chosen = find_row(options->kernel);
    } else {
        while (chosen->isa > cpu->isa)
            chosen++;
    }
    cpu->kernel = chosen->kernel;
    cpu->info = dgi_kernel_find(chosen->name);
    return DG_OK;
}

dg_status dgi_cpu_kernel_usable(const dg_context *context, const char *name)
{
    return check_usable(context->state, name);
}

void dgi_cpu_explain_choice(const dgi_cpu *cpu, FILE *text)
{
    for (const row *row = rows; row->kernel != cpu->kernel; row++) {
        char reason[160];
        refusal(cpu, row, reason, sizeof reason);
        fprintf(text, "refused %s: %s\n", row->name,
                reason[0] == '\0' ? "another kernel was asked for by name" : reason);
    }
    fprintf(text, "kernel %s\n", cpu->info->name);
}
