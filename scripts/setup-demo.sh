#!/bin/sh
# SPDX-License-Identifier: MIT
# Puts the demo's model and text in the cache; `make demo` calls it. Does nothing when they are there.
set -eu
cd "$(dirname "$0")/.."

if python3 scripts/demo_setup.py --check; then
    exit 0
fi
echo "set-up: fetching SmolLM2-135M-Instruct (93 MB) and making a BF16 checkpoint of it"
scripts/setup-venv.sh scripts/requirements-demo.txt
.venv/bin/python scripts/demo_setup.py
