/* SPDX-License-Identifier: MIT */
/* deepgemm bench --grouped: each case checked, then timed beside separate calls and a peer. */
#include "grouped.h"

#include <math.h>
#include <stdlib.h>

/* Sums over the products that have rows. */
static void add_work(const grouped_machine *m, const grouped_case *c, grouped_result *r)
{
    for (int i = 0; i < c->count; i++) {
        const grouped_product *p = &c->products[i];
        if (p->m == 0)
            continue;
        const double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k;
        const double weights = (double)(p->n * p->k);
        const double bytes = weights + (double)(p->m * p->k) + 2.0 * (double)(p->m * p->n);
        r->flops += flops;
        r->weights += weights;
        r->floor += m->floor(m->state, c->recipe, flops, bytes, weights);
    }
}

static grouped_result run_case(const grouped_request *request, const grouped_machine *m,
                               const grouped_case *c)
{
    grouped_result r = {.item = c};
    grouped_work *w = grouped_work_new(m->context, m->serial, m->stream, c, request->fill,
                                       request->packed, m->copies);
    const int sets = grouped_work_sets(w);
    add_work(m, c, &r);
    grouped_work_check(w, "deepgemm", grouped_run_together, w);
    grouped_work_check(w, "deepgemm, one product at a time", grouped_run_separately, w);
    r.schedule = grouped_work_schedule(w);
    r.together = m->measure(m->state, grouped_run_together, w, sets);
    r.separate = m->measure(m->state, grouped_run_separately, w, sets).time;
    if (c->form == GROUPED_TABLE)
        r.update = m->measure(m->state, grouped_run_update, w, sets).time;
    if (m->time_peer != NULL)
        r.peer = m->time_peer(m->state, w, c);
    grouped_work_free(w);
    return r;
}

int grouped_bench(const grouped_request *request, const grouped_machine *machine)
{
    grouped_cases cases = grouped_cases_read(request->file);
    grouped_result *results = cli_alloc((size_t)cases.count * sizeof *results);
    cli_progress progress = cli_progress_start("bench", cases.count);
    for (int i = 0; i <= cases.count; i++) {
        if (request->output != NULL) /* the first time before the work: it may fail */
            cli_json_save(request->output,
                          grouped_report_json(request, machine, results, i, cases.count));
        if (i == cases.count)
            break;
        results[i] = run_case(request, machine, &cases.items[i]);
        cli_progress_update(&progress, i + 1);
    }
    cli_progress_end(&progress);
    if (request->json)
        cli_json_print(grouped_report_json(request, machine, results, cases.count, cases.count));
    else
        grouped_report(request, machine, results, cases.count);
    free(results);
    grouped_cases_free(&cases);
    return CLI_OK;
}

/* ---- on processors ------------------------------------------------------------------- */

typedef struct processor {
    double peak, bandwidth, seconds;
} processor;

typedef struct timed {
    grouped_call *call;
    void *work;
    int sets;
} timed;

static void call_next(void *state, int64_t index)
{
    const timed *t = state;
    t->call(t->work, (int)(index % t->sets), NULL);
}

static grouped_time measure(void *state, grouped_call *call, void *work, int sets)
{
    const processor *p = state;
    timed t = {call, work, sets};
    return (grouped_time){.time = bench_measure(call_next, &t, p->seconds)};
}

/* As for single products: what is not weights is in the caches. */
static double floor_of(void *state, const bench_recipe *recipe, double flops, double bytes,
                       double weights)
{
    const processor *p = state;
    (void)recipe, (void)bytes;
    return fmax(flops / p->peak, weights / p->bandwidth);
}

static int one_copy(size_t bytes)
{
    (void)bytes;
    return 1;
}

int grouped_bench_cpu(const grouped_request *request)
{
    processor p = {.seconds = request->seconds > 0 ? request->seconds : 0.5};
    grouped_machine machine = {.state = &p,
                               .regime = "one call after the other",
                               .peer = "none has such products",
                               .copies = request->warm ? one_copy : bench_copies,
                               .measure = measure,
                               .floor = floor_of};
    dg_device_info device;
    const char *what;
    cli_check(dg_create(&machine.context, DG_CPU, &request->options), "opening the processor");
    cli_check(dg_get_device_info(machine.context, &device), "asking for the processor");
    machine.serial = machine.context;
    char *name = cli_format("%s, %s, %d threads", device.name, device.architecture, device.units);
    machine.name = name;
    p.peak = bench_peak(device.architecture, device.units, &what);
    p.bandwidth = bench_read_bandwidth(device.units);
    const int code = grouped_bench(request, &machine);
    dg_destroy(machine.context);
    free(name);
    return code;
}
