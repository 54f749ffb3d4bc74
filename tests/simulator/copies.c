/* SPDX-License-Identifier: MIT */
/* The copy engine: tensor maps, and copies that take effect some time after they were started. */
#include "inside.h"

#include <stdlib.h>
#include <string.h>

enum { UNIT = 16, SWIZZLE_ROW = 128, MOST_BOX = 256 };
static const uint64_t magic = 0x70616D726F736E74;

/* ---- tensor maps ----------------------------------------------------------------------- */

const char *sim_tensor_map_error(const sim_tensor_map *map)
{
    const uint32_t box_bytes = map->box_cols * map->element;
    return map->magic != magic                              ? "it is not a tensor map"
           : map->address == 0 || map->address % UNIT != 0  ? "its address is not a multiple of 16"
           : map->cols == 0 || map->rows == 0               ? "it has no elements"
           : map->pitch == 0 || map->pitch % UNIT != 0      ? "its pitch is not a multiple of 16"
           : map->pitch >= (uint64_t)1 << 40                ? "its pitch is too large"
           : map->box_cols == 0 || map->box_cols > MOST_BOX ? "its box is not 1 to 256 wide"
           : map->box_rows == 0 || map->box_rows > MOST_BOX ? "its box is not 1 to 256 high"
           : box_bytes % UNIT != 0                    ? "its box's width is not a multiple of 16"
           : map->swizzled && box_bytes > SWIZZLE_ROW ? "its box is too wide for the swizzle"
                                                      : NULL;
}

void sim_tensor_map_encode(sim_tensor_map *map)
{
    map->magic = magic;
}

void sim_tensor_map_replace(void *target, const void *data, int32_t cols, int32_t rows,
                            int64_t pitch)
{
    sim_tensor_map *map = target;
    if (map->magic != magic)
        sim_fail("replaces fields of what is not a tensor map");
    map->address = (uintptr_t)data;
    map->cols = (uint32_t)cols;
    map->rows = (uint32_t)rows;
    map->pitch = (uint64_t)pitch;
}

void sim_tensor_map_check(const void *map)
{
    const char *error = sim_tensor_map_error(map);
    if ((uintptr_t)map % 64 != 0)
        sim_fail("a tensor map at %p, which is not a multiple of 64", map);
    if (error != NULL)
        sim_fail("uses a tensor map that breaks a rule: %s", error);
}

/* ---- boxes ----------------------------------------------------------------------------- */

static uint32_t box_bytes(const sim_tensor_map *map)
{
    return map->box_cols * map->box_rows * map->element;
}

/* Where a byte of a box lies in shared memory. */
static uint32_t place_of(const sim_tensor_map *map, uint32_t base, uint32_t row, uint32_t byte)
{
    const uint32_t place = base + row * map->box_cols * map->element + byte;
    return map->swizzled ? place ^ (place / SWIZZLE_ROW % 8 * UNIT) : place;
}

/* How many bytes of row y from column x on are inside of the matrix. */
static int64_t inside(const sim_tensor_map *map, int64_t x, int64_t y)
{
    const int64_t cols = (int64_t)map->cols - x;
    if (y < 0 || y >= map->rows || x < 0 || cols <= 0)
        return 0;
    return (cols < map->box_cols ? cols : map->box_cols) * map->element;
}

/* Moves a box by units of the swizzle; `target` is where it begins in shared memory. */
static void move_box(const sim_tensor_map *map, int32_t x, int32_t y, sim_cta *cta, uint32_t shared,
                     bool in)
{
    const uint32_t row_bytes = map->box_cols * map->element;
    for (uint32_t row = 0; row < map->box_rows; row++) {
        const int64_t there = inside(map, x, (int64_t)y + row);
        uint8_t *global = (uint8_t *)(uintptr_t)(map->address + (uint64_t)(y + row) * map->pitch +
                                                 (uint64_t)x * map->element);
        for (uint32_t byte = 0; byte < row_bytes; byte += UNIT) {
            uint8_t *unit = sim_memory_of(cta, place_of(map, shared, row, byte), UNIT);
            const int64_t left = there - byte, count = left < 0 ? 0 : left > UNIT ? UNIT : left;
            if (in)
                memset(unit + count, 0, (size_t)(UNIT - count));
            if (count > 0)
                memcpy(in ? unit : global + byte, in ? global + byte : unit, (size_t)count);
        }
    }
}

/* Where a box begins in shared memory: whole rows of the swizzle, or 128 bytes. */
static void check_target(const sim_tensor_map *map, uint32_t offset, int32_t x)
{
    if (offset % 128 != 0)
        sim_fail("a box at offset %u of shared memory, which is not a multiple of 128", offset);
    if (x < 0 || (uint32_t)x * map->element % UNIT != 0)
        sim_fail("a box that begins at column %d: the copy engine wants multiples of 16 bytes", x);
    if (map->swizzled && map->box_cols * map->element != SWIZZLE_ROW)
        sim_fail("a swizzled box of %u bytes a row", map->box_cols * map->element);
}

/* ---- copies to shared memory ----------------------------------------------------------- */

typedef struct copy {
    enum { BOX, BYTES, VALUES, WORD, ARRIVAL } kind;
    sim_cta *cta;
    const sim_thread *thread;        /* of words and arrivals */
    uint32_t target, barrier, bytes; /* offsets */
    sim_tensor_map map;
    int32_t x, y;
    const void *source;
    float values[4];
} copy;

static copy *copies;
static uint32_t copy_count, copy_room;

uint32_t sim_copies(void)
{
    return copy_count;
}

