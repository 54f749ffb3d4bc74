#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs every fuzz target of a build folder for some seconds, one on each processor:
# scripts/fuzz.sh BUILD SECONDS [TARGET]. Each run explores anew, unless FUZZ_SEED is set.
set -eu
build=$1 seconds=$2
if [ $# -eq 2 ]; then
    targets=$(find "$build" -maxdepth 1 -type f -name 'fuzz_*' -perm -u+x | sort)
    count=$(echo "$targets" | grep -c .)
    echo "$targets" | xargs -P "$(nproc)" -n 1 "$0" "$build" "$seconds"
    echo "make fuzz: $count targets, $seconds seconds each, nothing found"
    exit
fi
target=$3
name=$(basename "$target")
found=$build/corpus-$name # what a run finds starts the next one
log=$build/$name.log
mkdir -p "$found"
if "$target" -seed="${FUZZ_SEED:-0}" -max_total_time="$seconds" "$found" \
    "tests/fuzz/seeds/${name#fuzz_}" >"$log" 2>&1 </dev/null; then
    printf 'fuzz  %-18s%s\n' "$name" "$(tail -n 1 "$log")"
else
    printf 'fuzz  %-18sFAILED:\n' "$name"
    grep -vE '^#[0-9]+' "$log" | tail -n 60
    exit 255 # xargs starts no other
fi
