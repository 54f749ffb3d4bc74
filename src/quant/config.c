/* SPDX-License-Identifier: MIT */
/* What each format writes into config.json: see config.h. */
#include "quant/config.h"

#include "core/status.h"
#include "io/json.h"
#include "quant/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Members of config.json that announce a quantisation. */
static const char *const announcements[] = {"quantization_config", "compression_config"};
#define ANNOUNCEMENTS (sizeof announcements / sizeof announcements[0])

dg_status dgi_config_check(const char *config, size_t bytes, bool may_be_quantized,
                           const char *path)
{
    cJSON *object;
    DGI_TRY(dgi_json_parse(config, bytes, path, &object));
    const char *found = NULL;
    for (size_t i = 0; i < ANNOUNCEMENTS; i++) {
        const cJSON *member = dgi_json_get(object, announcements[i]);
        if (member != NULL && !cJSON_IsNull(member))
            found = announcements[i];
    }
    cJSON_Delete(object);
    return found == NULL || may_be_quantized
               ? DG_OK
               : dgi_fail(DG_INVALID_ARGUMENT,
                          "%s has the member %s: the checkpoint is quantised already", path, found);
}

/* ---- the parts of quantization_config ------------------------------------------------- */

static void print_names(FILE *out, const dgi_config_facts *facts)
{
    for (size_t i = 0; i < facts->kept_count; i++) {
        char *quoted = dgi_json_quote(facts->kept[i]);
        fprintf(out, "%s\n      %s", i == 0 ? "" : ",", quoted == NULL ? "" : quoted);
        cJSON_free(quoted);
    }
    fputs(facts->kept_count > 0 ? "\n    ]" : "]", out);
}

static void print_fp8(FILE *out, const dgi_config_facts *facts)
{
    const dgi_layout *layout = dgi_layout_of(facts->format);
    bool block = layout->block_rows > 0;
    fprintf(out,
            "{\n"
            "    \"quant_method\": \"fp8\",\n"
            "    \"fmt\": \"e4m3\",\n"
            "    \"activation_scheme\": \"%s\",\n",
            facts->static_input ? "static" : "dynamic");
    if (block)
        fprintf(out, "    \"weight_block_size\": [%d, %d],\n", layout->block_rows,
                layout->block_cols);
    if (layout->rounding != DG_SCALE_EXACT)
        fputs("    \"scale_fmt\": \"ue8m0\",\n", out);
    if (facts->format == DG_CHECKPOINT_BLOCK_UE8M0)
        fputs("    \"expert_dtype\": \"fp8\",\n", out);
    /* Servers that know the per-tensor layout look for the other name. */
    fprintf(out, "    \"%s\": [", block ? "modules_to_not_convert" : "ignored_layers");
    print_names(out, facts);
    fputs("\n  }", out);
}

/* The settings of weights or activations in a group of compressed-tensors. */
static void print_args(FILE *out, const char *name, const dgi_layout *layout, bool activations,
                       bool static_input)
{
    bool mx = layout->scale_dtype == DG_UE8M0, block = layout->block_rows > 1;
    bool tensor = layout->block_rows == 0;
    const char *strategy = mx                       ? "group"
                           : block                  ? activations ? "group" : "block"
                           : tensor && !activations ? "tensor"
                           : tensor && static_input ? "tensor"
                           : activations            ? "token"
                                                    : "channel";
    fprintf(out,
            "        \"%s\": {\n"
            "          \"num_bits\": 8, \"type\": \"float\", \"symmetric\": true,\n"
            "          \"dynamic\": %s, \"strategy\": \"%s\"",
            name, activations && !static_input ? "true" : "false", strategy);
    if (strcmp(strategy, "group") == 0)
        fprintf(out, ", \"group_size\": %d", layout->block_cols);
    if (strcmp(strategy, "block") == 0)
        fprintf(out, ", \"block_structure\": [%d, %d]", layout->block_rows, layout->block_cols);
    if (mx)
        fputs(", \"scale_dtype\": \"torch.uint8\", \"zp_dtype\": \"torch.uint8\"", out);
    fputs("\n        }", out);
}

static void print_group(FILE *out, const dgi_config_facts *facts)
{
    const dgi_layout *layout = dgi_layout_of(facts->format);
    fputs("    \"config_groups\": {\n"
          "      \"group_0\": {\n"
          "        \"targets\": [\"Linear\"],\n",
          out);
    print_args(out, "weights", layout, false, facts->static_input);
    fputs(",\n", out);
    print_args(out, "input_activations", layout, true, facts->static_input);
    fputs(",\n        \"output_activations\": null\n      }\n    },\n", out);
}

static void print_cache(FILE *out, const dgi_config_facts *facts)
{
    fprintf(out, "    \"kv_cache_scheme\": %s,\n",
            facts->fp8_cache ? "{\"num_bits\": 8, \"type\": \"float\", \"symmetric\": true, "
                               "\"dynamic\": false, \"strategy\": \"tensor\"}"
                             : "null");
}

static void print_compressed_tensors(FILE *out, const dgi_config_facts *facts)
{
    bool mx = facts->format == DG_CHECKPOINT_CT_MXFP8;
    fprintf(out,
            "{\n"
            "    \"quant_method\": \"compressed-tensors\",\n"
            "    \"format\": \"%s\",\n"
            "    \"quantization_status\": \"compressed\",\n",
            mx ? "mxfp8-quantized" : "float-quantized");
    print_cache(out, facts);
    print_group(out, facts);
    fputs("    \"ignore\": [", out);
    print_names(out, facts);
    fputs("\n  }", out);
}

