/* SPDX-License-Identifier: MIT */
/* The simulated machine's version of src/cuda/device/ptx/dependent.cuh: kernels run one by one. */
#pragma once

static inline void launch_dependents()
{
}
static inline void wait_for_earlier_kernels()
{
}
