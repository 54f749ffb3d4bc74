/* SPDX-License-Identifier: MIT */
/* The kernel table's public face. */
#include "core/kernels.h"

#include <string.h>

#define DGI_KERNEL(backend, architecture, name, tile_m, tile_n, tile_k)                            \
    {name, #backend, #architecture, tile_m, tile_n, tile_k, false},
#define DGI_HOPPER(name, tile_m, tile_n, grouped)                                                  \
    {#name, "cuda", "sm_90a", tile_m, tile_n, 128, grouped},
static const dg_kernel_info kernels[] = {
#include "core/kernels.def"
#ifdef DGI_WITH_CUDA
#define DGI_SM90(name, a, b, tile_m, tile_n, ...) DGI_HOPPER(name, tile_m, tile_n, false)
#include "core/kernels_sm90.def"
#undef DGI_SM90
#define DGI_SM90_DECODE(name, a, b, tokens, ...) DGI_HOPPER(name, tokens, 128, false)
#include "core/kernels_sm90_decode.def"
#undef DGI_SM90_DECODE
#define DGI_SM90(name, a, b, tile_m, tile_n, ...) DGI_HOPPER(name, tile_m, tile_n, true)
#include "core/kernels_sm90_grouped.def"
#undef DGI_SM90
#define DGI_SM90_DECODE(name, a, b, tokens, ...) DGI_HOPPER(name, tokens, 128, true)
#include "core/kernels_sm90_grouped_few.def"
#undef DGI_SM90_DECODE
#endif
};
#undef DGI_HOPPER
#undef DGI_KERNEL

enum { KERNELS = sizeof kernels / sizeof kernels[0] };

dg_status dg_kernel_at(int32_t index, dg_kernel_info *info)
{
    if (info == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "info is NULL");
    if (index < 0 || index >= KERNELS)
        return dgi_fail(DG_NOT_FOUND, "there is no kernel %d: the table has %d rows", index,
                        KERNELS);
    *info = kernels[index];
    return DG_OK;
}

const dg_kernel_info *dgi_kernel_find(const char *name)
{
    for (int32_t i = 0; i < KERNELS; i++)
        if (strcmp(kernels[i].name, name) == 0)
            return &kernels[i];
    return NULL;
}
