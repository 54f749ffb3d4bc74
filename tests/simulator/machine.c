/* SPDX-License-Identifier: MIT */
/* Threads, and what they meet at: see machine.h. */
#include "inside.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { STACK_BYTES = 128 << 10, PAGE = 4096, POISON = 0xFF /* NaN in FP8 and in FP32 */ };

sim_place *sim_here;
sim_cluster sim_now;

void sim_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fprintf(stderr, "simulated GPU: %s", sim_now.launch != NULL ? sim_now.launch->name : "driver");
    if (sim_here != NULL)
        fprintf(stderr, ", CTA %u, thread %u", sim_here->block.x, sim_here->thread.x);
    fprintf(stderr, ": ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    abort();
}

/* ---- chance ---------------------------------------------------------------------------- */

static uint64_t random_state;
static uint32_t eagerness; /* of 16 things that may happen now, how many do */
static uint32_t slow_warp; /* of the cluster, which seldom gets its turn; UINT32_MAX: none */

static uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

uint32_t sim_random(uint32_t limit)
{
    return (uint32_t)((uint64_t)random_bits() * limit >> 32);
}

bool sim_now_or_later(void)
{
    return sim_random(16) < eagerness;
}

/* Everything at once, nothing before it must, and in between; with one warp behind, or none. */
static void draw_pace(uint32_t warps)
{
    static const uint32_t choices[4] = {16, 0, 8, 1};
    if (random_state == 0) {
        const char *seed = getenv("DEEPGEMM_SEED");
        random_state = 0x9E3779B97F4A7C15u + (seed != NULL ? strtoull(seed, NULL, 10) : 0);
    }
    eagerness = choices[sim_random(4)];
    slow_warp = sim_random(2) == 0 ? UINT32_MAX : sim_random(warps);
}

/* ---- coroutines ------------------------------------------------------------------------ */

/* Saves the registers that a function must keep and the stack pointer to *from; goes on at `to`. */
void sim_switch(void **from, void *to);
__asm__(".text\n"
        ".hidden sim_switch\n"
        ".type sim_switch, @function\n"
        "sim_switch:\n"
        "    push %rbp\n"
        "    push %rbx\n"
        "    push %r12\n"
        "    push %r13\n"
        "    push %r14\n"
        "    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n"
        "    pop %r14\n"
        "    pop %r13\n"
        "    pop %r12\n"
        "    pop %rbx\n"
        "    pop %rbp\n"
        "    ret\n"
        ".size sim_switch, . - sim_switch\n");

static void *scheduler;
static sim_thread *threads; /* of the cluster; stacks are kept from launch to launch */
static uint32_t thread_room;

static void run_thread(void)
{
    sim_now.launch->kernel(sim_now.launch->parameters);
    sim_thread *self = sim_self();
    if (self->product_count > 0)
        sim_fail("ends with matrix products under way");
    if (self->box_count > 0)
        sim_fail("ends with boxes under way to global memory");
    self->done = true;
    for (;;)
        sim_switch(&self->stack_pointer, scheduler);
}

static void *map_pages(size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED)
        sim_fail("no memory");
    return pages;
}

static void make_threads(uint32_t count)
{
    if (count <= thread_room)
        return;
    threads = realloc(threads, count * sizeof *threads);
    if (threads == NULL)
        sim_fail("no memory");
    for (; thread_room < count; thread_room++) {
        threads[thread_room].stack = map_pages(STACK_BYTES);
        mprotect(threads[thread_room].stack, PAGE, PROT_NONE);
    }
}

static void start_thread(sim_thread *t, sim_cta *cta, uint32_t index, uint32_t block)
{
    void *stack = t->stack;
    /* Where sim_switch() finds six registers, then where to go; there the stack is as after a call.
     */
    uintptr_t *top = (uintptr_t *)((char *)stack + STACK_BYTES) - 1;
    *--top = (uintptr_t)run_thread;
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    t->place =
        (sim_place){{index, 0, 0}, {block, 0, 0}, sim_now.launch->block, sim_now.launch->grid};
    t->cta = cta;
    t->stack_pointer = top;
    t->waits_for = NULL;
    t->done = false;
    t->product_count = t->group = t->box_first = t->box_count = 0;
}

