/* SPDX-License-Identifier: MIT */
/* What the machine can do at most: memory bandwidth and multiply-adds a second. */
#include "bench.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { line_bytes = 64, region_bytes = 128 << 20, passes = 3 };

/*
 * Reads a region as `streams` streams side by side, prefetching `ahead` bytes. One load a cache
 * line moves the whole line, so the loads themselves never limit.
 */
static uint64_t read_region(const char *region, int streams, size_t ahead)
{
    uint64_t sum = 0;
    size_t length = region_bytes / (size_t)streams;
    for (size_t at = 0; at < length; at += line_bytes)
        for (int s = 0; s < streams; s++) {
            const char *line = region + (size_t)s * length + at;
            __builtin_prefetch(line + ahead);
            sum += *(const uint64_t *)line;
        }
    return sum;
}

/* Which pattern is best depends on the processor and on the number of threads. */
static const struct pattern {
    int streams;
    size_t ahead;
} patterns[] = {{1, 4096}, {1, 8192}, {2, 0}, {2, 4096}, {4, 0}, {8, 1024}};

double bench_read_bandwidth(int threads)
{
    size_t bytes = (size_t)threads * region_bytes;
    char *memory = bench_pages(bytes);
    double best = 0;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        for (int pass = 0; pass < passes; pass++) {
            uint64_t sum = 0;
            double start = cli_now();
#pragma omp parallel num_threads(threads) reduction(+ : sum)
            sum += read_region(memory + (size_t)omp_get_thread_num() * region_bytes,
                               patterns[i].streams, patterns[i].ahead);
            best = fmax(best, (double)bytes / (cli_now() - start));
            __asm__ volatile("" : : "r"(sum)); /* the sum is wanted, as far as the compiler knows */
        }
    bench_pages_free(memory, bytes);
    return best;
}

double bench_copy_bandwidth(int threads)
{
    size_t bytes = (size_t)threads * region_bytes;
    char *from = bench_pages(bytes), *to = bench_pages(bytes);
    double best = 0;
    for (int pass = 0; pass < passes; pass++) {
        double start = cli_now();
#pragma omp parallel num_threads(threads)
        {
            size_t offset = (size_t)omp_get_thread_num() * region_bytes;
            memcpy(to + offset, from + offset, region_bytes);
        }
        best = fmax(best, 2 * (double)bytes / (cli_now() - start));
    }
    bench_pages_free(from, bytes);
    bench_pages_free(to, bytes);
    return best;
}

/* ---- multiply-adds ------------------------------------------------------------------- */

#if defined(__x86_64__)

/*
 * Loops over 14 independent accumulators, more than latency times throughput on any core, with
 * registers 14 and 15 as the factors. Assembly, because compilers spill the intrinsics' version.
 * The factors are ones, as BF16 and nearly as FP32: an upper bound where random data run hotter.
 */
static const uint32_t ones = 0x3F803F80;

#define ON_EACH(op)                                                                                \
    op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11) op(12) op(13)
#define PEAK_LOOP(name, start, op)                                                                 \
    static void name(int64_t loops)                                                                \
    {                                                                                              \
        __asm__ volatile(start "1:\n" ON_EACH(op) "dec %0\n jnz 1b\n vzeroupper\n"                 \
                         : "+r"(loops)                                                             \
                         : "m"(ones)                                                               \
                         : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",   \
                           "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");  \
    }
#define DPBF16_ZMM(i) "vdpbf16ps %%zmm14, %%zmm15, %%zmm" #i "\n"
#define FMA_ZMM(i)    "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #i "\n"
#define FMA_YMM(i)    "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #i "\n"

#define START_ZMM "vzeroall\n vbroadcastss %1, %%zmm14\n vmovaps %%zmm14, %%zmm15\n"
#define START_YMM "vzeroall\n vbroadcastss %1, %%ymm14\n vmovaps %%ymm14, %%ymm15\n"

PEAK_LOOP(loop_dpbf16_zmm, START_ZMM, DPBF16_ZMM)
PEAK_LOOP(loop_fma_zmm, START_ZMM, FMA_ZMM)
PEAK_LOOP(loop_fma_ymm, START_YMM, FMA_YMM)

#endif

/* Without multiply-adds of its own: as the compiler makes them, four lanes. */
static void loop_mul_add(int64_t loops)
{
    typedef float lanes __attribute__((vector_size(16)));
    const volatile float one = 1;
    lanes sum[14], factor = {one, one, one, one};
    for (int i = 0; i < 14; i++)
        sum[i] = factor * (float)i; /* equal sums would be made one */
    for (; loops > 0; loops--)
        for (int i = 0; i < 14; i++)
            sum[i] = sum[i] * factor + factor;
    __asm__ volatile("" : : "r"(sum) : "memory"); /* the sums are wanted, it must believe */
}

static const struct peak {
    const char *isa, *what;
    void (*loop)(int64_t loops);
    double flops; /* of one instruction, or multiply-add pair */
} peaks[] = {
#if defined(__x86_64__)
    {"avx512_bf16", "VDPBF16PS, 512 bits", loop_dpbf16_zmm, 64},
    {"avx512", "FP32 FMA, 512 bits", loop_fma_zmm, 32},
    {"avx2", "FP32 FMA, 256 bits", loop_fma_ymm, 16},
#endif
    {"generic", "FP32 multiply and add, 128 bits", loop_mul_add, 8},
};
enum { peak_count = sizeof peaks / sizeof *peaks };

double bench_peak(const char *isa, int threads, const char **what)
{
    const double seconds = 0.2;  /* all threads at once, each in short passes of which the best */
    const int64_t loops = 50000; /* counts, because others may disturb the rest; some 0.3 ms */
    const struct peak *peak = &peaks[peak_count - 1];
    for (int i = 0; i < peak_count; i++)
        if (strcmp(peaks[i].isa, isa) == 0)
            peak = &peaks[i];
    double total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
        double best = INFINITY;
        for (double began = cli_now(), start = began; start - began < seconds;) {
            peak->loop(loops);
            double end = cli_now();
            best = fmin(best, end - start);
            start = end;
        }
        total += 14 * (double)loops * peak->flops / best;
    }
    *what = peak->what;
    return total;
}
