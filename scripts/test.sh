#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs tests of a build folder and ends with the counts: scripts/test.sh BUILD RUN...
# A run is `all`, `library` (no tool, no structure), or an instruction set, which repeats the tests
# that compute with nothing wider.
set -eu
build=$1
shift
total=0 failed=0

for run in "$@"; do
    case $run in
    all) labels=. ;;
    library) labels='unit|kernel|api' ;;
    *) labels='kernel|api' DEEPGEMM_CPU_ISA=$run && export DEEPGEMM_CPU_ISA ;;
    esac
    log=$build/test-$run.log
    printf 'test  %-10s' "$run"
    ctest --test-dir "$build" -j "$(nproc)" -L "$labels" --output-on-failure >"$log" 2>&1 \
        </dev/null || true
    # "100% tests passed, 0 tests failed out of 28"
    counts=$(sed -n 's/.*tests passed, \([0-9]*\) tests failed out of \([0-9]*\)$/\1 \2/p' "$log")
    if [ -z "$counts" ]; then
        echo 'could not run:'
        cat "$log"
        exit 1
    fi
    run_failed=${counts% *} run_total=${counts#* }
    seconds=$(sed -n 's/^Total Test time (real) = *//p' "$log")
    echo "$((run_total - run_failed)) of $run_total passed ($seconds)"
    [ "$run_failed" -eq 0 ] ||
        sed -n '/^Test project/,/tests passed/p' "$log" | grep -vE ' Passed |^ +Start '
    total=$((total + run_total))
    failed=$((failed + run_failed))
done

echo "$((total - failed)) of $total test runs passed, $failed failed"
[ "$failed" -eq 0 ]
