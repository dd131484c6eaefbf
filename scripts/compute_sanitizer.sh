#!/usr/bin/env bash
# GPU tests under NVIDIA's compute-sanitizer (from PyPI into .deps/sanitizer), of a release build's gpu_test:
#     scripts/compute_sanitizer.sh [memcheck|racecheck|synccheck|initcheck] [GTEST_FILTER]
# Unless a filter says otherwise, memcheck (the default) and initcheck take all tests but those of large tensors and of speed,
# the others the kernels that pipeline through shared memory. Tests take tens of times as long.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

tool=${1:-memcheck}
pipelined='GemmFp8Gpu.*:GemmInt8Gpu.*:Nf4GemmGpuTest.*:LoraGpu.*:AttentionGpu.*:PagedAttentionGpu.*-*Speed*'
case "$tool" in
    memcheck | initcheck) filter=${2:-'-LargeTensorsGpu.*:*Speed*'} ;;
    racecheck | synccheck) filter=${2:-$pipelined} ;;
    *) echo "usage: scripts/compute_sanitizer.sh [memcheck|racecheck|synccheck|initcheck] [GTEST_FILTER]" >&2; exit 2 ;;
esac
wanted=nvidia-cuda-sanitizer-api==13.0.85
tests=build/release/tests/gpu_test sanitizer=.deps/sanitizer/nvidia/cu13/bin/compute-sanitizer
[ -x "$tests" ] || fail "There is no $tests." "Run scripts/build.sh release gpu_test."
if [ "$(cat .deps/sanitizer/stamp 2>/dev/null)" != "$wanted" ]; then
    say "Getting $wanted from PyPI"
    rm -rf .deps/sanitizer
    .deps/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --only-binary :all: --no-deps \
        --target .deps/sanitizer "$wanted" </dev/null || fail "pip could not install: $wanted"
    chmod +x "$sanitizer"
    echo "$wanted" >.deps/sanitizer/stamp
fi
# Each buffer an allocation of its own: inside of LibTorch's blocks memcheck would see no border.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
exec "$sanitizer" --tool "$tool" --error-exitcode 1 "$tests" --gtest_brief=1 --gtest_filter="$filter"
