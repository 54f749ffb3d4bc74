/* SPDX-License-Identifier: MIT */
/*
 * What the commands of the tool share: options, tables, JSON, progress, failing.
 * Everything here may end the process; nothing here knows a command.
 */
#ifndef CLI_H
#define CLI_H

#include <cJSON.h>
#include <deepgemm.h>
#include <stdarg.h>
#include <stdio.h>

/* Exit codes: what a script may rely on. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* ---- commands: one row each in main.c ------------------------------------------------ */

/* argv[0] is the command's name. Returns an exit code. */
int cli_info(int argc, char **argv);
int cli_calibrate(int argc, char **argv);
int cli_mix(int argc, char **argv);
int cli_scales(int argc, char **argv);
int cli_smooth(int argc, char **argv);
int cli_quantize(int argc, char **argv);
int cli_convert(int argc, char **argv);
int cli_inspect(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_tune(int argc, char **argv);
int cli_compare(int argc, char **argv);
int cli_demo(int argc, char **argv);
int cli_accuracy(int argc, char **argv);
int cli_report(int argc, char **argv);

/* ---- options (options.c) ------------------------------------------------------------- */

/* What an option's `value` points to. */
typedef enum cli_kind {
    CLI_FLAG,   /* bool, becomes true                                                  */
    CLI_COUNT,  /* int64_t, 0 to 2^31-1                                                */
    CLI_REAL,   /* double, finite                                                      */
    CLI_TEXT,   /* const char *                                                        */
    CLI_OUTPUT, /* const char *, a file that cli_expect_output() lets through          */
    CLI_CHOICE, /* int, the index of the word given in `argument`, e.g. "packed|rows"  */
    CLI_LIST    /* cli_list; the option may be repeated, @FILE stands for FILE's lines  */
} cli_kind;

typedef struct cli_list {
    const char **items; /* of malloc's, the texts as well */
    int count;
} cli_list;
void cli_list_add(cli_list *list, const char *text); /* a copy */
void cli_list_free(cli_list *list);

typedef struct cli_option {
    const char *name;     /* without the dashes                                */
    const char *argument; /* what --help calls it; NULL for a flag             */
    cli_kind kind;
    void *value;      /* holds the default until the option is met         */
    const char *help; /* one line                                          */
} cli_option;

typedef struct cli_usage {
    const char *command;
    const char *arguments; /* the positional ones as --help shows them, e.g. "<input> <output>" */
    int least, most;       /* how many of them */
    const char *summary;   /* the first lines of --help */
    const cli_option *options; /* ends with {0} */
} cli_usage;

/*
 * Fills in the options' values and returns the positional arguments, NULL at the end. Takes
 * "--name value" and "--name=value"; "--" ends the options. On --help prints the help and exits;
 * on a mistake says what is wrong on stderr and exits with CLI_USAGE.
 */
char **cli_parse(const cli_usage *usage, int argc, char **argv);

/* Rows of a table of options that many commands have. */
#define CLI_THREADS(count)                                                                         \
    ((cli_option){"threads", "n", CLI_COUNT, count, "threads to use (default: all)"})
#define CLI_FORCE(flag)                                                                            \
    ((cli_option){"force", NULL, CLI_FLAG, flag, "replace a checkpoint that is there already"})
#define CLI_JSON(flag) ((cli_option){"json", NULL, CLI_FLAG, flag, "print one JSON object"})

/* N of "cuda:N", or -1. */
int cli_cuda_ordinal(const char *text);

/* Whether elements of that type are FP8 codes. */
static inline bool cli_is_fp8(dg_dtype dtype)
{
    return dtype == DG_E4M3 || dtype == DG_E5M2;
}

/* A context of the processor with so many threads, or dies; 0: all. */
dg_context *cli_context(int64_t threads);

/* ---- failing (output.c) -------------------------------------------------------------- */

/* Print "deepgemm: warning: ..." or "deepgemm: ..." on stderr, as one line of printable text. */
void cli_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same as cli_error(), and exit: with CLI_FAILED, or with CLI_USAGE. */
_Noreturn void cli_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void cli_misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Dies where what was printed got lost: asked before an exit that says that all went well. */
void cli_flush(void);
/* Dies with `doing` and dg_last_error() unless the status is DG_OK. */
void cli_check(dg_status status, const char *doing);
/* Dies unless a file of that name can be written: asked before long work, not after it. */
void cli_expect_output(const char *path);
/* The same for a folder, which must not be there, or be empty, or `force`. */
void cli_expect_folder(const char *path, bool force);
/* Zeroed memory of malloc's, or dies. */
void *cli_alloc(size_t bytes);
/* A formatted string of malloc's. */
char *cli_format(const char *format, ...) __attribute__((format(printf, 1, 2)));
char *cli_vformat(const char *format, va_list arguments) __attribute__((format(printf, 1, 0)));
/*
 * Puts '?' for each byte of a control character, and returns the text: names come from files, and
 * what a terminal takes for a command must not reach it. Tables and messages do it by themselves.
 */
char *cli_printable(char *text);

/* ---- output (output.c) --------------------------------------------------------------- */

/* Human numbers, in a buffer of CLI_NUMBER bytes that is also returned: "1.5 MB", "12.3 us". */
enum { CLI_NUMBER = 32 };
char *cli_bytes(char *text, double bytes);
char *cli_seconds(char *text, double seconds);

/* The object that a command with --json prints, with the command's name as its first field. */
cJSON *cli_json_new(const char *command);
/* Prints the object on stdout, as all that a command with --json prints there, and deletes it. */
void cli_json_print(cJSON *object);
/*
 * Puts the object into a file and deletes it. The file takes the place of an earlier one in one
 * step, so that long work can save again and again and is never without its last result.
 */
void cli_json_save(const char *path, cJSON *object);

/* Lets Ctrl-C end the work in place of the process: cli_interrupted() says that it came. */
void cli_catch_interrupt(void);
bool cli_interrupted(void);

/*
 * A text file that appears under its name when it is whole: written beside it, brought to the disk,
 * then renamed.
 */
typedef struct cli_file {
    FILE *stream;
    const char *path;
    char *temporary;
} cli_file;
cli_file cli_file_create(const char *path);
void cli_file_finish(cli_file *file); /* or dies, and leaves nothing */

/* A progress bar on stderr; silent unless stderr is a terminal. */
typedef struct cli_progress {
    const char *label;
    double total, started, drawn; /* work in any unit; seconds */
} cli_progress;
cli_progress cli_progress_start(const char *label, double total);
void cli_progress_update(cli_progress *progress, double done);
void cli_progress_end(cli_progress *progress); /* wipes the bar */

/* Seconds on a clock that never jumps. */
double cli_now(void);

/* ---- tables (table.c) ---------------------------------------------------------------- */

typedef struct cli_table cli_table;

/*
 * A table with these columns, NULL at the end: cli_table_new("layer", ">us", NULL). A title that
 * begins with '>' makes a column of numbers, aligned at the right. UTF-8 is measured in
 * characters.
 */
cli_table *cli_table_new(const char *first, ...) __attribute__((sentinel));
/* One more column; only before the first cell. */
void cli_table_column(cli_table *table, const char *title);
/* The next cell, left to right, printable; rows fill up by themselves. */
void cli_table_cell(cli_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Prints the table on stdout and frees it. */
void cli_table_print(cli_table *table);

#endif
