/* SPDX-License-Identifier: MIT */
/* A CUDA driver that computes nothing and counts what it is asked: for test_driver_calls.c. */
#ifndef COUNTING_DRIVER_H
#define COUNTING_DRIVER_H

#include "backend.h"
#include "cuda/context.h"
#include "cuda/device/decode_args.h"

/* Memory of device 0, and of device 1 up to `memory_end`; all else belongs to the host. */
static const uintptr_t ours = 0x7f0000000000, other = 0x7f8000000000, memory_end = 0x7fc000000000;

/* The primary context, one that the caller has, and the stream that scratch memory is for. */
static const CUcontext primary = (CUcontext)16, callers = (CUcontext)32;
static void *const a_stream = (void *)96;

typedef struct counting_driver {
    struct {
        int get_current, push, pop, pointers, maps, loads, launches, taken, given;
    } count;
    CUcontext current; /* of this thread, like the next      */
    CUstreamCaptureMode capture_mode;
    CUstream scratch_stream; /* for which memory was taken */
    union {                  /* what the last kernel was given     */
        dgi_gemm_product launched;
        dgi_decode_args launched_few;
    };
    bool capturing, pools_exist; /* these are for tests to set         */
    CUresult launch_result;
} counting_driver;
extern counting_driver fake;

/* cmocka's set-up and tear-down: a context on that driver, whose caller has another one current. */
int counting_open(void **state);
int counting_close(void **state);

#endif
