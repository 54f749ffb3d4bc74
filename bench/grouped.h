/* SPDX-License-Identifier: MIT */
/*
 * The benchmark of grouped products: one call of many products beside one call for each of them.
 * grouped_cases.c reads the cases, grouped_work.c makes a case's operands and calls, grouped.c runs
 * and grouped_report.c prints them; on a GPU gpu/grouped.c takes the time and runs the peer.
 */
#ifndef BENCH_GROUPED_H
#define BENCH_GROUPED_H

#include "bench.h"

/* ---- cases (grouped_cases.c) ----------------------------------------------------------- */

typedef enum grouped_form { GROUPED_CONTIGUOUS, GROUPED_MASKED, GROUPED_TABLE } grouped_form;

typedef struct grouped_product {
    int64_t m, n, k;
} grouped_product;

typedef struct grouped_case {
    char *line; /* that it came from */
    const bench_recipe *recipe;
    grouped_form form;
    grouped_product *products;
    int count;
} grouped_case;

typedef struct grouped_cases {
    grouped_case *items;
    int count;
} grouped_cases;

/*
 * Reads lines "recipe contiguous|masked n k sizes" and "recipe table sizes". Sizes are separated by
 * commas, each M, or M:N:K in a table, with COUNTx before it where several are alike: "90,7x128".
 * Exits when a line is wrong.
 */
grouped_cases grouped_cases_read(const char *path);
void grouped_cases_free(grouped_cases *cases);
const char *grouped_form_name(grouped_form form);

/* ---- a case's operands and calls (grouped_work.c) -------------------------------------- */

/* Enqueues the work on operand set `set`; false when it is not possible. */
typedef bool grouped_call(void *work, int set, void *stream);

typedef struct grouped_work grouped_work;

/* `serial` is for separate calls; `copies` is how often operands of so many bytes rotate. */
grouped_work *grouped_work_new(dg_context *context, dg_context *serial, void *stream,
                               const grouped_case *item, bench_fill fill, bool packed,
                               int (*copies)(size_t bytes));
void grouped_work_free(grouped_work *work);
int grouped_work_sets(const grouped_work *work);

/*
 * Some of cuBLASLt's products have rows in multiples of so many. It computes those behind a
 * product's own too: from the next one's A, and into the next one's D, which is written later.
 */
enum { GROUPED_PEER_ROWS = 16 };
int64_t grouped_peer_rows(int64_t m);

/*
 * One of the products with its addresses in a set. Scales of single rows of A lie as the whole
 * call's do, or when `own` side by side for this product alone, as for grouped_peer_rows() rows.
 */
dg_gemm grouped_work_product(const grouped_work *work, int set, int product, bool own);

grouped_call grouped_run_together;   /* one call          */
grouped_call grouped_run_separately; /* a call for each   */
grouped_call grouped_run_update;     /* a table's sizes   */

/* Makes the call on the first set and checks each product on sampled elements; or exits. */
bool grouped_work_check(grouped_work *work, const char *who, grouped_call *call, void *state);

/* The kernel's name, and the busiest and idlest share of the work where the mean is 1. */
typedef struct grouped_schedule {
    char kernel[96];
    double busiest, idlest;
} grouped_schedule;
grouped_schedule grouped_work_schedule(const grouped_work *work);

/* ---- running them (grouped.c) ---------------------------------------------------------- */

typedef struct grouped_request {
    const char *file; /* of cases */
    bool packed, warm, sustained, no_peers, json;
    bench_fill fill;
    double seconds;
    const char *commit, *output;
    dg_context_options options;
} grouped_request;

typedef struct grouped_time {
    bench_time time;
    double launch, host, mhz; /* GPU, as in gpu_result; the first two only of one call */
} grouped_time;

/* What differs between processors and GPUs. */
typedef struct grouped_machine {
    void *state;
    dg_context *context, *serial;
    void *stream;
    const char *name, *regime,
        *peer; /* what it is; how it is timed; the peer or why there is none */
    int (*copies)(size_t bytes);
    grouped_time (*measure)(void *state, grouped_call *call, void *work, int sets);
    /* The least seconds of one product that moves so many bytes, of which some are weights. */
    double (*floor)(void *state, const bench_recipe *recipe, double flops, double bytes,
                    double weights);
    /* Checks and times the peer's calls, one for each product; NULL: there is none. */
    bench_time (*time_peer)(void *state, grouped_work *work, const grouped_case *item);
} grouped_machine;

typedef struct grouped_result {
    const grouped_case *item;
    grouped_schedule schedule;
    grouped_time together;
    bench_time separate, peer, update; /* all zero: it does not apply */
    double flops, weights, floor; /* work; bytes of B; seconds, the sum of all products' floors */
} grouped_result;

/* deepgemm bench --grouped. Returns an exit code. */
int grouped_bench(const grouped_request *request, const grouped_machine *machine);
int grouped_bench_cpu(const grouped_request *request);
int grouped_bench_gpu(const grouped_request *request, int ordinal);

/* ---- output (grouped_report.c) --------------------------------------------------------- */

void grouped_report(const grouped_request *request, const grouped_machine *machine,
                    const grouped_result *results, int count);
/* `cases` are all that were asked for. */
cJSON *grouped_report_json(const grouped_request *request, const grouped_machine *machine,
                           const grouped_result *results, int count, int cases);

#endif
