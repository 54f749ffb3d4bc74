/* SPDX-License-Identifier: MIT */
/* What the files of the simulated machine share, and kernels do not see. */
#ifndef SIM_INSIDE_H
#define SIM_INSIDE_H

#include "machine.h"

#include "cuda/device/gemm_layout.h"

enum {
    SIM_SHARED_BASE = 0x400,
    SIM_RANK_SHIFT = 24,
    SIM_MOST_CTAS = 16,      /* of a cluster */
    SIM_MOST_THREADS = 1024, /* of a CTA */
    SIM_MOST_PRODUCTS = 64,  /* wgmmas of a thread under way */
    SIM_MOST_BOXES = 64      /* boxes of a thread under way to global memory */
};

/* Threads wait until a counter moves on. */
typedef struct sim_meeting {
    uint32_t generation, arrived;
} sim_meeting;

typedef struct sim_barrier {
    uint32_t phase; /* completed phases */
    int32_t arrivals, pending, bytes;
} sim_barrier;

typedef struct sim_warp {
    sim_meeting meeting;
    uint64_t values[2][SIM_WARP]; /* of exchanges, in turn */
} sim_warp;

typedef struct sim_cta {
    uint32_t rank, alive; /* alive: threads */
    uint8_t *shared;
    sim_barrier *barriers; /* one for each 8 bytes of shared memory; arrivals 0: none */
    sim_meeting block, named[16];
    bool any[2]; /* of sim_sync_block_or(), in turn */
    sim_warp warps[SIM_MOST_THREADS / SIM_WARP];
} sim_cta;

typedef struct sim_product {
    float *d;
    uint64_t a, b;
    uint32_t n, group;
    uint8_t a_type, b_type;
    bool accumulate;
} sim_product;

typedef struct sim_box_out {
    sim_tensor_map map;
    int32_t x, y;
    uint32_t source;
    bool nothing;
} sim_box_out;

typedef struct sim_thread {
    sim_place place; /* first: sim_here points to it */
    sim_cta *cta;
    void *stack, *stack_pointer;
    const uint32_t *waits_for; /* until it differs from `waits_value`; NULL: runs */
    uint32_t waits_value;
    const char *waits_at;
    bool done;
    uint32_t cluster_generation;
    sim_product products[SIM_MOST_PRODUCTS];
    uint32_t product_count, group; /* group: those committed so far */
    sim_box_out boxes[SIM_MOST_BOXES];
    uint32_t box_first, box_count;
} sim_thread;

/* The cluster that runs. */
typedef struct sim_cluster {
    const sim_launch *launch;
    uint32_t cta_count, thread_count; /* threads of a CTA */
    sim_cta ctas[SIM_MOST_CTAS];
    sim_meeting meeting;
    uint32_t alive; /* threads */
} sim_cluster;
extern sim_cluster sim_now;

static inline sim_thread *sim_self(void)
{
    return (sim_thread *)sim_here;
}

/* Lets others run for a while, or not. */
void sim_dawdle(void);
/* Waits until *counter is no longer `value`. */
void sim_wait(const uint32_t *counter, uint32_t value, const char *what);
/* 0 <= result < limit. */
uint32_t sim_random(uint32_t limit);
/* Whether what may happen now or later happens now: how often differs from launch to launch. */
bool sim_now_or_later(void);

/* Shared memory lasts as long as its CTA's threads. */
void sim_check_alive(const sim_cta *cta);
/* The CTA that an address is in, this thread's own unless it says otherwise. */
sim_cta *sim_cta_of(uint32_t address, uint32_t *offset);
uint8_t *sim_memory_of(sim_cta *cta, uint32_t offset, uint32_t bytes);
void sim_barrier_count(sim_cta *cta, uint32_t offset, uint32_t expected_bytes); /* an arrival */
void sim_barrier_complete(sim_cta *cta, uint32_t offset, uint32_t bytes);

/* Copies under way to shared memory. */
uint32_t sim_copies(void);
void sim_copy_finish(uint32_t index); /* one of them */

#endif