void sim_dawdle(void)
{
    sim_thread *self = sim_self();
    for (int i = 0; i < 8 && !sim_now_or_later(); i++)
        sim_switch(&self->stack_pointer, scheduler);
}

void sim_wait(const uint32_t *counter, uint32_t value, const char *what)
{
    sim_thread *self = sim_self();
    if (*counter != value)
        return;
    self->waits_for = counter;
    self->waits_value = value;
    self->waits_at = what;
    sim_switch(&self->stack_pointer, scheduler);
    self->waits_for = NULL;
}

/* ---- the scheduler --------------------------------------------------------------------- */

static bool can_run(const sim_thread *t)
{
    return !t->done && (t->waits_for == NULL || *t->waits_for != t->waits_value);
}

static void resume(sim_thread *t)
{
    sim_here = &t->place;
    sim_switch(&scheduler, t->stack_pointer);
    sim_here = NULL;
    sim_now.alive -= t->done;
    t->cta->alive -= t->done;
}

static bool run_warps(uint32_t warps)
{
    bool ran = false;
    const uint32_t first = sim_random(warps);
    for (uint32_t w = 0; w < warps; w++) {
        const uint32_t warp = (first + w) % warps;
        const bool skip = warp == slow_warp && sim_random(64) != 0;
        for (uint32_t i = warp * SIM_WARP; i < (warp + 1) * SIM_WARP; i++)
            if (can_run(&threads[i])) {
                if (!skip)
                    resume(&threads[i]);
                ran = true;
            }
    }
    return ran;
}

static void finish_some_copies(bool one)
{
    for (uint32_t i = sim_copies(); i-- > 0;)
        if (i >= sim_copies()) /* an arrival took others with it */
            continue;
        else if (sim_now_or_later())
            sim_copy_finish(i);
        else if (one && i == 0)
            sim_copy_finish(sim_random(sim_copies()));
}

static void report_deadlock(uint32_t count)
{
    fprintf(stderr, "simulated GPU: %s: no thread can go on\n", sim_now.launch->name);
    const char *last = NULL;
    for (uint32_t i = 0; i < count; i++) {
        const sim_thread *t = &threads[i];
        if (t->done || (last == t->waits_at && i % SIM_WARP != 0))
            continue;
        last = t->waits_at;
        fprintf(stderr, "  CTA %u, thread %u waits at %s\n", t->place.block.x, t->place.thread.x,
                t->waits_at);
    }
    abort();
}

static void run_cluster(const sim_launch *launch, uint32_t first_block)
{
    const uint32_t count = sim_now.cta_count * sim_now.thread_count;
    sim_now.meeting = (sim_meeting){0};
    sim_now.alive = count;
    for (uint32_t i = 0; i < sim_now.cta_count; i++) {
        sim_cta *cta = &sim_now.ctas[i];
        uint8_t *shared = cta->shared;
        sim_barrier *barriers = cta->barriers;
        memset(cta, 0, sizeof *cta);
        cta->rank = i;
        cta->alive = sim_now.thread_count;
        cta->shared = shared;
        cta->barriers = barriers;
        memset(shared, POISON, launch->shared_bytes);
        memset(barriers, 0, (launch->shared_bytes / 8 + 1) * sizeof *barriers);
    }
    for (uint32_t i = 0; i < count; i++)
        start_thread(&threads[i], &sim_now.ctas[i / sim_now.thread_count], i % sim_now.thread_count,
                     first_block + i / sim_now.thread_count);
    while (sim_now.alive > 0) {
        const bool ran = run_warps(count / SIM_WARP);
        if (!ran && sim_copies() == 0)
            report_deadlock(count);
        finish_some_copies(!ran);
    }
    if (sim_copies() > 0)
        sim_fail("ends with copies under way to its shared memory");
}

static void make_shared(sim_cta *cta)
{
    if (cta->shared != NULL)
        return;
    /* The page behind it cannot be touched. */
    const size_t bytes = (DGI_SHARED_LIMIT + PAGE - 1) / PAGE * PAGE;
    cta->shared = map_pages(bytes + PAGE);
    mprotect(cta->shared + bytes, PAGE, PROT_NONE);
    cta->barriers = map_pages((DGI_SHARED_LIMIT / 8 + 1) * sizeof *cta->barriers);
}

