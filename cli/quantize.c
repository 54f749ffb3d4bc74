/* SPDX-License-Identifier: MIT */
/* deepgemm quantize: a 16-bit checkpoint becomes an FP8 checkpoint; says what it did with each
 * tensor. */
#include "written.h"

#include <stdio.h>
#include <stdlib.h>

static void warn_of_idle_patterns(const cli_list *keep, const int64_t *matches)
{
    for (int i = 0; i < keep->count; i++)
        if (matches[i] == 0)
            fprintf(stderr, "deepgemm: warning: --keep '%s' matches no layer\n", keep->items[i]);
}

static void print_json(const written *report, const cli_list *keep, const int64_t *matches)
{
    cJSON *root = written_json(report), *patterns = cJSON_AddArrayToObject(root, "keep");
    for (int i = 0; i < keep->count; i++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "pattern", keep->items[i]);
        cJSON_AddNumberToObject(row, "matches", (double)matches[i]);
        cJSON_AddItemToArray(patterns, row);
    }
    cli_json_print(root);
}

int cli_quantize(int argc, char **argv)
{
    int fusion = DG_FUSION_AS_IT_IS;
    const char *format = dg_checkpoint_format_name(DG_CHECKPOINT_BLOCK);
    int64_t threads = 0;
    bool force = false, json = false, all = false;
    const char *scales = NULL;
    cli_list keep = {0};
    const cli_option options[] = {
        {"format", "layout", CLI_TEXT, &format, "the layout to write; block unless told otherwise"},
        {"keep", "pattern", CLI_LIST, &keep,
         "layers to leave in 16 bits: a part of the name between dots, or re:expression"},
        {"scales", "file", CLI_TEXT, &scales,
         "scales from calibration: a .safetensors file with <layer>.input_scale and so on"},
        {"fusion", "as-is|split|fused", CLI_CHOICE, &fusion,
         "layers that are multiplied as one (qkv_proj, gate_up_proj): as they are, split, or "
         "fused"},
        {"force", NULL, CLI_FLAG, &force, "replace a checkpoint that is there already"},
        {"threads", "n", CLI_COUNT, &threads, "threads to use; 0: all"},
        {"all", NULL, CLI_FLAG, &all, "a line for each tensor, not for each kind of layer"},
        {"json", NULL, CLI_FLAG, &json, "print one JSON object"},
        {0},
    };
    char *help = written_help(
        "Makes an FP8 checkpoint of a 16-bit one. <input> is a folder, an index or a "
        ".safetensors\nfile; <output> a folder, which appears when it is complete. A run "
        "that was interrupted\ngoes on when the same command is given again.",
        false);
    const cli_usage usage = {"quantize", "<input> <output>", 2, 2, help, options};
    char **paths = cli_parse(&usage, argc, argv);

    int64_t *matches = cli_alloc((size_t)keep.count * sizeof *matches);
    dg_checkpoint_options job = DG_CHECKPOINT_OPTIONS_INIT;
    job.format = written_format("format", format, false);
    job.fusion = (dg_checkpoint_fusion)fusion;
    job.keep = keep.items;
    job.keep_count = keep.count;
    job.keep_matches = matches;
    job.scales = scales;
    job.replace = force;
    written report = {.input = paths[0], .output = paths[1]};
    written_run(&report, dg_checkpoint_quantize, "quantising", threads, &job);
    if (json)
        print_json(&report, &keep, matches);
    else
        written_print(&report, all);
    warn_of_idle_patterns(&keep, matches);
    written_warn(&report);
    written_free(&report);
    free(matches);
    free(keep.items);
    free(help);
    return CLI_OK;
}
