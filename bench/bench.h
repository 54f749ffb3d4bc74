/* SPDX-License-Identifier: MIT */
/*
 * What the files of the benchmark share. cli/bench.c reads the options and calls bench_gemm() or
 * bench_quantize() for each case; bench/report.c prints what they return.
 */
#ifndef BENCH_H
#define BENCH_H

#include "cli.h"

/* ---- cases (cases.c) ----------------------------------------------------------------- */

/* The scale granularity of both operands, under the name that case files use. */
typedef struct bench_recipe {
    const char *name;
    int32_t a_rows, a_cols, b_rows, b_cols;
    dg_dtype scale;
    dg_accumulation accumulation;
} bench_recipe;

/* The recipe of that name; exits when there is none, naming `where`. */
const bench_recipe *bench_recipe_named(const char *name, const char *where);
/* The scales of A or B of that size, without their address: rows side by side where each has a
 * scale, else as cuBLASLt takes blocks. */
dg_scale bench_scale_layout(const bench_recipe *recipe, bool of_a, int64_t rows, int64_t k);

typedef struct bench_case {
    const bench_recipe *recipe;
    int64_t m, n, k;
    dg_dtype a, b, d;
} bench_case;

typedef struct bench_cases {
    bench_case *items;
    int count;
} bench_cases;

/*
 * One case from a line "recipe m n k [a b d]", e.g. "block128 1 4096 4096 e4m3 e4m3 bf16"; those
 * types are the default. False for an empty line or a comment (#). Exits when the line is wrong;
 * `where` names it.
 */
bool bench_case_parse(const char *line, const char *where, bench_case *item);
void bench_cases_add(bench_cases *cases, bench_case item);
void bench_cases_read(bench_cases *cases, const char *path);

/* ---- data (data.c) ------------------------------------------------------------------- */

typedef enum bench_fill { BENCH_RANDOM, BENCH_ZEROS, BENCH_ONES } bench_fill;

/* Zeroed memory in large pages where the system has them, as all weights here; or exits. */
void *bench_pages(size_t bytes);
void bench_pages_free(void *memory, size_t bytes);
/* Values near a normal distribution, rounded to BF16 so that every type here but FP8 holds them. */
void bench_fill_values(float *values, int64_t count, bench_fill fill, uint64_t seed);
/* How many copies of something must rotate so that none is still in a cache when its turn comes. */
int bench_copies(size_t bytes);

/* ---- timing (timing.c) --------------------------------------------------------------- */

/* Seconds a call. One repeat is `calls` calls in a row. */
typedef struct bench_time {
    double median, min, p10, p90;
    double others;  /* processors that other processes kept busy meanwhile, e.g. 0.05 */
    bool disturbed; /* that was too much, each time that it was tried                  */
    int repeats;
    int64_t calls;
} bench_time;

/*
 * Times call(state, 0), call(state, 1), ... for about `seconds`, after a warm-up; again, a few
 * times at most, while other processes disturb it.
 */
bench_time bench_measure(void (*call)(void *state, int64_t index), void *state, double seconds);
/* The same, but never made again: where many measurements must not take too long together. */
bench_time bench_measure_once(void (*call)(void *state, int64_t index), void *state,
                              double seconds);

/*
 * Seconds that all processors together have worked for other processes than this one, so far; 0
 * where the system does not say. Differences over less than a tenth of a second are coarse.
 */
double bench_seconds_of_others(void);

/* ---- checking (check.c) ---------------------------------------------------------------- */

/* Sampled rows of A and of B, as doubles; D is checked where they cross. */
enum { bench_sample_count = 8 };
typedef struct bench_samples {
    int64_t rows[bench_sample_count], cols[bench_sample_count], k;
    double *a, *b; /* [bench_sample_count, k] */
} bench_samples;

bench_samples bench_samples_new(const bench_case *item);
void bench_samples_free(bench_samples *s);
/* Sampled rows given as values, or as codes with the scales of the whole matrix: their exact
 * products. `rows` says where in the matrix they lie. */
void bench_sample_values(double *out, const float *const rows[], int64_t k);
void bench_sample_codes(double *out, const void *const codes[], dg_dtype type,
                        const dg_scale *scale, const int64_t *rows, int64_t k);
/*
 * Exits unless the sampled rows d[] are right: each element within `tolerance` of the accumulated
 * magnitude and half a unit of its own type.
 */
void bench_check_result(const char *who, const bench_samples *s, const void *const d[],
                        dg_dtype type, double tolerance);

/* ---- limits of the machine (limits.c) ------------------------------------------------ */

/* Bytes a second that the threads can read together from memory: the best of several patterns. */
double bench_read_bandwidth(int threads);
/* Bytes a second, read and written, of the best copy. */
double bench_copy_bandwidth(int threads);
/* FLOP a second of the widest multiply-add that the instruction set has; its name in `*what`. */
double bench_peak(const char *isa, int threads, const char **what);

/* ---- runs (gemm.c, quantize.c) ------------------------------------------------------- */

enum { bench_peer_count = 3 }; /* bench_peers[] */

typedef struct bench_setup {
    dg_context *context;
    dg_device_info device;
    double peak; /* bench_peak() */
    const char *peak_what;
    double bandwidth; /* bench_read_bandwidth(), when the run began */
    bench_fill fill;
    bool packed, warm;
    double seconds;                             /* for each measurement */
    int cases;                                  /* of the run           */
    const char *peer_missing[bench_peer_count]; /* why a peer does not run; NULL: it does */
} bench_setup;

typedef struct bench_result {
    bench_case item;
    bench_time time;
    char kernel[96];                   /* that the library chose; "" where it says nothing */
    double flops;                      /* work                                       */
    double bytes;                      /* of weights and scales; of all data to quantise */
    double bandwidth;                  /* measured beside the case, bytes a second   */
    double floor;                      /* seconds                                    */
    bench_time peer[bench_peer_count]; /* all zero: it does not take the case      */
} bench_result;

/* Checks one product on sampled elements, then times it and its peers. Exits on a wrong result. */
bench_result bench_gemm(const bench_setup *setup, const bench_case *item);
/* Quantises M x K BF16 values with the case's A scales; the floor is a copy of as many bytes. */
bench_result bench_quantize(const bench_setup *setup, const bench_case *item);

/* ---- output (report.c, plot.c) ------------------------------------------------------- */

/* A measured number: five digits are more than it is worth. */
void bench_add_measured(cJSON *object, const char *name, double value);
/* A time's median in "us", and "min_us", "p10_us", "p90_us", "repeats", "calls". */
void bench_add_time(cJSON *row, const bench_time *time);
/* Whether a peer took any of the cases. */
bool bench_peer_ran(const bench_result *results, int count, int peer);
void bench_report_gemm(const bench_setup *setup, const bench_result *results, int count);
void bench_report_quantize(const bench_setup *setup, const bench_result *results, int count);
/* Of either; `commit` may be NULL. */
cJSON *bench_report_json(const bench_setup *setup, const bench_result *results, int count,
                         const char *commit);

typedef struct bench_series {
    const char *name;
    const double *y; /* a value <= 0 is left out */
} bench_series;

/* Writes an SVG line plot with logarithmic axes. */
void bench_plot(const char *path, const char *title, const char *x_label, const char *y_label,
                const double *x, int points, const bench_series *series, int series_count);

#endif
