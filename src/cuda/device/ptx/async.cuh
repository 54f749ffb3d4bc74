/* SPDX-License-Identifier: MIT */
/* Copies to shared memory by a thread that does not wait for them. */
#pragma once
#include <stdint.h>

/* Four bytes. */
__device__ __forceinline__ void copy_word_in(uint32_t target, const void *source)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(source) : "memory");
}

/* Arrives on the barrier, which counts this thread, once its copies so far have come. */
__device__ __forceinline__ void arrive_when_copied(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
