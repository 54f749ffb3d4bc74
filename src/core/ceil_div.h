/* SPDX-License-Identifier: MIT */
/* How many pieces of a size cover something. */
#ifndef DGI_CEIL_DIV_H
#define DGI_CEIL_DIV_H

#include <stdint.h>

/* Both not negative, `unit` not 0. */
static inline int64_t dgi_ceil_div(int64_t value, int64_t unit)
{
    return (value + unit - 1) / unit;
}

#endif
