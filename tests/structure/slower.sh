#!/bin/sh
# SPDX-License-Identifier: MIT
# Every measured case that is slower than 16 bits is listed in docs/benchmarks.md, as bench/table.py
# finds it in the results.
set -eu
command -v python3 >/dev/null || { echo "no python3 to read results with"; exit 77; }
cd "$1/bench/results/h200"
list=$(../../table.py --slower burst.json few-packed.json few-rows.json few-32.json)
# The list stands in the page as it is, between empty lines.
found=$(awk '/^### Slower than 16 bits/ { inside = 1; next } /^###/ { inside = 0 }
             inside && (/^[0-9]+ of [0-9]+ comparisons:$/ || list) { list = 1; print }' \
    ../../../docs/benchmarks.md)
if [ "$list" != "$found" ]; then
    echo "docs/benchmarks.md, \"Slower than 16 bits\": the results say"
    echo "$list"
    exit 1
fi
