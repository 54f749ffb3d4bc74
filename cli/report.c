/* SPDX-License-Identifier: MIT */
/* deepgemm report: JSON results of any command become one HTML page that needs nothing else. */
#include "report.h"

#include <stdlib.h>
#include <string.h>

static cJSON *read_result(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        cli_die("%s: %m", path);
    enum { first_room = 1 << 16 };
    const size_t most_bytes = (size_t)1 << 28; /* far more than any command writes */
    size_t room = first_room, bytes = 0;
    char *text = cli_alloc(room);
    for (size_t got; (got = fread(text + bytes, 1, room - bytes, file)) > 0;) {
        bytes += got;
        if (bytes > most_bytes)
            cli_die("%s is too large for a result", path);
        if (bytes == room) {
            room *= 2;
            text = realloc(text, room);
            if (text == NULL)
                cli_die("out of memory");
        }
    }
    if (ferror(file))
        cli_die("%s: %m", path);
    fclose(file);
    cJSON *root = cJSON_ParseWithLength(text, bytes);
    free(text);
    if (!cJSON_IsObject(root))
        cli_die("%s is not a JSON object, as --json prints", path);
    return root;
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

int cli_report(int argc, char **argv)
{
    enum { most_files = 100 };
    const char *output = NULL, *title = "deepgemm report";
    const cli_option options[] = {
        {"output", "FILE.html", CLI_OUTPUT, &output,
         "the page (default: standard output); also -o"},
        {"title", "TEXT", CLI_TEXT, &title, "its title"},
        {0},
    };
    char **paths = cli_parse(
        &(cli_usage){"report", "<result.json>...", 1, most_files,
                     "Makes one HTML page of results that other commands wrote with --json: what "
                     "they say, tables\nof all rows, and plots of errors by layer and their "
                     "causes, of speed against the floor, of\nhistograms with clip points, of "
                     "methods by granularity. The page needs no network.",
                     options},
        argc, argv);
    int count = 0;
    while (paths[count] != NULL)
        count++;
    cJSON **results = cli_alloc((size_t)count * sizeof *results);
    for (int i = 0; i < count; i++) /* all of them, before anything is written */
        results[i] = read_result(paths[i]);

    cli_file file = {.stream = stdout};
    if (output != NULL)
        file = cli_file_create(output);
    FILE *out = file.stream;
    report_begin(out, title);
    if (count > 1) {
        fputs("<ul>\n", out);
        for (int i = 0; i < count; i++) {
            fprintf(out, "<li><a href='#result%d'>", i);
            report_text(out, file_name(paths[i]));
            fputs("</a></li>\n", out);
        }
        fputs("</ul>\n", out);
    }
    for (int i = 0; i < count; i++) {
        report_result(out, results[i], file_name(paths[i]), i);
        cJSON_Delete(results[i]);
    }
    report_end(out);
    free(results);
    if (output != NULL)
        cli_file_finish(&file);
    return CLI_OK;
}
