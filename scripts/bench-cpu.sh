#!/bin/sh
# SPDX-License-Identifier: MIT
# The CPU benchmark in full: scripts/bench-cpu.sh <folder> [tool]. Writes JSON and plots into the
# folder; bench/table.py turns them into the tables of docs/benchmarks.md. Some ten minutes.
set -eu
cd "$(dirname "$0")/.."
folder=${1:?usage: scripts/bench-cpu.sh <folder> [tool]}
tool=${2:-build/deepgemm}

scripts/setup-bench.sh
export LD_LIBRARY_PATH=.venv/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
commit=$(git describe --always --dirty --exclude '*')
mkdir -p "$folder"

run() { # run <name> <options of bench>
    name=$1
    shift
    echo "$name: deepgemm bench $*"
    "$tool" bench "$@" --commit "$commit" --output "$folder/$name.json"
}

for round in 1 2 3; do # bandwidth and clock change from minute to minute
    run decode-$round --cases tests/cases/decode.txt
    run prefill-$round --cases tests/cases/prefill.txt
done
run decode-rows --cases tests/cases/decode.txt --weights rows
run avx2 --cases tests/cases/capped.txt --isa avx2
run generic --cases tests/cases/capped.txt --isa generic --threads 1 --no-peers
run quantize --quantize --m 4096 --k 4096
run sweep-1536x576 --sweep --n 1536 --k 576 --plot "$folder/sweep-1536x576.svg"
run sweep-4096x4096 --sweep --n 4096 --k 4096 --plot "$folder/sweep-4096x4096.svg"
