/* SPDX-License-Identifier: MIT */
/* Command-line options from a table; --help is generated from the same table. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_help(const cli_usage *usage)
{
    int width = (int)strlen("--help");
    for (const cli_option *o = usage->options; o->name != NULL; o++) {
        int length = (int)(2 + strlen(o->name) + (o->argument ? 1 + strlen(o->argument) : 0));
        width = length > width ? length : width;
    }
    printf("usage: deepgemm %s%s%s [options]\n\n%s\n\noptions:\n", usage->command,
           *usage->arguments ? " " : "", usage->arguments, usage->summary);
    for (const cli_option *o = usage->options; o->name != NULL; o++) {
        int length =
            printf("  --%s%s%s", o->name, o->argument ? " " : "", o->argument ? o->argument : "");
        printf("%*s%s\n", width + 4 - length, "", o->help);
    }
    printf("  --help%*sshow this text\n", width - 4, "");
}

/* The index of `word` in "first|second|third", or -1. */
static int choice_index(const char *choices, const char *word)
{
    size_t length = strlen(word);
    for (int index = 0;; index++) {
        size_t span = strcspn(choices, "|");
        if (span == length && memcmp(choices, word, span) == 0)
            return index;
        if (choices[span] == '\0')
            return -1;
        choices += span + 1;
    }
}

void cli_list_add(cli_list *list, const char *text)
{
    const char **items = realloc(list->items, (size_t)(list->count + 1) * sizeof *items);
    if (items == NULL)
        cli_die("out of memory");
    items[list->count++] = cli_format("%s", text);
    list->items = items;
}

void cli_list_free(cli_list *list)
{
    for (int i = 0; i < list->count; i++)
        free((void *)list->items[i]);
    free(list->items);
    *list = (cli_list){0};
}

/* The lines of a file, without those that are empty. */
static void add_lines(cli_list *list, const char *path)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        cli_die("%s: %m", path);
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, file) >= 0) {
        line[strcspn(line, "\r\n")] = '\0';
        if (line[0] != '\0')
            cli_list_add(list, line);
    }
    if (ferror(file))
        cli_die("%s: %m", path);
    free(line);
    fclose(file);
}

static void set_value(const cli_option *option, const char *text)
{
    char *end;
    errno = 0;
    switch (option->kind) {
    case CLI_FLAG:
        *(bool *)option->value = true;
        break;
    case CLI_COUNT: {
        long long count = strtoll(text, &end, 10);
        if (end == text || *end != '\0' || errno != 0 || count < 0 || count > INT32_MAX)
            cli_misuse("--%s takes a whole number from 0 to %d, not '%s'", option->name, INT32_MAX,
                       text);
        *(int64_t *)option->value = count;
        break;
    }
    case CLI_REAL: {
        double number = strtod(text, &end);
        if (end == text || *end != '\0' || !isfinite(number))
            cli_misuse("--%s takes a number, not '%s'", option->name, text);
        *(double *)option->value = number;
        break;
    }
    case CLI_OUTPUT:
        cli_expect_output(text);
        *(const char **)option->value = text;
        break;
    case CLI_TEXT:
        *(const char **)option->value = text;
        break;
    case CLI_CHOICE: {
        int index = choice_index(option->argument, text);
        if (index < 0)
            cli_misuse("--%s takes %s, not '%s'", option->name, option->argument, text);
        *(int *)option->value = index;
        break;
    }
    case CLI_LIST:
        if (text[0] == '@')
            add_lines(option->value, text + 1);
        else
            cli_list_add(option->value, text);
        break;
    }
}

int cli_cuda_ordinal(const char *text)
{
    static const char prefix[] = "cuda:";
    if (strncmp(text, prefix, strlen(prefix)) != 0)
        return -1;
    const char *number = text + strlen(prefix);
    if (*number < '0' || *number > '9') /* strtol would take a sign and spaces */
        return -1;
    char *end;
    errno = 0;
    long ordinal = strtol(number, &end, 10);
    return *end != '\0' || errno != 0 || ordinal > INT32_MAX ? -1 : (int)ordinal;
}

/* The option that `word`, "name" or "name=value", names. */
static const cli_option *find_option(const cli_usage *usage, const char *word)
{
    size_t length = strcspn(word, "=");
    for (const cli_option *o = usage->options; o->name != NULL; o++)
        if (strlen(o->name) == length && memcmp(o->name, word, length) == 0)
            return o;
    cli_misuse("%s has no option --%.*s; see deepgemm %s --help", usage->command, (int)length, word,
               usage->command);
}

char **cli_parse(const cli_usage *usage, int argc, char **argv)
{
    int count = 0; /* positional arguments move to the front of argv */
    bool options = true;
    for (int i = 1; i < argc; i++) {
        const char *word = strcmp(argv[i], "-o") == 0 ? "--output" : argv[i];
        if (!options || word[0] != '-' || word[1] == '\0') {
            argv[count++] = argv[i];
        } else if (strcmp(word, "--") == 0) {
            options = false;
        } else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            print_help(usage);
            cli_flush();
            exit(CLI_OK);
        } else {
            if (word[1] != '-')
                cli_misuse("%s has no option %s; see deepgemm %s --help", usage->command, word,
                           usage->command);
            const cli_option *option = find_option(usage, word + 2);
            const char *value = strchr(word, '=');
            if (option->kind == CLI_FLAG && value != NULL)
                cli_misuse("--%s takes no value", option->name);
            if (option->kind != CLI_FLAG && value == NULL && i + 1 == argc)
                cli_misuse("--%s needs a value: %s", option->name, option->argument);
            if (value != NULL)
                set_value(option, value + 1);
            else
                set_value(option, option->kind == CLI_FLAG ? NULL : argv[++i]);
        }
    }
    argv[count] = NULL;
    if (count < usage->least)
        cli_misuse("%s needs %s; see deepgemm %s --help", usage->command, usage->arguments,
                   usage->command);
    if (count > usage->most)
        cli_misuse("%s does not take '%s'; see deepgemm %s --help", usage->command,
                   argv[usage->most], usage->command);
    return argv;
}