void sim_run(const sim_launch *launch)
{
    const uint32_t threads_of_cta = launch->block.x * launch->block.y * launch->block.z;
    if (launch->block.y != 1 || launch->block.z != 1 || launch->grid.y != 1 || launch->grid.z != 1)
        sim_fail("%s: only launches in one dimension are simulated", launch->name);
    if (threads_of_cta % SIM_WARP != 0 || threads_of_cta > SIM_MOST_THREADS)
        sim_fail("%s: %u threads are not whole warps, or too many", launch->name, threads_of_cta);
    sim_now.launch = launch;
    sim_now.cta_count = launch->cluster;
    sim_now.thread_count = threads_of_cta;
    draw_pace(launch->cluster * threads_of_cta / SIM_WARP);
    make_threads(launch->cluster * threads_of_cta);
    for (uint32_t i = 0; i < launch->cluster; i++)
        make_shared(&sim_now.ctas[i]);
    const uint32_t clusters = launch->grid.x / launch->cluster, first = sim_random(clusters);
    for (uint32_t i = 0; i < clusters; i++)
        run_cluster(launch, (first + i) % clusters * launch->cluster);
    sim_now.launch = NULL;
}

/* ---- meetings -------------------------------------------------------------------------- */

/* The last of the threads to come lets all go on. Returns what to wait for a change of. */
static uint32_t arrive(sim_meeting *meeting, uint32_t threads_expected)
{
    const uint32_t generation = meeting->generation;
    if (++meeting->arrived == threads_expected) {
        meeting->arrived = 0;
        meeting->generation++;
    }
    return generation;
}

static void meet(sim_meeting *meeting, uint32_t threads_expected, const char *what)
{
    const uint32_t generation = arrive(meeting, threads_expected);
    sim_wait(&meeting->generation, generation, what);
}

static sim_warp *own_warp(void)
{
    return &sim_self()->cta->warps[sim_here->thread.x / SIM_WARP];
}

void sim_sync_warp(void)
{
    meet(&own_warp()->meeting, SIM_WARP, "a barrier of its warp");
}

const uint64_t *sim_exchange(uint64_t value)
{
    sim_warp *warp = own_warp();
    uint64_t *values = warp->values[warp->meeting.generation % 2];
    values[sim_here->thread.x % SIM_WARP] = value;
    meet(&warp->meeting, SIM_WARP, "an exchange of its warp");
    return values;
}

void sim_sync_block(void)
{
    meet(&sim_self()->cta->block, sim_now.thread_count, "__syncthreads");
}

bool sim_sync_block_or(bool value)
{
    sim_cta *cta = sim_self()->cta;
    bool *any = &cta->any[cta->block.generation % 2];
    if (cta->block.arrived == 0)
        *any = false;
    *any |= value;
    meet(&cta->block, sim_now.thread_count, "__syncthreads_or");
    return *any;
}

void sim_named_barrier(uint32_t id, uint32_t threads_expected)
{
    if (id == 0 || id > 15 || threads_expected % SIM_WARP != 0)
        sim_fail("named barrier %u of %u threads", id, threads_expected);
    meet(&sim_self()->cta->named[id], threads_expected, "a named barrier");
}

void sim_cluster_arrive(void)
{
    sim_self()->cluster_generation =
        arrive(&sim_now.meeting, sim_now.cta_count * sim_now.thread_count);
}

void sim_cluster_wait(void)
{
    sim_wait(&sim_now.meeting.generation, sim_self()->cluster_generation, "the cluster's barrier");
}

uint32_t sim_cluster_rank(void)
{
    return sim_self()->cta->rank;
}

/* ---- shared memory --------------------------------------------------------------------- */

uint8_t *sim_dynamic_shared(void)
{
    return sim_self()->cta->shared;
}

uint32_t sim_shared_address(const void *pointer)
{
    const uintptr_t offset = (uintptr_t)pointer - (uintptr_t)sim_self()->cta->shared;
    if (offset > sim_now.launch->shared_bytes)
        sim_fail("%p is not in dynamic shared memory", pointer);
    return SIM_SHARED_BASE + (uint32_t)offset;
}

