#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs every fuzz target of a build folder for some seconds: scripts/fuzz.sh BUILD SECONDS. Each run
# explores anew, unless FUZZ_SEED is set.
set -eu
build=$1 seconds=$2
count=0
for target in "$build"/fuzz_*; do
    [ -x "$target" ] || continue
    name=$(basename "$target")
    seeds=tests/fuzz/seeds/${name#fuzz_}
    found=$build/corpus-$name # what a run finds starts the next one
    mkdir -p "$found"
    printf 'fuzz  %-18s' "$name"
    log=$build/$name.log
    if ! "$target" -seed="${FUZZ_SEED:-0}" -max_total_time="$seconds" "$found" "$seeds" >"$log" 2>&1 </dev/null; then
        echo "FAILED:"
        grep -vE '^#[0-9]+' "$log" | tail -n 60
        exit 1
    fi
    tail -n 1 "$log"
    count=$((count + 1))
done
echo "make fuzz: $count targets, $seconds seconds each, nothing found"
[ "$count" -gt 0 ]
