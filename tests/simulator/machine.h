/* SPDX-License-Identifier: MIT */
/*
 * The machine that runs the GPU kernels on the CPU: threads, barriers, the copy engine and the
 * tensor cores of one Hopper GPU, as far as the kernels use them. docs/simulator.md describes it.
 *
 * Each GPU thread is a coroutine. One runs at a time, until it waits; which one goes on, and when a
 * copy or a matrix product that was started takes effect, is drawn at random within what the
 * hardware allows, so that a missing wait shows. The same seed gives the same run.
 *
 * Included by the kernels too, as C++. An address in shared memory is an integer: 0x400 + the
 * offset, and the CTA's rank in the cluster + 1 in bits 24 and up for another CTA's.
 */
#ifndef SIM_MACHINE_H
#define SIM_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIM_API __attribute__((visibility("default")))

typedef struct sim_index {
    uint32_t x, y, z;
} sim_index;

/* What a kernel sees of the thread that runs. */
typedef struct sim_place {
    sim_index thread, block, block_size, grid;
} sim_place;
SIM_API extern sim_place *sim_here;

/* Ends the program: a kernel did what would be an error, or undefined, on the GPU. */
SIM_API __attribute__((noreturn, format(printf, 1, 2))) void sim_fail(const char *format, ...);

/* ---- launching: called by the driver --------------------------------------------------- */

enum { SIM_PARAMETER_BYTES = 4096, SIM_WARP = 32 };
typedef struct sim_parameters {
    uint8_t bytes[SIM_PARAMETER_BYTES] __attribute__((aligned(128)));
} sim_parameters;

/*
 * A kernel takes one structure by value. Such an argument lies where the stack arguments begin,
 * whatever its size, so that a kernel can be called with a larger one than it declares.
 */
typedef void sim_kernel(sim_parameters);

typedef struct sim_launch {
    const char *name;
    sim_kernel *kernel;
    sim_index grid, block;
    uint32_t cluster, shared_bytes;
    sim_parameters parameters;
} sim_launch;

/* Runs a kernel to its end. One at a time in a process. */
void sim_run(const sim_launch *launch);

/* ---- threads that meet ----------------------------------------------------------------- */

SIM_API void sim_sync_block(void);
SIM_API bool sim_sync_block_or(bool value);
SIM_API void sim_sync_warp(void);
/* All 32 lanes give a value and get everybody's. */
SIM_API const uint64_t *sim_exchange(uint64_t value);
SIM_API void sim_named_barrier(uint32_t id, uint32_t threads);
SIM_API void sim_cluster_arrive(void);
SIM_API void sim_cluster_wait(void);
SIM_API uint32_t sim_cluster_rank(void);

/* ---- shared memory and its barriers ---------------------------------------------------- */

SIM_API uint8_t *sim_dynamic_shared(void);
SIM_API uint32_t sim_shared_address(const void *pointer);
SIM_API uint32_t sim_remote_address(uint32_t address, uint32_t rank);
/* `bytes` of shared memory, which must exist. */
SIM_API uint8_t *sim_shared_memory(uint32_t address, uint32_t bytes);

SIM_API void sim_barrier_init(uint32_t barrier, uint32_t arrivals);
SIM_API void sim_barrier_arrive(uint32_t barrier, uint32_t expected_bytes);
SIM_API void sim_barrier_wait(uint32_t barrier, uint32_t parity);
SIM_API bool sim_barrier_test(uint32_t barrier, uint32_t parity);

/* ---- the copy engine ------------------------------------------------------------------- */

/* What a CUtensorMap holds here: a row-major matrix and the box that is copied at a time. */
typedef struct sim_tensor_map {
    uint64_t magic, address, pitch; /* bytes */
    uint32_t cols, rows, box_cols, box_rows;
    uint32_t element, swizzled;
} sim_tensor_map;

/* NULL, or which rule of the copy engine the map breaks. */
const char *sim_tensor_map_error(const sim_tensor_map *map);
void sim_tensor_map_encode(sim_tensor_map *map);
SIM_API void sim_tensor_map_replace(void *map, const void *data, int32_t cols, int32_t rows,
                                    int64_t pitch);
SIM_API void sim_tensor_map_check(const void *map);

/* To shared memory of the CTAs in `ctas` (0: this one), each completing on its own barrier. */
SIM_API void sim_copy_box_in(uint32_t target, const void *map, int32_t x, int32_t y,
                             uint32_t barrier, uint32_t ctas);
SIM_API void sim_copy_bytes_in(uint32_t target, const void *source, uint32_t bytes,
                               uint32_t barrier);
SIM_API void sim_copy_box_out(const void *map, int32_t x, int32_t y, uint32_t source);
SIM_API void sim_copy_nothing_out(void); /* a box that is there at once, but takes its turn */
SIM_API void sim_copy_out_wait(uint32_t pending);
/* Four bytes by this thread, and its arrival after all of those. */
SIM_API void sim_copy_word_in(uint32_t target, const void *source);
SIM_API void sim_arrive_when_copied(uint32_t barrier);
/* Up to 16 bytes to another CTA, counted on a barrier there. */
SIM_API void sim_remote_store(uint32_t address, const float *values, uint32_t count,
                              uint32_t barrier);

/* ---- tensor cores ---------------------------------------------------------------------- */

typedef enum sim_fp8 { SIM_E4M3, SIM_E5M2 } sim_fp8;

/* This thread's part of an instruction of 64 x n x 32: see ptx/wgmma.cuh. */
SIM_API void sim_wgmma(float *d, uint32_t n, uint64_t a, uint64_t b, sim_fp8 a_type, sim_fp8 b_type,
                       bool accumulate);
SIM_API void sim_wgmma_commit(void);
SIM_API void sim_wgmma_wait(uint32_t pending);

#ifdef __cplusplus
}
#endif
#endif
