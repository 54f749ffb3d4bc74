/* SPDX-License-Identifier: MIT */
/* The kernel table's public face. */
#include "core/status.h"

dg_status dg_kernel_at(int32_t index, dg_kernel_info *info)
{
    (void)info;
    return dgi_fail(DG_NOT_FOUND, "there is no kernel %d", index);
}
