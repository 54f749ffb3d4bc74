#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the test programs that draw random data again and again, each time with the next seed:
# scripts/soak.sh BUILD SECONDS [OPTION OF THE PROGRAMS ...]. The time is shared out equally; seeds
# count up from SOAK_SEED, or from the time of day.
set -eu
build=$1 seconds=$2
shift 2
options=$*
first=${SOAK_SEED:-$(date +%s)}
workers=$(nproc)
DEEPGEMM_TOOL=$(realpath "$build")/deepgemm
export DEEPGEMM_TOOL OMP_WAIT_POLICY=passive
mkdir -p "$build/soak"
rm -f "$build"/soak/*

# soak PROGRAM SECONDS: until its time is over or it fails; a failure leaves its output.
soak() {
    name=$(basename "$1") seed=$first end=$(($(date +%s) + $2))
    log=$build/soak/$name.log
    while
        # shellcheck disable=SC2086 # options are words
        if ! DEEPGEMM_SEED=$seed timeout 600 "$1" $options >"$log" 2>&1 </dev/null; then
            echo "soak  $name FAILED: DEEPGEMM_SEED=$seed $1 $options"
            mv "$log" "$build/soak/$name.failed"
            return
        fi
        grep -q '^DEEPGEMM_SEED=' "$log" || return 0 # it draws nothing
        seed=$((seed + 1))
        [ "$(date +%s)" -lt $end ]
    do :; done
    printf 'soak  %-28s %5d seeds\n' "$name" $((seed - first))
}

set -- "$build"/test_*
share=$((seconds * workers / $#))
for worker in $(seq "$workers"); do
    number=0
    for program in "$@"; do
        number=$((number % workers + 1))
        [ $number -ne "$worker" ] || soak "$program" "$share"
    done &
done
wait
set -- "$build"/soak/*.failed
[ ! -e "$1" ] || exit 1
echo "make soak: nothing failed"
