#!/bin/sh
# SPDX-License-Identifier: MIT
# What holds for every file: a licence line, at most 600 lines, nothing left to be done.
set -eu
cd "$1"
failed=0

# Outside a checkout (a release archive) all files count.
list() {
    git ls-files -- "$@" 2>/dev/null | while read -r file; do
        [ ! -e "$file" ] || echo "$file"
    done
}
sources=$(list '*.c' '*.h' '*.cu' '*.cuh' '*.def' '*.py' '*.sh' '*.cmake' 'CMakeLists.txt' Makefile \
    .ci/run)
[ -n "$sources" ] || { echo "not a git checkout: nothing to look at"; exit 0; }

for file in $sources; do
    head -n 2 "$file" | grep -q 'SPDX-License-Identifier: MIT' || {
        echo "$file: its first lines lack the SPDX licence"
        failed=1
    }
    lines=$(wc -l <"$file")
    # The public header is one file on purpose, and mostly prose.
    [ "$lines" -le 600 ] || [ "$file" = include/deepgemm.h ] || {
        echo "$file: $lines lines, more than 600"
        failed=1
    }
done

# Work that is not finished, and code that is switched off.
if echo "$sources" | grep -v '^tests/structure/' |
    xargs grep -nE '\<(TODO|FIXME|XXX|HACK)\>|^ *# *if +0\>'; then
    echo "^ unfinished or switched-off code"
    failed=1
fi
if list | grep -E '(^|/)(old|backup|deprecated)/'; then
    echo "^ a folder for dead code"
    failed=1
fi
exit $failed
