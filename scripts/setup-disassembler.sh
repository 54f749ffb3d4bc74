#!/bin/sh
# SPDX-License-Identifier: MIT
# setup-disassembler.sh BUILD: where BUILD has GPU kernels and the machine no disassembler, puts one
# in the project's virtual environment, for tests/structure/machine_code.sh. `make test` calls it.
set -eu
cd "$(dirname "$0")/.."
if [ ! -d "$1/cubins" ] || command -v cuobjdump >/dev/null ||
    ls .venv/lib/python3*/site-packages/nvidia/cu*/bin/cuobjdump >/dev/null 2>&1; then
    exit 0
fi
scripts/setup-venv.sh scripts/requirements-disassembler.txt
