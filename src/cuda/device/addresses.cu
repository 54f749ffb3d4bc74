/* SPDX-License-Identifier: MIT */
/*
 * Puts addresses that the host knows into device memory. They travel as the kernel's argument, so a
 * captured call keeps them, which a copy from the host's memory would read again at each replay.
 */
#include "small_args.h"

extern "C" __global__ void __launch_bounds__(DGI_ADDRESSES)
    addresses(const __grid_constant__ dgi_addresses_args args)
{
    if (threadIdx.x < args.count)
        args.target[threadIdx.x] = args.values[threadIdx.x];
}
