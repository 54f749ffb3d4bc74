/* SPDX-License-Identifier: MIT */
/* Packing a panel (the layout in kernel.h) in plain C. */
#include "cpu/kernel.h"

#include <string.h>

static void pack(const uint8_t *codes, int64_t ld, int64_t rows, int64_t length, uint8_t *lines,
                 int64_t stride)
{
    for (int64_t k = 0; k < length; k += DGI_QUAD, lines += stride) {
        size_t width = length - k < DGI_QUAD ? (size_t)(length - k) : DGI_QUAD;
        for (int64_t n = 0; n < DGI_PANEL; n++) {
            uint8_t quad[DGI_QUAD] = {0}, *to = lines + 16 * (n / 4) + 2 * (n % 4);
            if (n < rows)
                memcpy(quad, codes + n * ld + k, width);
            memcpy(to, quad, 2);
            memcpy(to + 8, quad + 2, 2);
        }
    }
}
