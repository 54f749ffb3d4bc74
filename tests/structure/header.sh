#!/bin/sh
# SPDX-License-Identifier: MIT
# The public header compiles alone, as strict C11 and as C++, and every INIT macro works in both.
set -eu
header=$1/include/deepgemm.h
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

{
    echo '#include "deepgemm.h"'
    echo 'int main(void) {'
    sed -nE 's/^#define (DG_([A-Z0-9_]+)_INIT).*/\1 \2/p' "$header" | while read -r macro name; do
        type=dg_$(echo "$name" | tr '[:upper:]' '[:lower:]')
        echo "    $type $type = $macro; if ($type.struct_bytes != sizeof $type) return 1;"
    done
    echo '    return 0; }'
} >"$scratch/use.c"
grep -q struct_bytes "$scratch/use.c"
cp "$scratch/use.c" "$scratch/use.cpp"

strict="-Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers -I$1/include"
# shellcheck disable=SC2086 # the flags are words
${CC:-cc} -std=c11 $strict "$scratch/use.c" -o "$scratch/use_c"
"$scratch/use_c"
if command -v "${CXX:-c++}" >/dev/null; then
    echo '#include "deepgemm.h"' >"$scratch/only.cpp"
    # Designated initialisers, which the INIT macros use, are C++20; the rest is C++98.
    # shellcheck disable=SC2086
    ${CXX:-c++} -std=c++11 $strict -fsyntax-only "$scratch/only.cpp"
    # shellcheck disable=SC2086
    ${CXX:-c++} -std=c++20 $strict "$scratch/use.cpp" -o "$scratch/use_cpp"
    "$scratch/use_cpp"
fi
