/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target: any bytes as a config.json. Whatever passes the check is still a JSON object when a
 * format has been written into it, and says so; with the 16-bit format it says nothing any more.
 */
#include "quant/config.h"

#include "io/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* How many members of the object `config` have that name. */
static int count(const char *config, size_t bytes, const char *name)
{
    cJSON *object;
    if (dgi_json_parse(config, bytes, "output", &object) != DG_OK)
        abort();
    int found = 0;
    const cJSON *member;
    cJSON_ArrayForEach(member, object) found += strcmp(member->string, name) == 0;
    cJSON_Delete(object);
    return found;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const kept[] = {"lm_head", "a \"quoted\" layer"};
    const char *config = (const char *)data;
    if (dgi_config_check(config, size, true, "input") != DG_OK)
        return 0;
    /* Names that are spelt with escapes are not looked for. */
    bool plain = memchr(data, '\\', size) == NULL;
    for (int format = 0; format < DG_CHECKPOINT_FORMATS; format++) {
        dgi_config_facts facts = {(dg_checkpoint_format)format, format % 2, format % 3, kept, 2};
        size_t bytes;
        char *text = dgi_config_text(config, size, &facts, &bytes);
        if (text == NULL)
            abort();
        int found = count(text, bytes, "quantization_config");
        if (plain && found != (format != DG_CHECKPOINT_BF16))
            abort();
        free(text);
    }
    return 0;
}
