#!/bin/sh
# SPDX-License-Identifier: MIT
# Includes point in one direction only: see the tree in docs/contributing.md.
set -eu
cd "$1"
failed=0

# forbid WHO WHAT FOLDER...: no file of these folders includes what matches WHAT.
forbid() {
    who=$1 what=$2
    shift 2
    for folder in "$@"; do
        [ -d "$folder" ] || continue
        if grep -rnE --include='*.[ch]' --include='*.cu' --include='*.cuh' \
            "^ *# *include +\"$what" "$folder"; then
            echo "^ $who"
            failed=1
        fi
    done
}

internal='(\.\./)*(src/)?(api|core|cpu|cuda|io|quant|backend)[/.]'
forbid "the tool, benchmarks and examples see only the public header" "$internal" \
    cli bench examples python
forbid "src/core includes no backend" '(\.\./)*((src/)?(api|cpu|cuda|io|quant)/|backend\.h)' src/core
forbid "a backend includes no other part than src/core" '(\.\./)*(src/)?(api|io|quant|cuda)/' src/cpu
forbid "a backend includes no other part than src/core" '(\.\./)*(src/)?(api|io|quant|cpu)/' src/cuda
forbid "checkpoints and quantisation know no backend" '(\.\./)*(src/)?(cpu|cuda)/' src/io src/quant
forbid "the front knows no backend's details" '(\.\./)*(src/)?(cpu|cuda)/' src/api
forbid "device/ptx includes nothing of the project" '' src/cuda/device/ptx
forbid "the library does not know its tests or its tool" '(\.\./)*(tests|cli|bench)/' src include
exit $failed
