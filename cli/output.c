/* SPDX-License-Identifier: MIT */
/* Failing, human numbers, JSON and the progress bar. */
#include "cli.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* One line, which may quote what a file says. */
static void complain(const char *kind, const char *format, va_list arguments)
{
    char *text;
    bool made = vasprintf(&text, format, arguments) >= 0;
    fflush(stdout);
    fprintf(stderr, "deepgemm: %s%s\n", kind, made ? cli_printable(text) : "out of memory");
    if (made)
        free(text);
}

void cli_warn(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    complain("warning: ", format, arguments);
    va_end(arguments);
}

void cli_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    complain("", format, arguments);
    va_end(arguments);
}

void cli_die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    complain("", format, arguments);
    va_end(arguments);
    exit(CLI_FAILED);
}

void cli_misuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    complain("", format, arguments);
    va_end(arguments);
    exit(CLI_USAGE);
}

void cli_flush(void)
{
    if (fflush(stdout) != 0 || ferror(stdout))
        cli_die("standard output: %m");
}

void cli_check(dg_status status, const char *doing)
{
    if (status != DG_OK)
        cli_die("%s: %s", doing, dg_last_error());
}

/* Dies unless something can be made, of the first `bytes` of `path` as its name. */
static void expect_place(const char *path, size_t bytes)
{
    const char *slash = memrchr(path, '/', bytes);
    char *folder =
        slash == NULL ? cli_format(".") : cli_format("%.*s", (int)(slash - path + 1), path);
    if (bytes == 0 || access(folder, W_OK) != 0)
        cli_die("cannot write '%s': %s", path, strerror(bytes == 0 ? ENOENT : errno));
    free(folder);
}

void cli_expect_output(const char *path)
{
    struct stat there;
    expect_place(path, strlen(path));
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode))
        cli_die("cannot write '%s': it is no regular file", path);
}

void cli_expect_folder(const char *path, bool force)
{
    struct stat there;
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/')
        bytes--;
    char *real = realpath(path, NULL); /* what is replaced is what a link leads to */
    if (real != NULL)
        expect_place(real, strlen(real));
    else
        expect_place(path, bytes);
    free(real);
    if (stat(path, &there) == 0 && !S_ISDIR(there.st_mode))
        cli_die("cannot write '%s': it is no folder", path);
    DIR *folder = force ? NULL : opendir(path);
    int entries = 0;
    while (folder != NULL && entries <= 2 && readdir(folder) != NULL)
        entries++;
    if (folder != NULL)
        closedir(folder);
    if (entries > 2) /* more than . and .. */
        cli_die("output %s is there already and is not empty", path);
}

dg_context *cli_context(int64_t threads)
{
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.threads = (int32_t)threads;
    dg_context *context;
    cli_check(dg_create(&context, DG_CPU, &options), "opening the processor");
    return context;
}

void *cli_alloc(size_t bytes)
{
    void *memory = calloc(1, bytes > 0 ? bytes : 1);
    if (memory == NULL)
        cli_die("no memory for %zu bytes", bytes);
    return memory;
}

char *cli_printable(char *text)
{
    for (unsigned char *at = (unsigned char *)text; *at != '\0'; at++) {
        if (*at < ' ' || *at == 0x7F)
            *at = '?';
        else if (*at == 0xC2 && at[1] >= 0x80 && at[1] < 0xA0) /* U+0080 to U+009F */
            at[0] = at[1] = '?';
    }
    return text;
}

char *cli_vformat(const char *format, va_list arguments)
{
    char *text;
    if (vasprintf(&text, format, arguments) < 0)
        cli_die("out of memory");
    return text;
}

char *cli_format(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *text = cli_vformat(format, arguments);
    va_end(arguments);
    return text;
}

/* `value` with three digits and the first unit in which it is below 1000. */
static char *with_unit(char *text, double value, const char *const units[], int count)
{
    int u = 0;
    for (; value >= 999.5 && u < count - 1; u++)
        value /= 1000;
    int decimals = value >= 99.95 || value == (int64_t)value ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(text, CLI_NUMBER, "%.*f %s", decimals, value, units[u]);
    return text;
}

char *cli_bytes(char *text, double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    return with_unit(text, bytes, units, 5);
}

char *cli_seconds(char *text, double seconds)
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    return with_unit(text, seconds * 1e9, units, 4);
}

cJSON *cli_json_new(const char *command)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "command", command);
    return root;
}

void cli_json_print(cJSON *object)
{
    char *text = cJSON_Print(object);
    if (text == NULL)
        cli_die("out of memory");
    puts(text);
    cJSON_free(text);
    cJSON_Delete(object);
}

cli_file cli_file_create(const char *path)
{
    cli_file file = {.path = path, .temporary = cli_format("%s.new-%d", path, (int)getpid())};
    file.stream = fopen(file.temporary, "w");
    if (file.stream == NULL)
        cli_die("%s: %m", path);
    return file;
}

void cli_file_finish(cli_file *file)
{
    bool failed =
        fflush(file->stream) != 0 || ferror(file->stream) || fsync(fileno(file->stream)) != 0;
    failed = fclose(file->stream) != 0 || failed || rename(file->temporary, file->path) != 0;
    if (failed) {
        int reason = errno;
        unlink(file->temporary);
        cli_die("%s: %s", file->path, strerror(reason));
    }
    free(file->temporary);
}

void cli_json_save(const char *path, cJSON *object)
{
    char *text = cJSON_Print(object);
    if (text == NULL)
        cli_die("out of memory");
    cli_file file = cli_file_create(path);
    fprintf(file.stream, "%s\n", text);
    cli_file_finish(&file);
    cJSON_free(text);
    cJSON_Delete(object);
}

static volatile sig_atomic_t interrupted;

static void interrupt(int signal_number)
{
    interrupted = signal_number;
}

void cli_catch_interrupt(void)
{
    signal(SIGINT, interrupt);
    signal(SIGTERM, interrupt);
}

bool cli_interrupted(void)
{
    return interrupted != 0;
}

double cli_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

cli_progress cli_progress_start(const char *label, double total)
{
    cli_progress progress = {label, total, cli_now(), 0};
    cli_progress_update(&progress, 0);
    return progress;
}

void cli_progress_update(cli_progress *progress, double done)
{
    const double redraw_seconds = 0.1;
    enum { cells = 30 };
    double now = cli_now();
    if (!isatty(STDERR_FILENO) || progress->total <= 0 || now - progress->drawn < redraw_seconds)
        return;
    progress->drawn = now;
    double share = done / progress->total;
    int full = (int)(share * cells);
    char bar[cells + 1];
    for (int i = 0; i < cells; i++)
        bar[i] = i < full ? '#' : '.';
    bar[cells] = '\0';
    double left = share > 0 ? (now - progress->started) * (1 - share) / share : 0;
    fprintf(stderr, "\r\033[K%s [%s] %3.0f %%", progress->label, bar, 100 * share);
    if (share > 0)
        fprintf(stderr, ", %.0f s left", left);
}

void cli_progress_end(cli_progress *progress)
{
    (void)progress;
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}
