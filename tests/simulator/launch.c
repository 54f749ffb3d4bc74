/* SPDX-License-Identifier: MIT */
/* The simulated driver's modules, launches and tensor maps. */
#include "cubin.h"
#include "driver.h"

#include "cuda/device/gemm_layout.h"
#include "cuda/device/small_args.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORTABLE_CLUSTER = 8 };

/* ---- kernels --------------------------------------------------------------------------- */

struct CUmod_st {
    const void *image;
};
struct CUfunc_st {
    char name[128];
    sim_cubin_kernel facts;
    sim_kernel *kernel;
    int shared_bytes, any_cluster;
};

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    SIM_ENTER();
    if (sim_captures())
        return sim_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    *module = sim_allocate(sizeof **module);
    (*module)->image = image;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuModuleUnload(CUmodule module)
{
    free(module);
    return CUDA_SUCCESS;
}

/* The object that holds a kernel has the name of the file that the kernel was compiled from, or of
 * the row of a kernel table. */
static const char *object_of(const char *kernel)
{
#define ROW(name, file)                                                                            \
    if (strcmp(kernel, #name) == 0)                                                                \
        return #file;
    DGI_SMALL_KERNELS(ROW)
#undef ROW
    return kernel;
}

static sim_kernel *load_kernel(const char *name)
{
    char path[1024];
    Dl_info own;
    if (dladdr((const void *)(uintptr_t)load_kernel, &own) == 0)
        sim_fail("cannot find its own folder");
    const char *slash = strrchr(own.dli_fname, '/');
    snprintf(path, sizeof path, "%.*s/%s.so", slash == NULL ? 1 : (int)(slash - own.dli_fname),
             slash == NULL ? "." : own.dli_fname, object_of(name));
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (object == NULL)
        sim_fail("%s", dlerror());
    sim_kernel *kernel;
    *(void **)&kernel = dlsym(object, name);
    if (kernel == NULL)
        sim_fail("%s", dlerror());
    return kernel;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    sim_cubin_kernel facts;
    SIM_ENTER();
    if (!sim_cubin_find(module->image, name, &facts))
        return sim_leave(CUDA_ERROR_NOT_FOUND);
    *function = sim_allocate(sizeof **function);
    snprintf((*function)->name, sizeof(*function)->name, "%s", name);
    (*function)->facts = facts;
    (*function)->kernel = load_kernel(name);
    (*function)->shared_bytes = 48 << 10;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    SIM_ENTER();
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value > DGI_SHARED_LIMIT)
            return sim_leave(CUDA_ERROR_INVALID_VALUE);
        function->shared_bytes = value;
    } else if (attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) {
        function->any_cluster = value;
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                          void **extra)
{
    (void)extra;
    sim_work w = {.kind = SIM_LAUNCH};
    SIM_ENTER();
    w.launch = (sim_launch){
        .name = function->name,
        .kernel = function->kernel,
        .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
        .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
        .cluster = 1,
        .shared_bytes = config->sharedMemBytes,
    };
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            w.launch.cluster = config->attrs[i].value.clusterDim.x;
    const unsigned most = function->any_cluster ? 2 * PORTABLE_CLUSTER : PORTABLE_CLUSTER;
    if (w.launch.cluster == 0 || w.launch.cluster > most ||
        config->gridDimX % w.launch.cluster != 0)
        return sim_leave(CUDA_ERROR_INVALID_CLUSTER_SIZE);
    if (config->gridDimX == 0 || config->blockDimX == 0 ||
        config->blockDimX > function->facts.most_threads ||
        (int)config->sharedMemBytes > function->shared_bytes)
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    memcpy(w.launch.parameters.bytes, parameters[0], function->facts.parameter_bytes);
    return sim_leave(sim_enqueue(&w, config->hStream));
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *address, const cuuint64_t *sizes, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    (void)promotion;
    if (rank != 2 || steps[0] != 1 || steps[1] != 1 || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ||
        interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || sizes[0] >> 32 != 0 || sizes[1] >> 32 != 0 ||
        (swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && swizzle != CU_TENSOR_MAP_SWIZZLE_128B))
        return CUDA_ERROR_INVALID_VALUE;
    sim_tensor_map encoded = {
        .address = (uintptr_t)address,
        .pitch = strides[0],
        .cols = (uint32_t)sizes[0],
        .rows = (uint32_t)sizes[1],
        .box_cols = box[0],
        .box_rows = box[1],
        .element = type == CU_TENSOR_MAP_DATA_TYPE_UINT8    ? 1
                   : type == CU_TENSOR_MAP_DATA_TYPE_UINT16 ? 2
                                                            : 4,
        .swizzled = swizzle == CU_TENSOR_MAP_SWIZZLE_128B,
    };
    sim_tensor_map_encode(&encoded);
    if (sim_tensor_map_error(&encoded) != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof *map);
    memcpy(map, &encoded, sizeof encoded);
    return CUDA_SUCCESS;
}
