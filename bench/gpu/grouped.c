/* SPDX-License-Identifier: MIT */
/* The benchmark of grouped products on a GPU: time by replayed graphs, cuBLASLt as the peer. */
#include "grouped.h"
#include "bench_gpu.h"

#include <stdlib.h>

typedef struct machine {
    gpu gpu;
    peer *peer;
    double seconds;
} machine;

/* A call as gpu.c wants it. */
typedef struct bound_call {
    grouped_call *call;
    void *work;
} bound_call;

static bool enqueue(void *state, int set, CUstream stream)
{
    const bound_call *b = state;
    return b->call(b->work, set, stream);
}

static grouped_time measure(void *state, grouped_call *call, void *work, int sets)
{
    machine *m = state;
    bound_call b = {call, work};
    grouped_time t = {{0}, 0, 0, 0};
    t.time = gpu_time(&m->gpu, enqueue, &b, sets, m->seconds, &t.mhz);
    if (t.time.repeats > 0 && call == grouped_run_together)
        gpu_time_launches(&m->gpu, enqueue, &b, sets, &t.launch, &t.host);
    return t;
}

static double floor_of(void *state, const bench_recipe *recipe, double flops, double bytes,
                       double weights)
{
    (void)state, (void)weights;
    return gpu_floor(recipe, flops, bytes);
}

/* ---- the peer: one call for each product --------------------------------------------- */

typedef struct peer_calls {
    peer *peer;
    peer_kind kind;
    grouped_work *work;
    const grouped_case *item;
} peer_calls;

/* What the peer prepares for a shape takes the host's time, which no replayed graph contains. */
static bool call_peer(void *state, int set, void *stream)
{
    const peer_calls *c = state;
    bool possible = true;
    for (int i = 0; i < c->item->count && possible; i++) {
        const grouped_product *p = &c->item->products[i];
        const dg_gemm g = grouped_work_product(c->work, set, i, true);
        const peer_operands operands = {g.a.data, g.b.data, g.scale_a.data, g.scale_b.data,
                                        g.d.data};
        if (p->m == 0)
            continue;
        const int64_t m = c->kind == PEER_BLOCK ? grouped_peer_rows(p->m) : p->m;
        possible = peer_begin(c->peer, c->kind, m, p->n, p->k, &operands) &&
                   peer_run(c->peer, &operands, stream);
        peer_end(c->peer);
    }
    return possible;
}

static bench_time time_peer(void *state, grouped_work *work, const grouped_case *item)
{
    machine *m = state;
    const bench_case like = {item->recipe, 1, 1, 1, DG_E4M3, DG_E4M3, DG_BF16};
    peer_calls calls = {m->peer, gpu_peer_of(&like), work, item};
    if (calls.kind == PEER_NONE || !grouped_work_check(work, "cuBLASLt", call_peer, &calls))
        return (bench_time){0};
    bound_call b = {call_peer, &calls};
    double mhz;
    return gpu_time(&m->gpu, enqueue, &b, grouped_work_sets(work), m->seconds, &mhz);
}

/* ---- the command --------------------------------------------------------------------- */

static int gpu_copies(size_t bytes)
{
    return bench_copies(bytes) + 1;
}

static int one_copy(size_t bytes)
{
    (void)bytes;
    return 1;
}

int grouped_bench_gpu(const grouped_request *request, int ordinal)
{
    machine m = {.seconds = request->seconds > 0 ? request->seconds : 0.03};
    grouped_machine g = {.state = &m,
                         .regime = request->sustained ? "sustained" : "burst",
                         .peer = "not asked for",
                         .copies = request->warm ? one_copy : gpu_copies,
                         .measure = measure,
                         .floor = floor_of};
    dg_context_options serial = request->options;
    serial.serial_launch = true;
    cli_check(dg_create(&g.context, ordinal, &request->options), "opening the GPU");
    cli_check(dg_create(&g.serial, ordinal, &serial), "opening the GPU");
    gpu_open(&m.gpu, ordinal, request->sustained);
    g.stream = m.gpu.stream;
    char *name = cli_format("%s, CUDA driver %d.%d", m.gpu.name, m.gpu.driver_version / 1000,
                            m.gpu.driver_version % 1000 / 10);
    g.name = name;
    char *about = NULL;
    if (!request->no_peers && (m.peer = peer_open(&m.gpu, &g.peer)) != NULL) {
        g.time_peer = time_peer;
        g.peer = about = cli_format("%s; 1x128 . 128x128 with M rounded up to a multiple of %d",
                                    g.peer, GROUPED_PEER_ROWS);
    }
    const int code = grouped_bench(request, &g);
    dg_destroy(g.serial);
    dg_destroy(g.context);
    free(about);
    free(name);
    return code;
}