/* A thread's arrival comes after its words. */
static void finish_words(const sim_thread *thread)
{
    for (uint32_t i = 0; i < copy_count;)
        if (copies[i].kind == WORD && copies[i].thread == thread)
            sim_copy_finish(i);
        else
            i++;
}

static void finish(const copy *c)
{
    sim_check_alive(c->cta);
    if (c->kind == ARRIVAL) {
        finish_words(c->thread);
        sim_barrier_count(c->cta, c->barrier, 0);
        return;
    }
    if (c->kind == BOX)
        move_box(&c->map, c->x, c->y, c->cta, c->target, true);
    else
        memcpy(sim_memory_of(c->cta, c->target, c->bytes),
               c->kind == VALUES ? c->values : c->source, c->bytes);
    if (c->kind != WORD)
        sim_barrier_complete(c->cta, c->barrier, c->bytes);
}

void sim_copy_finish(uint32_t index)
{
    const copy c = copies[index];
    copies[index] = copies[--copy_count];
    finish(&c);
}

static void start(const copy *c)
{
    if (sim_now_or_later()) {
        finish(c);
        return;
    }
    if (copy_count == copy_room) {
        copy_room = copy_room * 2 + 64;
        copies = realloc(copies, copy_room * sizeof *copies);
        if (copies == NULL)
            sim_fail("no memory");
    }
    copies[copy_count++] = *c;
}

void sim_copy_box_in(uint32_t target, const void *map, int32_t x, int32_t y, uint32_t barrier,
                     uint32_t ctas)
{
    copy c = {.kind = BOX, .x = x, .y = y};
    sim_tensor_map_check(map);
    c.map = *(const sim_tensor_map *)map;
    c.bytes = box_bytes(&c.map);
    sim_cta *own = sim_cta_of(target, &c.target);
    sim_cta_of(barrier, &c.barrier);
    check_target(&c.map, c.target, x);
    c.cta = own;
    if (ctas == 0)
        start(&c);
    for (uint32_t i = 0; ctas >> i != 0; i++)
        if (ctas >> i & 1) {
            if (i >= sim_now.cta_count)
                sim_fail("a copy to CTA %u of a cluster of %u", i, sim_now.cta_count);
            c.cta = &sim_now.ctas[i];
            start(&c);
        }
}

void sim_copy_bytes_in(uint32_t target, const void *source, uint32_t bytes, uint32_t barrier)
{
    copy c = {.kind = BYTES, .source = source, .bytes = bytes};
    c.cta = sim_cta_of(target, &c.target);
    sim_cta_of(barrier, &c.barrier);
    if ((uintptr_t)source % UNIT != 0 || c.target % UNIT != 0 || bytes % UNIT != 0 || bytes == 0)
        sim_fail("a copy of %u bytes from %p to offset %u: all must be multiples of 16", bytes,
                 source, c.target);
    start(&c);
}

void sim_copy_word_in(uint32_t target, const void *source)
{
    copy c = {.kind = WORD, .thread = sim_self(), .source = source, .bytes = 4};
    c.cta = sim_cta_of(target, &c.target);
    if ((uintptr_t)source % c.bytes != 0 || c.target % c.bytes != 0)
        sim_fail("a copy of a word from %p to offset %u", source, c.target);
    start(&c);
}

void sim_arrive_when_copied(uint32_t barrier)
{
    copy c = {.kind = ARRIVAL, .thread = sim_self()};
    c.cta = sim_cta_of(barrier, &c.barrier);
    start(&c);
}

void sim_remote_store(uint32_t address, const float *values, uint32_t count, uint32_t barrier)
{
    copy c = {.kind = VALUES, .bytes = count * 4};
    c.cta = sim_cta_of(address, &c.target);
    if (sim_cta_of(barrier, &c.barrier) != c.cta)
        sim_fail("a store to CTA %u is counted in another one", c.cta->rank);
    if (c.target % c.bytes != 0)
        sim_fail("a store of %u bytes at offset %u", c.bytes, c.target);
    memcpy(c.values, values, c.bytes);
    start(&c);
}

/* ---- boxes to global memory ------------------------------------------------------------ */

static void finish_boxes(sim_thread *thread, uint32_t left)
{
    for (; thread->box_count > left; thread->box_count--) {
        const sim_box_out *box = &thread->boxes[thread->box_first];
        if (!box->nothing)
            move_box(&box->map, box->x, box->y, thread->cta, box->source, false);
        thread->box_first = (thread->box_first + 1) % SIM_MOST_BOXES;
    }
}

static sim_box_out *next_box(sim_thread *thread)
{
    if (thread->box_count == SIM_MOST_BOXES)
        finish_boxes(thread, SIM_MOST_BOXES - 1);
    return &thread->boxes[(thread->box_first + thread->box_count++) % SIM_MOST_BOXES];
}

void sim_copy_nothing_out(void)
{
    next_box(sim_self())->nothing = true;
}

void sim_copy_box_out(const void *map, int32_t x, int32_t y, uint32_t source)
{
    sim_thread *self = sim_self();
    sim_tensor_map_check(map);
    sim_box_out *box = next_box(self);
    *box = (sim_box_out){.map = *(const sim_tensor_map *)map, .x = x, .y = y};
    sim_cta_of(source, &box->source);
    check_target(&box->map, box->source, x);
    if (sim_now_or_later())
        finish_boxes(self, 0);
}

void sim_copy_out_wait(uint32_t pending)
{
    sim_dawdle();
    finish_boxes(sim_self(), pending);
}
