/* SPDX-License-Identifier: MIT */
/* Repeated timing of one call: a warm-up, then repeats of equally many calls, sorted. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bench_time bench_measure(void (*call)(void *state, int64_t index), void *state, double seconds)
{
    enum { most_repeats = 15, least_repeats = 3 };
    int64_t index = 0;
    double start = cli_now(), elapsed;
    do {
        call(state, index++);
        elapsed = cli_now() - start;
    } while (elapsed < seconds / 4);

    double each = elapsed / (double)index;
    int repeats = (int)fmin(most_repeats, fmax(least_repeats, seconds / each));
    int64_t calls = (int64_t)fmax(1, seconds / repeats / each);
    double times[most_repeats];
    for (int r = 0; r < repeats; r++) {
        start = cli_now();
        for (int64_t c = 0; c < calls; c++)
            call(state, index++);
        times[r] = (cli_now() - start) / (double)calls;
    }
    qsort(times, (size_t)repeats, sizeof *times, compare);
    return (bench_time){times[repeats / 2],
                        times[0],
                        times[repeats / 10],
                        times[repeats - 1 - repeats / 10],
                        repeats,
                        calls};
}
