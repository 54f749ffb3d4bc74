#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds the Python package, installs it into a virtual environment of its own and runs its tests:
# scripts/test-python.sh BUILD. Further arguments go to pytest. DEEPGEMM_CUDA=ON also compiles the
# GPU kernels, which takes minutes; DEEPGEMM_TORCH=ON installs PyTorch, which takes gigabytes, so that
# its tests run, too.
set -eu
cd "$(dirname "$0")/.."
build=$1
shift
venv=$build/venv

[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check -r scripts/requirements-python.txt
[ "${DEEPGEMM_TORCH:-OFF}" = OFF ] ||
    "$venv/bin/pip" install -q --disable-pip-version-check -r scripts/requirements-torch.txt
"$venv/bin/pip" install -q --disable-pip-version-check --no-build-isolation --no-deps \
    --force-reinstall -Cbuild-dir="$build/python" \
    -Ccmake.define.DEEPGEMM_CUDA="${DEEPGEMM_CUDA:-OFF}" .

echo "test  python, types"
"$venv/bin/mypy" --python-executable "$venv/bin/python" --cache-dir "$build/mypy" \
    python/deepgemm
"$venv/bin/ruff" check --no-cache python tests/python bench/python
"$venv/bin/ruff" format --no-cache --check python tests/python bench/python
echo "test  python"
"$venv/bin/python" -m pytest -q -o cache_dir="$build/pytest" "$@" tests/python
