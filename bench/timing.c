/* SPDX-License-Identifier: MIT */
/*
 * Repeated timing of one call: a warm-up, then repeats of equally many calls, sorted. Where the
 * system says how busy it was, a measurement that other processes disturbed is made again.
 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

double bench_seconds_of_others(void)
{
    double user, nice, system, idle, wait, irq, soft_irq, steal;
    FILE *stat = fopen("/proc/stat", "r");
    if (stat == NULL)
        return 0;
    int fields = fscanf(stat, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system, &idle,
                        &wait, &irq, &soft_irq, &steal);
    fclose(stat);
    if (fields != 8)
        return 0;
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    return (user + nice + system + irq + soft_irq + steal) / (double)sysconf(_SC_CLK_TCK) -
           (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec) -
           1e-6 * (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bench_time bench_measure_once(void (*call)(void *state, int64_t index), void *state, double seconds)
{
    enum { most_repeats = 15, least_repeats = 3 };
    const double tolerated = 0.1, clock_error = 0.04; /* of a processor; seconds, a few ticks */
    int64_t index = 0;
    double start = cli_now(), elapsed;
    do {
        call(state, index++);
        elapsed = cli_now() - start;
    } while (elapsed < seconds / 4);

    double each = elapsed / (double)index;
    int repeats = (int)fmin(most_repeats, fmax(least_repeats, seconds / each));
    int64_t calls = (int64_t)fmax(1, seconds / repeats / each);
    double times[most_repeats], others = bench_seconds_of_others(), began = cli_now();
    for (int r = 0; r < repeats; r++) {
        start = cli_now();
        for (int64_t c = 0; c < calls; c++)
            call(state, index++);
        times[r] = (cli_now() - start) / (double)calls;
    }
    double wall = cli_now() - began;
    others = fmax(0, bench_seconds_of_others() - others);
    qsort(times, (size_t)repeats, sizeof *times, compare);
    return (bench_time){
        .median = times[repeats / 2],
        .min = times[0],
        .p10 = times[repeats / 10],
        .p90 = times[repeats - 1 - repeats / 10],
        .others = others / wall,
        .disturbed = others > tolerated * wall + clock_error,
        .repeats = repeats,
        .calls = calls,
    };
}

bench_time bench_measure(void (*call)(void *state, int64_t index), void *state, double seconds)
{
    enum { attempts = 5 };
    const useconds_t pause = 500000; /* many disturbances are short */
    bench_time best = bench_measure_once(call, state, seconds);
    for (int i = 1; i < attempts && best.disturbed; i++) {
        usleep(pause);
        bench_time again = bench_measure_once(call, state, seconds);
        if (again.others < best.others)
            best = again;
    }
    return best;
}
