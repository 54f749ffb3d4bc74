/* SPDX-License-Identifier: MIT */
/* Memory and values for the benchmark's operands. */
#include "bench.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

/* The largest pages that x86-64 and AArch64 Linux use without being asked by name. */
enum { large_page = 2 << 20 };

static size_t rounded(size_t bytes)
{
    return (bytes + large_page - 1) / large_page * large_page;
}

void *bench_pages(size_t bytes)
{
    void *memory =
        mmap(NULL, rounded(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        cli_die("no memory for %zu bytes", bytes);
    madvise(memory, rounded(bytes), MADV_HUGEPAGE); /* advice: without it the run is only slower */
    memset(memory, 0, bytes);
    return memory;
}

void bench_pages_free(void *memory, size_t bytes)
{
    munmap(memory, rounded(bytes));
}

/* One step of SplitMix64: a bijection of the counter, so parallel fills need no shared state. */
static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* The sum of four uniform 16-bit numbers, centred and brought to variance 1. */
static float near_normal(uint64_t bits)
{
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)(bits >> (16 * i) & 0xFFFF);
    return (float)((sum / 65535 - 2) * 1.7320508075688772); /* sqrt(12 / 4) */
}

void bench_fill_values(float *values, int64_t count, bench_fill fill, uint64_t seed)
{
#pragma omp parallel for
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        float value = fill == BENCH_RANDOM ? near_normal(mix(seed + (uint64_t)i))
                                           : (float)(fill == BENCH_ONES);
        memcpy(&bits, &value, sizeof bits);
        bits &= 0xFFFF0000u; /* BF16 */
        memcpy(&values[i], &bits, sizeof bits);
    }
}

int bench_copies(size_t bytes)
{
    const size_t rotation_bytes = (size_t)256
                                  << 20; /* several times any cache of one socket's share */
    return (int)(rotation_bytes / bytes) + 1;
}
