/* SPDX-License-Identifier: MIT */
/* How every part of the library reports a failure: a status and the calling thread's message. */
#ifndef DGI_STATUS_H
#define DGI_STATUS_H

#include "deepgemm.h"

/* Sets the calling thread's message and returns `status`: `return dgi_fail(DG_..., "...")`. */
dg_status dgi_fail(dg_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Passes a failure on: `DGI_TRY(call());` returns from the caller when the call did not succeed. */
#define DGI_TRY(call)                                                                              \
    do {                                                                                           \
        dg_status dgi_try_status = (call);                                                         \
        if (dgi_try_status != DG_OK)                                                               \
            return dgi_try_status;                                                                 \
    } while (0)

#endif
