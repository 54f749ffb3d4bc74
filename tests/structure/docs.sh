#!/bin/sh
# SPDX-License-Identifier: MIT
# What the documentation shows exists: the files that it links to, the targets, scripts and programs
# that it calls, commands and options of the tool; and its examples in C compile. (Those in Python
# are run by tests/python/test_docs.py.)
set -eu
cd "$1"
build=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Each check prints what is wrong.
check_links() {
    grep -oE '\]\([^)#: ]+[)#]' "$page" | sed 's/^](//; s/.$//' | while read -r target; do
        [ -e "$(dirname "$page")/$target" ] || echo "$page: no file $target"
    done
}

# The lines of blocks of shell commands, or without a language: what one types. A "\" goes on in the next line.
typed() {
    awk '/^```/ { fence = !fence; inside = fence && $0 ~ "^```(sh)?$"; next } inside' "$page" |
        sed -E -e ':a' -e '/\\$/N; s/\\\n *//; ta' | sed -E 's/^\$ //; s/ +#.*//'
}

check_calls() {
    grep -oE '(^| )(scripts|bench)/[a-z_-]+\.(sh|py)' "$scratch/typed" | while read -r script; do
        [ -x "$script" ] || echo "$page: no script $script"
    done
    sed -nE 's/^make ([a-z-]+).*/\1/p' "$scratch/typed" | while read -r target; do
        grep -q "^$target:" Makefile || echo "$page: no make $target"
    done
    grep -oE 'build/test_[a-z_0-9]+' "$scratch/typed" | while read -r program; do
        ls tests/*/"${program#build/}.c" >"$scratch/ls" 2>&1 || echo "$page: no $program"
    done
}

check_tool() {
    sed -nE 's/^([A-Z_]+=[^ ]+ )*(build\/)?deepgemm ([a-z]+)(.*)/\3 \4/p' "$scratch/typed" |
        while read -r command rest; do
            "$build/deepgemm" "$command" --help >"$scratch/help" 2>&1 ||
                echo "$page: no deepgemm $command"
            echo " $rest" | grep -oE ' (-o|--[a-z0-9-]+)' | sed 's/ -o/--output/' |
                while read -r option; do
                    grep -qE -- "^  $option( |\$)" "$scratch/help" ||
                        echo "$page: no deepgemm $command $option"
                done
        done
}

# Each block is the body of a function; what the examples take as given stands before them.
check_examples() {
    {
        echo '#include <deepgemm.h>
#include <stdio.h>
extern dg_context *context;
extern float *x, *scales;
extern uint8_t *codes;
extern uint16_t *y;
extern int64_t m, n, k;
extern int32_t i;
extern dg_weights *weights;
extern dg_gemm gemm, largest;
extern dg_table *table;
extern dg_table_values values;
extern void *stream;'
        awk '/^```/ { if (inside) print "}"
                      fence = !fence
                      inside = fence && $0 == "```c"
                      if (inside) print "void block" NR "(void);\nvoid block" NR "(void) {"
                      next }
             inside && !/^#include/' "$page"
    } >"$scratch/block.c"
    ${CC:-cc} -std=c11 -Wall -Wextra -Werror -Iinclude -fsyntax-only "$scratch/block.c" 2>&1 ||
        echo "$page: an example in C does not compile"
}

for page in README.md docs/*.md; do
    typed >"$scratch/typed"
    check_links
    check_calls
    [ ! -x "$build/deepgemm" ] || check_tool
    check_examples
done >"$scratch/wrong"
cat "$scratch/wrong"
[ ! -s "$scratch/wrong" ]
