/* SPDX-License-Identifier: MIT */
/* What became of each tensor of a checkpoint: the report that `quantize` and `convert` share. */
#ifndef CLI_WRITTEN_H
#define CLI_WRITTEN_H

#include "cli.h"

/* A line of the report: one tensor, or several layers' tensors of one kind. */
typedef struct written_line {
    char *name, *shape, *stored_type;
    char *kept_because; /* NULL: it was not copied */
    dg_tensor_action action;
    int64_t tensors;
    double bytes_before, bytes_after;
    double worst_error;
    double part_ratio; /* of parts that share one scale, or 0 */
    int64_t saturated, underflow, non_finite;
} written_line;

typedef struct written {
    const char *input, *output, *format;
    cli_progress progress;
    /* Set by options: */
    const char *scales;
    int fusion;
    int64_t threads;
    bool force, all, json;
    /* Filled in by the run: */
    written_line *lines; /* one for each tensor */
    int count, room, resumed;
    double started, seconds, bytes_resumed;
} written;

/* The options that both commands have. */
#define WRITTEN_OPTIONS(report)                                                                    \
    ((cli_option){"fusion", "as-is|split|fused", CLI_CHOICE, &(report).fusion,                     \
                  "layers that are multiplied as one (qkv_proj, gate_up_proj): as they are, "      \
                  "split, or fused"}),                                                             \
        ((cli_option){"scales", "file", CLI_TEXT, &(report).scales,                                \
                      "scales from calibration: a .safetensors file with <layer>.input_scale and " \
                      "so on"}),                                                                   \
        ((cli_option){"all", NULL, CLI_FLAG, &(report).all,                                        \
                      "a line for each tensor, not for each kind of layer"}),                      \
        CLI_FORCE(&(report).force), CLI_THREADS(&(report).threads), CLI_JSON(&(report).json)

/* The layouts with these words before them, for --help; of malloc's. */
char *written_help(const char *text, bool with_bf16);
/* The layout of that name; an option that is none ends the process. */
dg_checkpoint_format written_format(const char *option, const char *name, bool with_bf16);

/*
 * Runs dg_checkpoint_quantize() or dg_checkpoint_convert() with a progress bar, until Ctrl-C, and
 * collects its report. Dies when it fails.
 */
typedef dg_status written_call(dg_context *, const char *, const char *,
                               const dg_checkpoint_options *);
void written_run(written *report, written_call *call, const char *doing,
                 dg_checkpoint_options *options);

/* A line for each tensor, or for each kind of them; then the sum. */
void written_print(const written *report);
/* The same as an object, to which the caller may add. */
cJSON *written_json(const written *report, const char *command);
/* Values that are not finite, and parts that share a scale and are far apart, on stderr. */
void written_warn(const written *report);
void written_free(written *report);

#endif
