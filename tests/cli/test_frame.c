/* SPDX-License-Identifier: MIT */
/* The tool's frame: help, options, exit codes, and messages that say what was wrong. */
#include "test.h"
#include "tool.h"

#include <stdio.h>
#include <string.h>

static void version_is_the_librarys(void **state)
{
    (void)state;
    char expected[64];
    snprintf(expected, sizeof expected, "deepgemm %s\n", dg_version());
    tool_result r = tool_run("", "--version");
    tool_expect(&r, 0);
    assert_string_equal(r.out, expected);
    assert_string_equal(r.err, "");
    tool_free(&r);
}

static void help_goes_where_it_was_asked_for(void **state)
{
    (void)state;
    tool_result asked = tool_run("", "--help"), not_asked = tool_run("", "%s", "");
    tool_expect(&asked, 0);
    tool_expect(&not_asked, 2);
    assert_string_equal(asked.err, "");
    assert_string_equal(not_asked.out, "");
    assert_string_equal(asked.out, not_asked.err);
    assert_non_null(strstr(asked.out, "\n  info "));
    assert_non_null(strstr(asked.out, "\n  bench "));
    tool_free(&asked);
    tool_free(&not_asked);
}

static void help_of_commands(void **state)
{
    (void)state;
    static const char *const commands[] = {"info", "bench", "tune"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s-help.txt", commands[i]);
        /* --help wins over whatever stands before it. */
        tool_result r = tool_run("", "%s --json --help", commands[i]);
        tool_expect(&r, 0);
        assert_string_equal(r.err, "");
        tool_golden(r.out, name);
        tool_free(&r);
    }
}

/* Before a model is opened or anything is measured, and nothing that is there is replaced. */
static void outputs_are_looked_at_first(void **state)
{
    (void)state;
    static const char *const commands[] = {"mix /nowhere/m --size 60 --output",
                                           "bench --sweep --n 8 --k 8 --plot",
                                           "bench --output",
                                           "tune --output",
                                           "accuracy /nowhere/m --output",
                                           "calibrate /nowhere/m",
                                           "scales /nowhere/m"};
    static const struct {
        const char *path, *message;
    } cases[] = {{"/nowhere/x", "cannot write '/nowhere/x': No such file or directory"},
                 {"/dev/null", "cannot write '/dev/null': it is no regular file"},
                 {"/tmp", "cannot write '/tmp': it is no regular file"},
                 {"''", "cannot write '': No such file or directory"}};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        for (size_t j = 0; j < sizeof cases / sizeof *cases; j++) {
            tool_result r = tool_run("", "%s %s", commands[i], cases[j].path);
            tool_expect(&r, 1);
            if (strstr(r.err, cases[j].message) == NULL)
                fail_msg("no '%s' in: %s", cases[j].message, r.err);
            assert_string_equal(r.out, "");
            tool_free(&r);
        }
}

/* The same for a command that makes a folder after long work. */
static void output_folders_are_looked_at_first(void **state)
{
    (void)state;
    static const struct {
        const char *path, *message;
    } cases[] = {
        {"/nowhere/x", "cannot write '/nowhere/x': No such file or directory"},
        {"/nowhere/x/ --force", "cannot write '/nowhere/x/': No such file or directory"},
        {"/dev/null", "cannot write '/dev/null': it is no folder"},
        {"/dev/null/x", "cannot write '/dev/null/x': Not a directory"},
        {"/etc", "output /etc is there already and is not empty"},
        {"''", "cannot write '': No such file or directory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tool_result r = tool_run("", "smooth /nowhere/m %s", cases[i].path);
        tool_expect(&r, 1);
        if (strstr(r.err, cases[i].message) == NULL)
            fail_msg("no '%s' in: %s", cases[i].message, r.err);
        assert_string_equal(r.out, "");
        tool_free(&r);
    }
}

static void misuse(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *message;
    } mistakes[] = {
        {"multiply", "deepgemm: there is no command 'multiply'; see deepgemm --help\n"},
        {"info --jsn", "deepgemm: info has no option --jsn; see deepgemm info --help\n"},
        {"bench --device gpu", "deepgemm: --device takes cpu or cuda:N, not 'gpu'\n"},
        {"bench --device cuda:4294967296",
         "deepgemm: --device takes cpu or cuda:N, not 'cuda:4294967296'\n"},
        {"bench --device cuda:-1", "deepgemm: --device takes cpu or cuda:N, not 'cuda:-1'\n"},
        {"tune --device cuda:1x", "deepgemm: --device takes cuda:N, not 'cuda:1x'\n"},
        {"tune --device cpu", "deepgemm: --device takes cuda:N, not 'cpu'\n"},
        {"tune --cases x --recipe y", "deepgemm: either --cases or --recipe\n"},
        {"info -j", "deepgemm: info has no option -j; see deepgemm info --help\n"},
        {"info --json=1", "deepgemm: --json takes no value\n"},
        {"info here", "deepgemm: info does not take 'here'; see deepgemm info --help\n"},
        {"info -- --json", "deepgemm: info does not take '--json'; see deepgemm info --help\n"},
        {"bench --m", "deepgemm: --m needs a value: M\n"},
        {"bench --m=", "deepgemm: --m takes a whole number from 0 to 2147483647, not ''\n"},
        {"bench --m -1", "deepgemm: --m takes a whole number from 0 to 2147483647, not '-1'\n"},
        {"bench --m 2147483648",
         "deepgemm: --m takes a whole number from 0 to 2147483647, not '2147483648'\n"},
        {"bench --m 4x", "deepgemm: --m takes a whole number from 0 to 2147483647, not '4x'\n"},
        {"bench --seconds nan", "deepgemm: --seconds takes a number, not 'nan'\n"},
        {"bench --recipe tensor --m 1",
         "deepgemm: a shape is --m, --n and --k together, each at least 1\n"},
        {"bench --sweep --m 1 --n 1 --k 1",
         "deepgemm: --sweep needs --n and --k, and chooses M itself\n"},
        {"bench --weights pack", "deepgemm: --weights takes packed|rows|changing, not 'pack'\n"},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        tool_result r = tool_run("", "%s", mistakes[i].arguments);
        tool_expect(&r, 2);
        assert_string_equal(r.err, mistakes[i].message);
        assert_string_equal(r.out, "");
        tool_free(&r);
    }
}

/* What could not be printed is told: a full disk must not look like a short answer. */
static void lost_output(void **state)
{
    (void)state;
    static const char *const commands[] = {"info", "info --json", "--help", "--version",
                                           "bench --help"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        tool_result r = tool_run("", "%s >/dev/full", commands[i]);
        tool_expect(&r, 1);
        assert_non_null(strstr(r.err, "standard output: No space left on device"));
        tool_free(&r);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_is_the_librarys),
        cmocka_unit_test(help_goes_where_it_was_asked_for),
        cmocka_unit_test(help_of_commands),
        cmocka_unit_test(outputs_are_looked_at_first),
        cmocka_unit_test(output_folders_are_looked_at_first),
        cmocka_unit_test(misuse),
        cmocka_unit_test(lost_output),
    };
    return test_run(argc, argv, tests);
}
