/* SPDX-License-Identifier: MIT */
/*
 * A libcuda.so.1 for test_drivers.c, whose only device is a GPU of another generation. By itself it
 * is an old driver, which lacks functions; fake_driver_rest.c adds them.
 */
#include <cuda.h>

#include <string.h>

CUresult cuInit(unsigned flags)
{
    (void)flags;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult result, const char **name)
{
    (void)result;
    *name = "CUDA_ERROR_OF_A_TEST";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult result, const char **text)
{
    return cuGetErrorName(result, text);
}

CUresult cuDeviceGetCount(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    (void)device;
    strncpy(name, "Test A10", (size_t)bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? 8
             : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? 6
                                                                         : 1;
    return CUDA_SUCCESS;
}
