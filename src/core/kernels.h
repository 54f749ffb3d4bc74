/* SPDX-License-Identifier: MIT */
/* The kernel table (kernels.def) as data, for the backends that choose from it. */
#ifndef DGI_KERNELS_H
#define DGI_KERNELS_H

#include "core/status.h"

/* The row of that name, or NULL. */
const dg_kernel_info *dgi_kernel_find(const char *name);

#endif
