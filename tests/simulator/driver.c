/* SPDX-License-Identifier: MIT */
/*
 * A libcuda.so.1 whose devices are the simulated machine: as much of the driver's interface as the
 * library, its tests and its benchmark use. Misuse that the real driver refuses, or that leads to
 * errors which cannot be cleared, is refused here or ends the program. This file has devices and
 * contexts; streams.c memory, streams and graphs; launch.c kernels and tensor maps.
 */
#include "driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEVICES = 2, MOST_CONTEXTS = 32 };

static pthread_mutex_t lock;

__attribute__((constructor)) static void make_lock(void)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &attributes);
}

void *sim_allocate(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (memory == NULL)
        sim_fail("no memory");
    return memory;
}

/* ---- contexts -------------------------------------------------------------------------- */

struct CUctx_st {
    CUdevice device;
    int users;
};
static struct CUctx_st primary[DEVICES] = {{0, 0}, {1, 0}};
static _Thread_local CUcontext stack[MOST_CONTEXTS];
static _Thread_local int stack_height;

static CUcontext current(void)
{
    return stack_height == 0 ? NULL : stack[stack_height - 1];
}

CUdevice sim_current_device(void)
{
    return current()->device;
}

CUresult sim_enter(void)
{
    if (current() == NULL || current()->users == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    return CUDA_SUCCESS;
}

CUresult sim_leave(CUresult result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuInit(unsigned flags)
{
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    static const struct {
        CUresult error;
        const char *name;
    } names[] = {
#define NAME(error) {error, #error}
        NAME(CUDA_SUCCESS),
        NAME(CUDA_ERROR_INVALID_VALUE),
        NAME(CUDA_ERROR_OUT_OF_MEMORY),
        NAME(CUDA_ERROR_INVALID_CONTEXT),
        NAME(CUDA_ERROR_INVALID_DEVICE),
        NAME(CUDA_ERROR_NOT_FOUND),
        NAME(CUDA_ERROR_INVALID_IMAGE),
        NAME(CUDA_ERROR_INVALID_CLUSTER_SIZE),
        NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        NAME(CUDA_ERROR_ILLEGAL_STATE),
#undef NAME
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].error == error) {
            *name = names[i].name;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    return cuGetErrorName(error, text);
}

CUresult cuDeviceGetCount(int *count)
{
    *count = DEVICES;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    snprintf(name, (size_t)bytes, "simulated Hopper %d", device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *name, int bytes, CUdevice device)
{
    snprintf(name, (size_t)bytes, "0000:%02x:00.0", device);
    return CUDA_SUCCESS;
}

/* Few multiprocessors, so that each takes many tiles. */
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    const char *units = getenv("DEEPGEMM_SIMULATED_UNITS");
    (void)device;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = 9;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = units != NULL ? atoi(units) : 6;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    pthread_mutex_lock(&lock);
    *context = &primary[device];
    primary[device].users++;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    pthread_mutex_lock(&lock);
    return sim_leave(primary[device].users-- > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    if (stack_height == MOST_CONTEXTS)
        sim_fail("%d contexts pushed: some are not popped", MOST_CONTEXTS);
    stack[stack_height++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    if (stack_height == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack[--stack_height];
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    if (stack_height == 0)
        stack_height = 1;
    stack[stack_height - 1] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = current();
    return CUDA_SUCCESS;
}
