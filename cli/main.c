/* SPDX-License-Identifier: MIT */
/* The deepgemm tool: finds the command in its table and runs it. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

typedef struct command {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv);
} command;

static const command commands[] = {
    {"info", "what the library and this machine can do", cli_info},
    {"calibrate", "collect statistics of a model's activations, for static scales", cli_calibrate},
    {"scales", "choose the scales of a checkpoint's weights and inputs", cli_scales},
    {"smooth", "move outliers from a model's activations to its weights", cli_smooth},
    {"mix", "which layers should stay in 16 bits to meet a budget", cli_mix},
    {"quantize", "make an FP8 checkpoint of a 16-bit one", cli_quantize},
    {"convert", "write an FP8 checkpoint in another layout", cli_convert},
    {"inspect", "the tensors of a checkpoint, and the scales of each weight", cli_inspect},
    {"compare", "where the accuracy of an FP8 checkpoint went, layer by layer", cli_compare},
    {"bench", "time products beside their floor and other libraries", cli_bench},
    {"tune", "measure each GPU kernel, and judge the planner by it", cli_tune},
    {"demo", "a real model in FP8 beside 16 bits: errors, times, predictions", cli_demo},
    {"accuracy", "methods and granularities of scales on a real model", cli_accuracy},
    {"report", "one HTML page with plots, from JSON of the other commands", cli_report},
};
enum { command_count = sizeof commands / sizeof *commands };

static void print_help(FILE *out)
{
    fputs("usage: deepgemm <command> [options]\n\n"
          "FP8 matrix products for LLM inference.\n\ncommands:\n",
          out);
    for (int i = 0; i < command_count; i++)
        fprintf(out, "  %-10s%s\n", commands[i].name, commands[i].summary);
    fputs(
        "\ndeepgemm <command> --help lists a command's options; deepgemm --version the version.\n",
        out);
}

/* A command's exit code, unless what it printed got lost. */
static int finish(int code)
{
    cli_flush();
    return code;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return finish(CLI_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("deepgemm %s\n", dg_version());
        return finish(CLI_OK);
    }
    for (int i = 0; i < command_count; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return finish(commands[i].run(argc - 1, argv + 1));
    cli_misuse("there is no command '%s'; see deepgemm --help", argv[1]);
}
