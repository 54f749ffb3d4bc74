#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the tests of a build folder, then those that compute once more for each narrower instruction
# set, and ends with the counts. scripts/test.sh BUILD
set -eu
build=$1
total=0 failed=0

# run NAME CTEST-ARGUMENT...
run() {
    name=$1
    shift
    log=$build/test-$name.log
    printf 'test  %-14s' "$name"
    status=0
    ctest --test-dir "$build" -j "$(nproc)" --output-on-failure "$@" >"$log" 2>&1 </dev/null ||
        status=$?
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
    [ "$status" -eq 0 ] || sed -n '/^Test project/,/tests passed/p' "$log" | grep -vE ' Passed |^ +Start '
    total=$((total + run_total))
    failed=$((failed + run_failed))
}

run native
for isa in generic avx2 avx512; do
    export DEEPGEMM_CPU_ISA=$isa
    run "$isa" -L 'kernel|api'
done

echo "make test: $((total - failed)) of $total test runs passed, $failed failed"
[ "$failed" -eq 0 ]
