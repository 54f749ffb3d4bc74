/* SPDX-License-Identifier: MIT */
/* deepgemm convert: an FP8 checkpoint in another layout; says of each tensor what it cost. */
#include "written.h"

#include <stdlib.h>

int cli_convert(int argc, char **argv)
{
    int fusion = DG_FUSION_AS_IT_IS;
    int64_t threads = 0;
    bool force = false, json = false, all = false, strict = false, unscaled = false;
    const char *scales = NULL, *format = NULL;
    const cli_option options[] = {
        {"to", "layout", CLI_TEXT, &format, "the layout to write"},
        {"fusion", "as-is|split|fused", CLI_CHOICE, &fusion,
         "layers that are multiplied as one (qkv_proj, gate_up_proj): as they are, split, or "
         "fused"},
        {"scales", "file", CLI_TEXT, &scales,
         "scales from calibration: a .safetensors file with <layer>.input_scale and so on"},
        {"strict", NULL, CLI_FLAG, &strict,
         "fail when a scale of the input is missing, unused or wrong (see inspect)"},
        {"unscaled-is-one", NULL, CLI_FLAG, &unscaled,
         "take 1 for the scale of FP8 weights that have none"},
        {"force", NULL, CLI_FLAG, &force, "replace a checkpoint that is there already"},
        {"threads", "n", CLI_COUNT, &threads, "threads to use; 0: all"},
        {"all", NULL, CLI_FLAG, &all, "a line for each tensor, not for each kind of layer"},
        {"json", NULL, CLI_FLAG, &json, "print one JSON object"},
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
    job.fusion = (dg_checkpoint_fusion)fusion;
    job.scales = scales;
    job.strict = strict;
    job.unscaled_is_one = unscaled;
    job.replace = force;
    written report = {.input = paths[0], .output = paths[1]};
    written_run(&report, dg_checkpoint_convert, "converting", threads, &job);
    if (json)
        cli_json_print(written_json(&report));
    else
        written_print(&report, all);
    written_warn(&report);
    written_free(&report);
    free(help);
    return CLI_OK;
}
