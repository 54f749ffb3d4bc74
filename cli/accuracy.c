/* SPDX-License-Identifier: MIT */
/*
 * deepgemm accuracy: which granularity of scales, chosen by which method, costs a real model how
 * much. Every cell of the table runs the model over the same texts, in 16 bits and in FP8.
 */
#include "accuracy.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether a list names it; a list without names has everything. */
static bool is_named(const cli_list *names, const char *name)
{
    for (int i = 0; i < names->count; i++)
        if (strcmp(names->items[i], name) == 0)
            return true;
    return names->count == 0;
}

static void check_names(const cli_list *scales, const cli_list *methods)
{
    for (int i = 0; i < scales->count; i++) {
        int row = 0;
        while (row < accuracy_scales_count &&
               strcmp(accuracy_all_scales[row].name, scales->items[i]) != 0)
            row++;
        if (row == accuracy_scales_count)
            cli_misuse("--scales: there is no '%s'; the table lists them", scales->items[i]);
    }
    for (int i = 0; i < methods->count; i++) {
        int m = 0;
        while (m < accuracy_method_count &&
               strcmp(accuracy_methods[m].name, methods->items[i]) != 0)
            m++;
        if (m == accuracy_method_count)
            cli_misuse("--method: there is no '%s'; the table lists them", methods->items[i]);
    }
}

static bool row_is_done(const accuracy *a, int row)
{
    for (int m = 0; m < accuracy_method_count; m++)
        if (a->wanted[row][m] && !a->cells[row][m].done)
            return false;
    return true;
}

int cli_accuracy(int argc, char **argv)
{
    accuracy a = {.percentile = 99.99};
    int64_t texts = INT32_MAX, tokens = INT32_MAX, threads = 0;
    const char *output = NULL;
    cli_list scales = {0}, methods = {0};
    bool json = false, markdown = false;
    const cli_option options[] = {
        {"text", "FILE", CLI_TEXT, &a.text_path,
         "texts to measure on (default <model>/evaluation.safetensors)"},
        {"calibration", "FILE", CLI_TEXT, &a.calibration_path,
         "texts to calibrate on (default <model>/calibration.safetensors)"},
        {"texts", "N", CLI_COUNT, &texts, "how many of them (default all)"},
        {"tokens", "N", CLI_COUNT, &tokens, "how much of each (default all)"},
        {"scales", "NAME", CLI_LIST, &scales, "only this row of the table; may be repeated"},
        {"method", "NAME", CLI_LIST, &methods, "only this column; may be repeated"},
        {"percentile", "P", CLI_REAL, &a.percentile, "of the percentile method (default 99.99)"},
        {"output", "FILE.json", CLI_OUTPUT, &output,
         "keep results here after each row; a later run goes on from them"},
        CLI_THREADS(&threads),
        {"markdown", NULL, CLI_FLAG, &markdown, "print the tables as Markdown"},
        CLI_JSON(&json),
        {0},
    };
    char **paths = cli_parse(
        &(cli_usage){
            "accuracy", "<16-bit Llama folder>", 1, 1,
            "Runs a model in 16 bits and in FP8 over texts, for each granularity of scales "
            "and each method\nof choosing them: perplexity, error of the logits, and how "
            "often both predict the same token.\nA file of texts has `ids`, I32 [texts, "
            "tokens].",
            options},
        argc, argv);
    if (texts == 0)
        cli_misuse("--texts must be at least 1");
    check_names(&scales, &methods);
    for (int row = 0; row < accuracy_scales_count; row++)
        for (int m = 0; m < accuracy_method_count; m++)
            a.wanted[row][m] = accuracy_has(row, m) &&
                               is_named(&scales, accuracy_all_scales[row].name) &&
                               is_named(&methods, accuracy_methods[m].name);

    a.model_folder = paths[0];
    char *usual_text = cli_format("%s/evaluation.safetensors", paths[0]);
    char *usual_calibration = cli_format("%s/calibration.safetensors", paths[0]);
    a.text_path = a.text_path != NULL ? a.text_path : usual_text;
    a.calibration_path = a.calibration_path != NULL ? a.calibration_path : usual_calibration;
    a.context = cli_context(threads);
    a.peer = layer_wide_peer(a.context);
    a.model = llama_open(a.model_folder);
    a.text = llama_read_text(&a.model, a.text_path);
    a.calibration = llama_read_text(&a.model, a.calibration_path);
    a.text = llama_cut_text(a.text, texts, tokens);
    if (a.text.sequences == 0 || a.text.tokens < 2)
        cli_die("%s: a prediction needs a text of at least 2 tokens", a.text_path);
    if (output != NULL && access(output, F_OK) == 0)
        accuracy_load(&a, output);

    for (int row = 0; row < accuracy_scales_count; row++) {
        if (row_is_done(&a, row))
            continue;
        if (a.statistics == NULL)
            accuracy_calibrate(&a);
        accuracy_run_row(&a, row);
        if (output != NULL)
            cli_json_save(output, accuracy_json(&a));
    }
    if (json)
        cli_json_print(accuracy_json(&a));
    else
        (markdown ? accuracy_print_markdown : accuracy_print)(&a);

    for (int i = 0; a.wide != NULL && i <= a.model.block_count * LLAMA_BLOCK_KINDS; i++)
        free(a.wide[i].data);
    free(a.wide);
    for (int i = 0; a.samples != NULL && i < a.model.block_count * LLAMA_BLOCK_KINDS; i++)
        free(a.samples[i].data);
    free(a.samples);
    dg_statistics_destroy(a.statistics);
    free(a.text.ids);
    free(a.calibration.ids);
    free(usual_text);
    free(usual_calibration);
    cli_list_free(&scales);
    cli_list_free(&methods);
    llama_close(&a.model);
    dg_destroy(a.context);
    return CLI_OK;
}
