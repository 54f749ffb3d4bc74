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
            cli_warn("--keep '%s' matches no layer", keep->items[i]);
}

static void print_json(const written *report, const cli_list *keep, const int64_t *matches)
{
    cJSON *root = written_json(report, "quantize"),
          *patterns = cJSON_AddArrayToObject(root, "keep");
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
    written report = {.fusion = DG_FUSION_AS_IT_IS};
    const char *format = dg_checkpoint_format_name(DG_CHECKPOINT_BLOCK);
    cli_list keep = {0};
    const cli_option options[] = {
        {"format", "layout", CLI_TEXT, &format, "the layout to write; block unless told otherwise"},
        {"keep", "pattern", CLI_LIST, &keep,
         "layers to leave in 16 bits: a part of the name between dots, or "
         "re:expression; @file: those in it"},
        WRITTEN_OPTIONS(report),
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
    job.keep = keep.items;
    job.keep_count = keep.count;
    job.keep_matches = matches;
    report.input = paths[0];
    report.output = paths[1];
    written_run(&report, dg_checkpoint_quantize, "quantising", &job);
    if (report.json)
        print_json(&report, &keep, matches);
    else
        written_print(&report);
    warn_of_idle_patterns(&keep, matches);
    written_warn(&report);
    written_free(&report);
    free(matches);
    cli_list_free(&keep);
    free(help);
    return CLI_OK;
}
