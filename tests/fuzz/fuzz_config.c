/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target: any bytes as a config.json. One that passes the check is still a JSON object when
 * the quantisation has been written into it, and then no longer passes.
 */
#include "quant/layout.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const kept[] = {"lm_head", "a \"quoted\" layer"};
    const char *config = (const char *)data;
    if (dgi_config_check(config, size, false, "input") != DG_OK)
        return 0;
    for (int format = DG_CHECKPOINT_BLOCK; format <= DG_CHECKPOINT_CHANNEL; format++) {
        size_t bytes;
        char *text =
            dgi_config_quantized(config, size, (dg_checkpoint_format)format, kept, 2, &bytes);
        if (text == NULL || dgi_config_check(text, bytes, "output") != DG_INVALID_ARGUMENT ||
            strstr(dg_last_error(), "quantization_config") == NULL)
            abort();
        free(text);
    }
    return 0;
}
