#!/bin/sh
# SPDX-License-Identifier: MIT
# On a machine with a Hopper GPU: the tests on the GPU, compute-sanitizer on a reduced set where it
# is installed, then the benchmark beside cuBLASLt. It needs no compiler there, only the build folder
# (the programs, libdeepgemm.so and libcmocka, libcjson on the library path).
#
#     scripts/bench-gpu.sh BUILD-FOLDER RESULT-FOLDER [OPTION OF deepgemm bench ...]
#
# Writes burst.json, odd.json, few-rows.json, few-packed.json, few-changing.json, few-32.json,
# grouped-rows.json, grouped-packed.json, grouped-tables.json, sustained.json and quantize.json;
# prints a short table last.
# DEVICE=cuda:1 chooses another GPU; COMMIT is noted in the results. STEPS names what is done:
#     tests sanitizer bench   the default
#     crossing                from how many tokens on which family of kernels is faster
#     depth                   how deep the pipeline should be, in a build with DEEPGEMM_SWEEP=ON
# The last two write crossing.json or depth.json, and a page with their tables and plots.
set -u
build=${1:?which build folder?}
result=${2:?which folder for the results?}
shift 2
device=${DEVICE:-cuda:0}
steps=${STEPS:-tests sanitizer bench}
commit=${COMMIT:-$(git describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)}
folder=$(dirname "$0")/..
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
    grouped grouped_few grouped_graph grouped_refusals table host_side requirements_grouped \
    requirements_layout requirements_process requirements_shapes requirements_values; do
    [ -x "$build/test_$test" ] && step "test_$test" timeout 120 "$build/test_$test" --device "$device"
done
if wanted sanitizer && command -v compute-sanitizer >/dev/null; then
    for test in gemm_cuda decode_cuda quantize_cuda grouped grouped_few table; do
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
tune() { # tune NAME OPTION...: the cases of bench/NAME.txt
    name=$1
    shift
    step "tune $name" "$build/deepgemm" tune --device "$device" --commit "$commit" \
        --cases "$folder/bench/$name.txt" --output "$result/$name.json" "$@"
    step "report $name" "$build/deepgemm" report "$result/$name.json" -o "$result/$name.html"
}
wanted depth && tune depth
wanted crossing && tune crossing --weights packed
wanted bench || exit "$((failed > 0))"
bench quantize --quantize
bench sustained --sustained --seconds 0.1 --recipe block128 --m 2048 --n 8192 --k 8192
bench odd --cases "$folder/bench/odd.txt" --no-peers
for weights in rows packed; do
    bench "few-$weights" --weights "$weights" --cases "$folder/bench/few.txt"
    bench "grouped-$weights" --weights "$weights" --grouped "$folder/tests/cases/grouped.txt"
    [ ! -e "$result/grouped-$weights.json" ] ||
        "$folder/bench/table.py" "$result/grouped-$weights.json"
done
bench grouped-tables --grouped "$folder/bench/tables.txt"
bench few-32 --weights packed --cases "$folder/bench/few-32.txt"
bench few-changing --weights changing --cases "$folder/bench/few.txt" --no-peers
bench burst "$@"
"$folder/bench/table.py" --means "$result/burst.json" || failed=$((failed + 1))
[ "$failed" -eq 0 ] || echo "$failed steps FAILED; see $log"
exit "$((failed > 0))"
