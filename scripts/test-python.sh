#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds the Python package, installs it into a virtual environment of its own and runs its tests:
# scripts/test-python.sh BUILD. Further arguments go to pytest. DEEPGEMM_CUDA=ON also compiles the
# GPU kernels, which takes minutes, and tests on a GPU; without it the GPU's tests run on the simulated
# one (docs/simulator.md) where `make test` has built that in BUILD. DEEPGEMM_TORCH=ON installs
# PyTorch, which takes gigabytes, so that its tests run, too.
set -eu
cd "$(dirname "$0")/.."
build=$1
shift
venv=$build/venv
cuda=${DEEPGEMM_CUDA:-OFF} cubins='' simulator=''
if [ -z "${DEEPGEMM_CUDA-}" ] && [ -d "$build/simulator" ]; then
    cmake --build "$build" --target deepgemm_static simulated_kernels >"$build/build.log" ||
        { tail -n 40 "$build/build.log"; exit 1; }
    cuda=ON cubins=$(realpath "$build/cubins") simulator=$(realpath "$build/simulator")
fi

[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check -r scripts/requirements-python.txt
[ "${DEEPGEMM_TORCH:-OFF}" = OFF ] ||
    "$venv/bin/pip" install -q --disable-pip-version-check -r scripts/requirements-torch.txt
"$venv/bin/pip" install -q --disable-pip-version-check --no-build-isolation --no-deps \
    --force-reinstall -Cbuild-dir="$build/python" \
    -Ccmake.define.DEEPGEMM_CUDA="$cuda" -Ccmake.define.DEEPGEMM_CUBINS="$cubins" .

echo "test  python, types"
"$venv/bin/mypy" --python-executable "$venv/bin/python" --cache-dir "$build/mypy" \
    python/deepgemm
"$venv/bin/ruff" check --no-cache python tests/python bench
"$venv/bin/ruff" format --no-cache --check python tests/python bench
echo "test  python${simulator:+, with a simulated GPU}"
[ -z "$simulator" ] || export LD_LIBRARY_PATH="$simulator${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
"$venv/bin/python" -m pytest -q -o cache_dir="$build/pytest" "$@" tests/python
