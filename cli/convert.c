/* SPDX-License-Identifier: MIT */
/* deepgemm convert: an FP8 checkpoint in another layout; says of each tensor what it cost. */
#include "written.h"

#include <stdlib.h>

int cli_convert(int argc, char **argv)
{
    written report = {.fusion = DG_FUSION_AS_IT_IS};
    bool strict = false, unscaled = false;
    const char *format = NULL;
    const cli_option options[] = {
        {"to", "layout", CLI_TEXT, &format, "the layout to write"},
        {"strict", NULL, CLI_FLAG, &strict,
         "fail when a scale of the input is missing, unused or wrong (see inspect)"},
        {"unscaled-is-one", NULL, CLI_FLAG, &unscaled,
         "take 1 for the scale of FP8 weights that have none"},
        WRITTEN_OPTIONS(report),
        {0},
    };
    char *help = written_help(
        "Writes an FP8 checkpoint in another layout. Values stay the same wherever the "
        "layout can hold\nthe scales; what is requantised is listed with its error. "
        "<input> is a folder, an index or a\n.safetensors file; <output> a folder, which "
        "appears when it is complete.",
        true);
    const cli_usage usage = {"convert", "<input> <output> --to <layout>", 2, 2, help, options};
    char **paths = cli_parse(&usage, argc, argv);
    if (format == NULL)
        cli_misuse("convert needs --to <layout>; see deepgemm convert --help");

    dg_checkpoint_options job = DG_CHECKPOINT_OPTIONS_INIT;
    job.format = written_format("to", format, true);
    job.strict = strict;
    job.unscaled_is_one = unscaled;
    report.input = paths[0];
    report.output = paths[1];
    written_run(&report, dg_checkpoint_convert, "converting", &job);
    if (report.json)
        cli_json_print(written_json(&report, "convert"));
    else
        written_print(&report);
    written_warn(&report);
    written_free(&report);
    free(help);
    return CLI_OK;
}
