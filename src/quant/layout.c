/* SPDX-License-Identifier: MIT */
/* The FP8 checkpoint formats: see layout.h. */
#include "quant/layout.h"

#include "core/status.h"
#include "io/json.h"

#include <stdio.h>
#include <stdlib.h>

#define BLOCK 128 /* of DeepSeek-style checkpoints */

const dgi_layout *dgi_layout_of(dg_checkpoint_format format)
{
    static const dgi_layout layouts[] = {
        [DG_CHECKPOINT_BLOCK] = {"_scale_inv", BLOCK, BLOCK},
        [DG_CHECKPOINT_CHANNEL] = {"_scale", 1, 0},
    };
    return (size_t)format < sizeof layouts / sizeof layouts[0] ? &layouts[format] : NULL;
}

dg_status dgi_config_check(const char *config, size_t bytes, const char *path)
{
    static const char *const members[] = {"quantization_config", "compression_config"};
    cJSON *object;
    DGI_TRY(dgi_json_parse(config, bytes, path, &object));
    const char *found = NULL;
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        if (dgi_json_get(object, members[i]) != NULL)
            found = members[i];
    cJSON_Delete(object);
    return found == NULL
               ? DG_OK
               : dgi_fail(DG_INVALID_ARGUMENT,
                          "%s has the member %s: the checkpoint is quantised already", path, found);
}

static void print_names(FILE *out, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char *quoted = dgi_json_quote(names[i]);
        fprintf(out, "%s\n      %s", i == 0 ? "" : ",", quoted == NULL ? "" : quoted);
        cJSON_free(quoted);
    }
}

static void print_block(FILE *out, const char *const *kept, size_t count)
{
    fprintf(out,
            "{\n"
            "    \"quant_method\": \"fp8\",\n"
            "    \"fmt\": \"e4m3\",\n"
            "    \"activation_scheme\": \"dynamic\",\n"
            "    \"weight_block_size\": [%d, %d],\n"
            "    \"modules_to_not_convert\": [",
            BLOCK, BLOCK);
    print_names(out, kept, count);
    fputs("\n    ]\n  }", out);
}

static void print_channel(FILE *out, const char *const *kept, size_t count)
{
    fputs("{\n"
          "    \"quant_method\": \"compressed-tensors\",\n"
          "    \"format\": \"float-quantized\",\n"
          "    \"quantization_status\": \"compressed\",\n"
          "    \"kv_cache_scheme\": null,\n"
          "    \"config_groups\": {\n"
          "      \"group_0\": {\n"
          "        \"targets\": [\"Linear\"],\n"
          "        \"weights\": {\n"
          "          \"num_bits\": 8, \"type\": \"float\", \"symmetric\": true,\n"
          "          \"dynamic\": false, \"strategy\": \"channel\"\n"
          "        },\n"
          "        \"input_activations\": {\n"
          "          \"num_bits\": 8, \"type\": \"float\", \"symmetric\": true,\n"
          "          \"dynamic\": true, \"strategy\": \"token\"\n"
          "        },\n"
          "        \"output_activations\": null\n"
          "      }\n"
          "    },\n"
          "    \"ignore\": [",
          out);
    print_names(out, kept, count);
    fputs("\n    ]\n  }", out);
}

/* Text goes in before the closing brace: parsing and printing would turn 10000.0 into 10000. */
char *dgi_config_quantized(const char *config, size_t bytes, dg_checkpoint_format format,
                           const char *const *kept, size_t kept_count, size_t *quantized_bytes)
{
    while (config[bytes - 1] != '}')
        bytes--;
    bytes--;
    while ((unsigned char)config[bytes - 1] <= ' ') /* what cJSON skips */
        bytes--;
    char *text = NULL;
    FILE *out = open_memstream(&text, quantized_bytes);
    if (out == NULL)
        return NULL;
    fprintf(out, "%.*s%s\n  \"quantization_config\": ", (int)bytes, config,
            config[bytes - 1] == '{' ? "" : ",");
    (format == DG_CHECKPOINT_BLOCK ? print_block : print_channel)(out, kept, kept_count);
    fputs("\n}\n", out);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}
