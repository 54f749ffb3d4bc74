#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes the project's virtual environment .venv unless it is there, and installs the packages of one
# list, which names all that they need: scripts/setup-venv.sh REQUIREMENTS. Called by setup-*.sh.
set -eu
if [ ! -x .venv/bin/pip ]; then
    python3 -m venv .venv || {
        echo "no virtual environment could be made: install python3-venv" >&2
        exit 1
    }
fi
.venv/bin/pip install --quiet --disable-pip-version-check --no-deps -r "$1"
