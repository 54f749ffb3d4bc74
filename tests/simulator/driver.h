/* SPDX-License-Identifier: MIT */
/* What the files of the simulated driver share. */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

#include "machine.h"

#include <cuda.h>

/* All calls, and the kernels that they run, take turns. What needs a current context takes the lock
 * through SIM_ENTER(), which fails without one, and gives it back with `return sim_leave(result)`.
 */
CUresult sim_enter(void);
CUresult sim_leave(CUresult result);
#define SIM_ENTER()                                                                                \
    do {                                                                                           \
        const CUresult entered = sim_enter();                                                      \
        if (entered != CUDA_SUCCESS)                                                               \
            return entered;                                                                        \
    } while (0)

CUdevice sim_current_device(void);
/* Cleared; ends the program when there is none. */
void *sim_allocate(size_t bytes);

typedef struct sim_work {
    struct sim_work *next;
    enum { SIM_LAUNCH, SIM_COPY, SIM_SET } kind;
    sim_launch launch;
    void *target;
    const void *source;
    size_t bytes;
    int value;
} sim_work;

/* Runs it, or records it where the stream is captured. */
CUresult sim_enqueue(const sim_work *work, CUstream stream);
/* Whether this thread captures in a mode in which it may not allocate or load. */
bool sim_captures(void);

#endif
