/* SPDX-License-Identifier: MIT */
/* Contexts: which backend serves a device, and the calls that are about a device as such. */
#include "api/check.h"

#include <stdlib.h>

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

const char *dg_version(void)
{
    return TEXT(DG_VERSION_MAJOR) "." TEXT(DG_VERSION_MINOR) "." TEXT(DG_VERSION_PATCH);
}

/* The backend that serves `device`. */
static dg_status find_backend(dg_device device, const dgi_backend **backend)
{
    if (device == DG_CPU) {
        *backend = &dgi_backend_cpu;
        return DG_OK;
    }
    if (device < 0)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "device is %d: give DG_CPU (-1) or a CUDA device ordinal", device);
#ifdef DGI_WITH_CUDA
    *backend = &dgi_backend_cuda;
    return DG_OK;
#else
    return dgi_fail(DG_UNSUPPORTED_DEVICE,
                    "device is %d, a CUDA device, but this library was built without CUDA: rebuild "
                    "it where nvcc is installed, or use DG_CPU (-1)",
                    device);
#endif
}

dg_status dg_create(dg_context **context, dg_device device, const dg_context_options *options)
{
    if (context == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "context is NULL");
    dg_context_options complete = DG_CONTEXT_OPTIONS_INIT;
    if (options != NULL)
        DGI_TRY(dgi_take(&complete, sizeof complete, sizeof complete, options, "options"));
    if (complete.threads < 0)
        return dgi_fail(DG_INVALID_ARGUMENT, "options.threads is %d: it cannot be negative",
                        complete.threads);
    dg_context *made = calloc(1, sizeof *made);
    if (made == NULL)
        return dgi_fail(DG_OUT_OF_MEMORY, "no memory for a context");
    made->device = device;
    dg_status status = find_backend(device, &made->backend);
    if (status == DG_OK)
        status = made->backend->open(made, &complete);
    if (status != DG_OK) {
        free(made);
        return status;
    }
    *context = made;
    return DG_OK;
}

void dg_destroy(dg_context *context)
{
    if (context == NULL)
        return;
    context->backend->close(context);
    free(context);
}

dg_status dg_get_device_info(const dg_context *context, dg_device_info *info)
{
    DGI_TRY(dgi_check_context(context));
    if (info == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "info is NULL");
    context->backend->device_info(context, info);
    return DG_OK;
}

dg_status dg_kernel_usable(const dg_context *context, const char *name)
{
    DGI_TRY(dgi_check_context(context));
    if (name == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "name is NULL");
    return context->backend->kernel_usable(context, name);
}

dg_status dg_memory_alloc(dg_context *context, size_t bytes, void **memory)
{
    DGI_TRY(dgi_check_context(context));
    if (memory == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "memory is NULL");
    *memory = NULL;
    return bytes == 0 ? DG_OK : context->backend->memory_alloc(context, bytes, memory);
}

dg_status dg_memory_free(dg_context *context, void *memory)
{
    DGI_TRY(dgi_check_context(context));
    return memory == NULL ? DG_OK : context->backend->memory_free(context, memory);
}

dg_status dg_memory_copy(dg_context *context, void *target, const void *source, size_t bytes,
                         dg_copy_kind kind, void *stream)
{
    DGI_TRY(dgi_check_context(context));
    if ((unsigned)kind > DG_DEVICE_TO_DEVICE)
        return dgi_fail(DG_INVALID_ARGUMENT, "kind is %d, not a dg_copy_kind", kind);
    if (bytes == 0)
        return DG_OK;
    if (target == NULL || source == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL, but bytes is %zu",
                        target == NULL ? "target" : "source", bytes);
    return context->backend->memory_copy(context, target, source, bytes, kind, stream);
}

dg_status dg_synchronize(dg_context *context, void *stream)
{
    DGI_TRY(dgi_check_context(context));
    return context->backend->synchronize(context, stream);
}
