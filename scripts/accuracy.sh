#!/bin/sh
# SPDX-License-Identifier: MIT
# Measures the tables of docs/accuracy.md and puts them there: scripts/accuracy.sh BUILD. Takes about
# an hour on two cores; a run that was stopped goes on after the rows that are done.
set -eu
cd "$(dirname "$0")/.."
build=$1
results=bench/results/accuracy-smollm2-135m.json
page=docs/accuracy.md

.venv/bin/python scripts/accuracy_text.py
model=$(python3 scripts/demo_setup.py --print-cache)
# Two libraries take turns with their threads: those that wait must not spin.
export OMP_WAIT_POLICY=passive
"$build/deepgemm" accuracy "$model" --tokens 16 --output "$results" --markdown >"$build/accuracy.md"
awk -v tables="$build/accuracy.md" '
    /^<!-- end of the tables/ { skip = 0 }
    !skip { print }
    /^<!-- tables/ { skip = 1; print ""; while ((getline line < tables) > 0) print line }
' "$page" >"$build/page.md"
cp "$build/page.md" "$page"
echo "$page has the tables, $results the numbers"
