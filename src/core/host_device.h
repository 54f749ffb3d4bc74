/* SPDX-License-Identifier: MIT */
/* For functions that the CPU's compiler and nvcc both compile, so that tests run what the GPU runs.
 */
#ifndef DGI_HOST_DEVICE_H
#define DGI_HOST_DEVICE_H

#ifdef __CUDACC__
#define DGI_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DGI_HOST_DEVICE inline
#endif

#endif
