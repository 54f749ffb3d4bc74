#!/bin/sh
# SPDX-License-Identifier: MIT
# Has the reference implementations of FP8 checkpoint formats read what the tool writes:
# scripts/test-reference.sh BUILD VENV. They are installed into that virtual environment, with PyTorch.
set -eu
cd "$(dirname "$0")/.."
build=$1
venv=$2

[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check \
    -r scripts/requirements-torch.txt -r scripts/requirements-reference.txt
echo "test  reference formats"
"$venv/bin/python" -W ignore tests/reference/formats.py "$build/deepgemm"