/* ---- Model Optimizer ------------------------------------------------------------------ */

bool dgi_config_is_modelopt(dg_checkpoint_format format)
{
    return format >= DG_CHECKPOINT_MODELOPT && format <= DG_CHECKPOINT_MODELOPT_MXFP8;
}

static const char *modelopt_algorithm(dg_checkpoint_format format)
{
    static const char *const names[] = {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MXFP8"};
    return names[format - DG_CHECKPOINT_MODELOPT];
}

static void print_modelopt(FILE *out, const dgi_config_facts *facts)
{
    fprintf(out,
            "{\n"
            "    \"quant_method\": \"modelopt\",\n"
            "    \"quant_algo\": \"%s\",\n"
            "    \"producer\": {\"name\": \"modelopt\", \"version\": \"\"},\n",
            modelopt_algorithm(facts->format));
    print_cache(out, facts);
    print_group(out, facts);
    fputs("    \"ignore\": [", out);
    print_names(out, facts);
    fputs("\n  }", out);
}

char *dgi_config_modelopt(const dgi_config_facts *facts, size_t *text_bytes)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, text_bytes);
    if (out == NULL)
        return NULL;
    fprintf(out,
            "{\n"
            "  \"producer\": {\"name\": \"modelopt\", \"version\": \"\"},\n"
            "  \"quantization\": {\n"
            "    \"quant_algo\": \"%s\",\n"
            "    \"kv_cache_quant_algo\": %s,\n"
            "%s"
            "    \"exclude_modules\": [",
            modelopt_algorithm(facts->format), facts->fp8_cache ? "\"FP8\"" : "null",
            facts->format == DG_CHECKPOINT_MODELOPT_MXFP8 ? "    \"group_size\": 32,\n" : "");
    print_names(out, facts);
    fputs("\n  }\n}\n", out);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

/* ---- config.json ----------------------------------------------------------------------- */

/* Behind the JSON value that begins at `at`. The text is known to be JSON. */
static size_t skip_value(const char *text, size_t at, size_t bytes)
{
    int depth = 0;
    bool quoted = false;
    for (; at < bytes; at++) {
        char c = text[at];
        if (quoted) {
            if (c == '\\')
                at++;
            quoted = c != '"';
            if (!quoted && depth == 0)
                return at + 1;
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']' || c == ',') {
            if (depth == 0)
                return at; /* a number or a word ends here */
            depth -= c != ',';
            if (depth == 0)
                return at + 1;
        }
    }
    return at;
}

static size_t skip_spaces(const char *text, size_t at, size_t bytes)
{
    while (at < bytes && (unsigned char)text[at] <= ' ') /* what cJSON skips */
        at++;
    return at;
}

/* Whether the string at `at`, of `length` bytes with its quotes, is one of the announcements. */
static bool announces(const char *text, size_t at, size_t length)
{
    for (size_t i = 0; i < ANNOUNCEMENTS; i++)
        if (length == strlen(announcements[i]) + 2 &&
            memcmp(text + at + 1, announcements[i], length - 2) == 0)
            return true;
    return false;
}

/*
 * Prints the members of the object without those that announce a quantisation, and no closing
 * brace. Copies text: parsing and printing would turn 10000.0 into 10000. Returns how many members
 * there are.
 */
static int copy_members(FILE *out, const char *text, size_t bytes)
{
    int members = 0;
    size_t at = skip_spaces(text, 0, bytes) + 1, kept = at; /* kept: copied up to here */
    fputc('{', out);
    for (;;) {
        size_t name = skip_spaces(text, at, bytes);
        if (name >= bytes || text[name] != '"')
            return members;
        size_t name_end = skip_value(text, name, bytes);
        size_t value = skip_spaces(text, skip_spaces(text, name_end, bytes) + 1, bytes);
        size_t end = skip_value(text, value, bytes);
        while ((unsigned char)text[end - 1] <= ' ') /* behind a number */
            end--;
        if (!announces(text, name, name_end - name)) {
            if (members++ > 0)
                fputc(',', out);
            fwrite(text + kept, 1, end - kept, out);
        }
        at = skip_spaces(text, end, bytes);
        if (at >= bytes || text[at] != ',')
            return members;
        kept = ++at;
    }
}

char *dgi_config_text(const char *config, size_t bytes, const dgi_config_facts *facts,
                      size_t *text_bytes)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, text_bytes);
    if (out == NULL)
        return NULL;
    int members = copy_members(out, config, bytes);
    if (facts->format != DG_CHECKPOINT_BF16) {
        bool compressed =
            facts->format == DG_CHECKPOINT_CHANNEL ||
            (facts->format >= DG_CHECKPOINT_CT_TENSOR && facts->format <= DG_CHECKPOINT_CT_MXFP8);
        fprintf(out, "%s\n  \"quantization_config\": ", members > 0 ? "," : "");
        (dgi_config_is_modelopt(facts->format) ? print_modelopt
         : compressed                          ? print_compressed_tensors
                                               : print_fp8)(out, facts);
    }
    fputs("\n}\n", out);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}
