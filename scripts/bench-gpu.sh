#!/bin/sh
# SPDX-License-Identifier: MIT
# On a machine with a Hopper GPU: the GPU tests, then the benchmark beside cuBLASLt. It needs no
# compiler there, only the programs that the build made.
#
#     scripts/bench-gpu.sh BUILD-FOLDER [RESULT.jsonl [SHAPE ...]]
set -eu
build=${1:?which build folder?}
result=${2:-/dev/null}
shift "$(($# > 2 ? 2 : $#))"
for toolkit in "${CUDA_HOME:-/usr/local/cuda}"/lib64 "${CUDA_HOME:-/usr/local/cuda}"/targets/*/lib; do
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$toolkit
done
export LD_LIBRARY_PATH
for test in test_gemm_cuda test_quantize_cuda; do
    "$build/$test" --device cuda:0
done
"$build/bench_gpu" --json "$result" "$@"
