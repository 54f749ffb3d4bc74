#!/bin/sh
# SPDX-License-Identifier: MIT
# On a machine with a Hopper GPU: the tests on the GPU, compute-sanitizer on a reduced set where it
# is installed, then the benchmark beside cuBLASLt. It needs no compiler there, only the build folder
# (the programs, libdeepgemm.so and libcmocka, libcjson on the library path).
#
#     scripts/bench-gpu.sh BUILD-FOLDER RESULT-FOLDER [OPTION OF deepgemm bench ...]
#
# Writes burst.json, grouped.json, sustained.json and quantize.json; prints a short table last. About four minutes.
# DEVICE=cuda:1 chooses another GPU; COMMIT is noted in the results. STEPS="tests sanitizer bench" is
# what is done; STEPS=depth measures how deep the pipeline should be, in a build with DEEPGEMM_SWEEP=ON,
# and writes depth.json and depth.html.
set -u
build=${1:?which build folder?}
result=${2:?which folder for the results?}
shift 2
device=${DEVICE:-cuda:0}
steps=${STEPS:-tests sanitizer bench}
commit=${COMMIT:-$(git describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)}
log=$result/log.txt
mkdir -p "$result"
for toolkit in "${CUDA_HOME:-/usr/local/cuda}"/lib64 "${CUDA_HOME:-/usr/local/cuda}"/targets/*/lib; do
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$toolkit
done
export LD_LIBRARY_PATH
: >"$log"
failed=0

step() { # step NAME COMMAND...: its output goes to the log; failures are shown
    name=$1
    shift
    echo "== $name: $*" >>"$log"
    "$@" >"$log.step" 2>&1
    status=$?
    cat "$log.step" >>"$log"
    if [ "$status" -eq 0 ]; then
        echo "ok      $name"
    else
        echo "FAILED  $name"
        grep -v '^\[ RUN\|^\[       OK' "$log.step" | head -n 30
        failed=$((failed + 1))
    fi
    rm -f "$log.step"
}

wanted() {
    case " $steps " in *" $1 "*) true ;; *) false ;; esac
}

# Every test program that can run on a device.
wanted tests && for test in tensor_cores gemm_cuda decode_cuda dependent_launch gemm_random \
    gemm_special gemm_bits gemm_kernels gemm_refusals quantize quantize_cuda \
    quantize_rules contexts structs threads other_refusals weights_packing \
    grouped grouped_graph grouped_refusals table requirements_grouped \
    requirements_layout requirements_process requirements_shapes requirements_values; do
    [ -x "$build/test_$test" ] && step "test_$test" timeout 120 "$build/test_$test" --device "$device"
done
if wanted sanitizer && command -v compute-sanitizer >/dev/null; then
    for test in gemm_cuda quantize_cuda; do
        DEEPGEMM_REDUCED=1 step "memcheck test_$test" timeout 120 compute-sanitizer \
            --tool memcheck --error-exitcode 9 "$build/test_$test" --device "$device"
    done
fi

bench() { # bench NAME OPTION...: a case's result is there as soon as it is measured
    name=$1
    shift
    if "$build/deepgemm" bench --device "$device" --commit "$commit" \
        --output "$result/$name.json" "$@" >>"$log" 2>&1; then
        echo "ok      bench $name"
    else
        echo "FAILED  bench $name"
        tail -n 3 "$log"
        failed=$((failed + 1))
    fi
}
if wanted depth; then
    step "tune depth" "$build/deepgemm" tune --device "$device" --commit "$commit" \
        --cases "$(dirname "$0")/../bench/depth.txt" --output "$result/depth.json"
    step "report depth" "$build/deepgemm" report "$result/depth.json" -o "$result/depth.html"
fi
wanted bench || exit "$((failed > 0))"
bench quantize --quantize
bench sustained --sustained --seconds 0.1 --recipe block128 --m 2048 --n 8192 --k 8192
bench grouped --grouped "$(dirname "$0")/../tests/cases/grouped.txt"
[ ! -e "$result/grouped.json" ] || "$(dirname "$0")/../bench/table.py" "$result/grouped.json"
bench burst "$@"
"$(dirname "$0")/../bench/table.py" --means "$result/burst.json" || failed=$((failed + 1))
[ "$failed" -eq 0 ] || echo "$failed steps FAILED; see $log"
exit "$((failed > 0))"