uint32_t sim_remote_address(uint32_t address, uint32_t rank)
{
    if (rank >= sim_now.cta_count)
        sim_fail("rank %u in a cluster of %u", rank, sim_now.cta_count);
    return address | (rank + 1) << SIM_RANK_SHIFT;
}

void sim_check_alive(const sim_cta *cta)
{
    if (cta->alive == 0)
        sim_fail("uses shared memory of CTA %u of its cluster, which has ended", cta->rank);
}

sim_cta *sim_cta_of(uint32_t address, uint32_t *offset)
{
    const uint32_t rank = address >> SIM_RANK_SHIFT;
    sim_cta *cta = rank == 0 ? sim_self()->cta : &sim_now.ctas[rank - 1];
    *offset = (address & ((1u << SIM_RANK_SHIFT) - 1)) - SIM_SHARED_BASE;
    sim_check_alive(cta);
    return cta;
}

uint8_t *sim_memory_of(sim_cta *cta, uint32_t offset, uint32_t bytes)
{
    if ((uint64_t)offset + bytes > sim_now.launch->shared_bytes)
        sim_fail("%u bytes at offset %u, of %u bytes of shared memory", bytes, offset,
                 sim_now.launch->shared_bytes);
    return cta->shared + offset;
}

uint8_t *sim_shared_memory(uint32_t address, uint32_t bytes)
{
    uint32_t offset;
    sim_cta *cta = sim_cta_of(address, &offset);
    return sim_memory_of(cta, offset, bytes);
}

/* ---- barriers in shared memory --------------------------------------------------------- */

static sim_barrier *find_barrier(sim_cta *cta, uint32_t offset)
{
    sim_memory_of(cta, offset, 8);
    if (offset % 8 != 0 || cta->barriers[offset / 8].arrivals == 0)
        sim_fail("there is no barrier at offset %u of CTA %u's shared memory", offset, cta->rank);
    return &cta->barriers[offset / 8];
}

static void complete_phase(sim_barrier *barrier)
{
    if (barrier->pending > 0 || barrier->bytes != 0)
        return;
    barrier->pending = barrier->arrivals;
    barrier->phase++;
}

void sim_barrier_init(uint32_t address, uint32_t arrivals)
{
    uint32_t offset;
    sim_cta *cta = sim_cta_of(address, &offset);
    sim_memory_of(cta, offset, 8);
    if (offset % 8 != 0 || arrivals == 0)
        sim_fail("a barrier of %u arrivals at offset %u", arrivals, offset);
    cta->barriers[offset / 8] = (sim_barrier){0, (int32_t)arrivals, (int32_t)arrivals, 0};
}

void sim_barrier_arrive(uint32_t address, uint32_t expected_bytes)
{
    uint32_t offset;
    sim_cta *cta = sim_cta_of(address, &offset);
    sim_barrier_count(cta, offset, expected_bytes);
}

void sim_barrier_count(sim_cta *cta, uint32_t offset, uint32_t expected_bytes)
{
    sim_barrier *barrier = find_barrier(cta, offset);
    if (barrier->pending == 0)
        sim_fail("an arrival too many on the barrier at offset %u", offset);
    barrier->pending--;
    barrier->bytes += (int32_t)expected_bytes;
    complete_phase(barrier);
}

void sim_barrier_complete(sim_cta *cta, uint32_t offset, uint32_t bytes)
{
    sim_barrier *barrier = find_barrier(cta, offset);
    barrier->bytes -= (int32_t)bytes;
    complete_phase(barrier);
}

static sim_barrier *own_barrier(uint32_t address)
{
    uint32_t offset;
    sim_cta *cta = sim_cta_of(address, &offset);
    if (cta != sim_self()->cta)
        sim_fail("waits for a barrier of another CTA");
    return find_barrier(cta, offset);
}

/* The phase with that parity has completed when the current one has the other. */
bool sim_barrier_test(uint32_t address, uint32_t parity)
{
    return own_barrier(address)->phase % 2 != parity;
}

void sim_barrier_wait(uint32_t address, uint32_t parity)
{
    const sim_barrier *barrier = own_barrier(address);
    if (barrier->phase % 2 == parity)
        sim_wait(&barrier->phase, barrier->phase, "a barrier in shared memory");
}
