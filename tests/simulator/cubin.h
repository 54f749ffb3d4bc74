/* SPDX-License-Identifier: MIT */
/* What a cubin says of a kernel in it. */
#ifndef SIM_CUBIN_H
#define SIM_CUBIN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sim_cubin_kernel {
    uint32_t parameter_bytes, most_threads;
} sim_cubin_kernel;

/* False when the image is no cubin, or has no such kernel. */
bool sim_cubin_find(const void *image, const char *name, sim_cubin_kernel *kernel);

#endif
