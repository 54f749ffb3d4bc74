/* SPDX-License-Identifier: MIT */
/* What `deepgemm accuracy` prints, and the file that it goes on from. */
#include "accuracy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- text ---------------------------------------------------------------------------- */

static const predict *any_result(const accuracy *a)
{
    for (int i = 0; i < accuracy_scales_count * accuracy_method_count; i++) {
        const accuracy_cell *cell = &a->cells[i / accuracy_method_count][i % accuracy_method_count];
        if (cell->done)
            return &cell->result;
    }
    return NULL;
}

void accuracy_print(const accuracy *a)
{
    const predict *any = any_result(a);
    printf("model        %s, FP8 (E4M3) in all linear layers but the head\n", a->model_folder);
    printf("text         %lld texts of %lld tokens, %s\n", (long long)a->text.sequences,
           (long long)a->text.tokens, a->text_path);
    printf("calibration  %lld texts of %lld tokens, %s\n", (long long)a->calibration.sequences,
           (long long)a->calibration.tokens, a->calibration_path);
    if (any != NULL)
        printf("16 bit       perplexity %.4f\n", predict_wide_perplexity(any));
    printf("\n");
    cli_table *table = cli_table_new("scales: x . w", "method", ">perplexity", ">more",
                                     ">mean |error|", ">SNR dB", ">same token", NULL);
    for (int row = 0; row < accuracy_scales_count; row++)
        for (int m = 0; m < accuracy_method_count; m++) {
            const predict *p = &a->cells[row][m].result;
            if (!a->cells[row][m].done)
                continue;
            cli_table_cell(table, "%s", accuracy_all_scales[row].name);
            cli_table_cell(table, "%s", accuracy_methods[m].name);
            cli_table_cell(table, "%.4f", predict_fp8_perplexity(p));
            cli_table_cell(table, "%+.2f %%",
                           100 * (predict_fp8_perplexity(p) / predict_wide_perplexity(p) - 1));
            cli_table_cell(table, "%.4f", p->logits.mean_error);
            cli_table_cell(table, "%.1f", p->logits.snr_db);
            cli_table_cell(table, "%.2f %%", 100 * predict_top1_agreement(p));
        }
    cli_table_print(table);
    printf("mean |error|, SNR: of the logits, against 16 bits; same token: both predict it\n");
}

/* ---- Markdown ------------------------------------------------------------------------ */

static double perplexity(const predict *p)
{
    return predict_fp8_perplexity(p);
}

static double mean_error(const predict *p)
{
    return p->logits.mean_error;
}

static double agreement(const predict *p)
{
    return 100 * predict_top1_agreement(p);
}

static void print_pivot(const accuracy *a, const char *title, double (*value)(const predict *),
                        int decimals)
{
    printf("| %s |", title);
    for (int m = 0; m < accuracy_method_count; m++)
        printf(" %s |", accuracy_methods[m].name);
    printf("\n| --- |");
    for (int m = 0; m < accuracy_method_count; m++)
        printf(" ---: |");
    printf("\n");
    for (int row = 0; row < accuracy_scales_count; row++) {
        printf("| %s |", accuracy_all_scales[row].name);
        for (int m = 0; m < accuracy_method_count; m++)
            if (a->cells[row][m].done)
                printf(" %.*f |", decimals, value(&a->cells[row][m].result));
            else
                printf(" |");
        printf("\n");
    }
    printf("\n");
}

void accuracy_print_markdown(const accuracy *a)
{
    const predict *any = any_result(a);
    if (any == NULL)
        return;
    printf("%lld texts of %lld tokens; the 16-bit model's perplexity is %.3f.\n\n",
           (long long)a->text.sequences, (long long)a->text.tokens, predict_wide_perplexity(any));
    print_pivot(a, "perplexity", perplexity, 3);
    print_pivot(a, "mean absolute error of the logits", mean_error, 4);
    print_pivot(a, "same token predicted, %", agreement, 2);
}

/* ---- JSON ---------------------------------------------------------------------------- */

/* Every field of a result: a file is read back without loss. */
static const struct {
    const char *name;
    size_t offset;
} sums[] = {
    {"wide_nats", offsetof(predict, wide_nats)},
    {"fp8_nats", offsetof(predict, fp8_nats)},
    {"reference_squares", offsetof(predict, logits.reference_squares)},
    {"result_squares", offsetof(predict, logits.result_squares)},
    {"products", offsetof(predict, logits.products)},
    {"error_squares", offsetof(predict, logits.error_squares)},
    {"errors", offsetof(predict, logits.errors)},
    {"max_error", offsetof(predict, logits.max_error)},
};
static const struct {
    const char *name;
    size_t offset;
} counts[] = {
    {"tokens", offsetof(predict, tokens)},          {"agreed", offsetof(predict, agreed)},
    {"guesses", offsetof(predict, guesses)},        {"finite", offsetof(predict, logits.finite)},
    {"spoiled", offsetof(predict, logits.spoiled)},
};
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static cJSON *cell_object(int row, int m, const predict *p)
{
    cJSON *cell = cJSON_CreateObject();
    cJSON_AddStringToObject(cell, "scales", accuracy_all_scales[row].name);
    cJSON_AddStringToObject(cell, "method", accuracy_methods[m].name);
    predict_add_to(cell, p);
    cJSON *raw = cJSON_AddObjectToObject(cell, "sums");
    for (int i = 0; i < COUNT(sums); i++)
        cJSON_AddNumberToObject(raw, sums[i].name,
                                *(const double *)((const char *)p + sums[i].offset));
    for (int i = 0; i < COUNT(counts); i++)
        cJSON_AddNumberToObject(raw, counts[i].name,
                                (double)*(const int64_t *)((const char *)p + counts[i].offset));
    return cell;
}

