#!/bin/sh
# SPDX-License-Identifier: MIT
# Puts the benchmark's peers, oneDNN and OpenBLAS, in the project's virtual environment; `make bench`
# calls it. The tool finds them with LD_LIBRARY_PATH=.venv/lib. Does nothing when they are there.
set -eu
cd "$(dirname "$0")/.."

if [ -e .venv/lib/libdnnl.so.3 ] && [ -e .venv/lib/libscipy_openblas.so ]; then
    exit 0
fi
scripts/setup-venv.sh scripts/requirements-bench.txt
# oneDNN's wheel installs into .venv/lib, OpenBLAS's into a package of Python's.
ln -sf "$(cd .venv/lib && echo python3*/site-packages/scipy_openblas32/lib/libscipy_openblas.so)" \
    .venv/lib/libscipy_openblas.so
