#!/bin/sh
# SPDX-License-Identifier: MIT
# Formatting, static analysis and shell scripts. scripts/lint.sh BUILD (a configured build folder:
# clang-tidy reads its compile_commands.json).
set -eu
cd "$(dirname "$0")/.."
build=$1
log=$(mktemp)
trap 'rm -f "$log"' EXIT

echo "lint  clang-format"
git ls-files '*.c' '*.h' | xargs clang-format --dry-run -Werror

echo "lint  shellcheck"
git ls-files '*.sh' | xargs shellcheck -x .ci/run

echo "lint  clang-tidy"
# Without nvcc the build has no GPU files, nor the headers that they include.
absent='^$'
grep -q '/src/cuda/' "$build/compile_commands.json" || absent='^src/cuda/\|^bench/gpu/'
git ls-files 'src/*.c' 'cli/*.c' 'bench/*.c' 'examples/*.c' | grep -v "$absent" |
    xargs -n 4 -P "$(nproc)" clang-tidy -p "$build" --quiet --warnings-as-errors='*' \
        >"$log" 2>/dev/null || {
    grep -E -A 3 'error:|warning:' "$log"
    exit 1
}
# The Python extension is no part of that build.
headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')
git ls-files 'python/src/*.c' |
    xargs -P "$(nproc)" -I '{}' clang-tidy --quiet --warnings-as-errors='*' '{}' -- \
        -std=c11 -Iinclude -isystem "$headers" -DPy_LIMITED_API=0x030A0000 >"$log" 2>/dev/null || {
    grep -E -A 3 'error:|warning:' "$log"
    exit 1
}
echo "make lint: clean"