/* Names without folders: the file serves on any machine. */
static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

static cJSON *settings(const accuracy *a)
{
    cJSON *root = cli_json_new("accuracy");
    cJSON_AddStringToObject(root, "model", last_name(a->model_folder));
    cJSON_AddStringToObject(root, "text", last_name(a->text_path));
    cJSON_AddNumberToObject(root, "texts", (double)a->text.sequences);
    cJSON_AddNumberToObject(root, "tokens_each", (double)a->text.tokens);
    cJSON_AddStringToObject(root, "calibration", last_name(a->calibration_path));
    cJSON_AddNumberToObject(root, "calibration_texts", (double)a->calibration.sequences);
    cJSON_AddNumberToObject(root, "percentile", a->percentile);
    return root;
}

cJSON *accuracy_json(const accuracy *a)
{
    cJSON *root = settings(a), *cells = cJSON_AddArrayToObject(root, "cells");
    for (int row = 0; row < accuracy_scales_count; row++)
        for (int m = 0; m < accuracy_method_count; m++)
            if (a->cells[row][m].done)
                cJSON_AddItemToArray(cells, cell_object(row, m, &a->cells[row][m].result));
    return root;
}

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        cli_die("%s: %m", path);
    enum { most_bytes = 1 << 20 }; /* all cells take a few tens of thousands */
    char *text = cli_alloc(most_bytes + 1);
    size_t bytes = fread(text, 1, most_bytes, file);
    text[bytes] = '\0';
    fclose(file);
    return text;
}

static double number_of(const cJSON *object, const char *name, const char *path)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!cJSON_IsNumber(item))
        cli_die("%s: a cell has no number '%s'", path, name);
    return item->valuedouble;
}

/* A sum that was not finite is null in the file. */
static double sum_of(const cJSON *object, const char *name, const char *path)
{
    bool lost = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(object, name));
    return lost ? NAN : number_of(object, name, path);
}

static void load_cell(accuracy *a, const cJSON *object, const char *path)
{
    const char *scales = cJSON_GetStringValue(cJSON_GetObjectItem(object, "scales"));
    const char *method = cJSON_GetStringValue(cJSON_GetObjectItem(object, "method"));
    const cJSON *raw = cJSON_GetObjectItem(object, "sums");
    for (int i = 0; i < accuracy_scales_count * accuracy_method_count; i++) {
        int row = i / accuracy_method_count, m = i % accuracy_method_count;
        if (scales == NULL || method == NULL ||
            strcmp(scales, accuracy_all_scales[row].name) != 0 ||
            strcmp(method, accuracy_methods[m].name) != 0)
            continue;
        predict p = PREDICT_INIT;
        for (int j = 0; j < COUNT(sums); j++)
            *(double *)((char *)&p + sums[j].offset) = sum_of(raw, sums[j].name, path);
        for (int j = 0; j < COUNT(counts); j++)
            *(int64_t *)((char *)&p + counts[j].offset) =
                (int64_t)number_of(raw, counts[j].name, path);
        const dg_matrix nothing = dg_matrix_of(NULL, DG_F32, 0, 1);
        cli_check(dg_compare(&nothing, &nothing, &p.logits), path); /* the metrics of the sums */
        a->cells[row][m] = (accuracy_cell){true, p};
        return;
    }
    cli_die("%s: a cell is of no known scales and method", path);
}

void accuracy_load(accuracy *a, const char *path)
{
    char *text = read_text(path);
    cJSON *root = cJSON_Parse(text), *mine = settings(a);
    if (root == NULL)
        cli_die("%s is not a JSON file", path);
    const cJSON *item;
    cJSON_ArrayForEach(item, mine)
    {
        if (!cJSON_Compare(item, cJSON_GetObjectItemCaseSensitive(root, item->string), true))
            cli_die("%s was made with another '%s': take another --output, or remove it", path,
                    item->string);
    }
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(root, "cells")) load_cell(a, item, path);
    cJSON_Delete(mine);
    cJSON_Delete(root);
    free(text);
}
