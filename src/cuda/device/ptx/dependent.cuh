/* SPDX-License-Identifier: MIT */
/* Programmatic dependent launch: a kernel that begins before the one before it has ended. */
#pragma once
#include <stdint.h>

/* The next kernel of the stream may be launched as soon as all CTAs of this one have come here. */
__device__ __forceinline__ void launch_dependents()
{
    asm volatile("griddepcontrol.launch_dependents;");
}

/* Waits until the kernels before this one have ended and what they wrote can be read. */
__device__ __forceinline__ void wait_for_earlier_kernels()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
