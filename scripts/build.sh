#!/usr/bin/env bash
# Builds build/PRESET/unsloth-train and nothing else, or the targets that are named:
#     scripts/build.sh [PRESET] [TARGET...]
# PRESET: release (default), debug, sanitize, thread, cpu-only, fuzz (CMakePresets.json). TARGET: unsloth-train (default), all, ops_test, ...
# TORCH_CUDA_ARCH_LIST chooses CUDA architectures ("8.0;8.6;8.9;9.0a"); unset: those of this machine's GPUs, or 9.0a without one.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

preset=${1:-release}
[ $# -eq 0 ] || shift
case "$preset" in
    release | debug) cuda=yes; scripts/setup.sh ;;
    cpu-only | sanitize | thread) cuda=no; scripts/setup.sh --cpu-only ;;
    fuzz) cuda=no; scripts/setup.sh --fuzz ;;
    *) echo "usage: scripts/build.sh [release|debug|sanitize|thread|cpu-only|fuzz] [TARGET...]" >&2; exit 2 ;;
esac
[ $# -gt 0 ] || set -- unsloth-train

# "9.0" of a Hopper card becomes 9.0a, whose kernels may use what only that generation has.
gpu_architectures() {
    command -v nvidia-smi >/dev/null || return 0
    { nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true; } | grep -E '^[0-9]+\.[0-9]+$' | sort -u |
        sed 's/^9\.0$/9.0a/' | paste -sd ';'
}
if [ "$cuda" = yes ] && [ -z "${TORCH_CUDA_ARCH_LIST-}" ]; then
    TORCH_CUDA_ARCH_LIST=$(gpu_architectures || true)
    export TORCH_CUDA_ARCH_LIST="${TORCH_CUDA_ARCH_LIST:-9.0a}"
fi

# The compiler cache then serves every checkout of this machine: paths are hashed relative to the tree.
export CCACHE_BASEDIR="${CCACHE_BASEDIR-$PWD}" CCACHE_NOHASHDIR="${CCACHE_NOHASHDIR-1}"

say "Building $* (preset $preset${TORCH_CUDA_ARCH_LIST:+, CUDA architectures $TORCH_CUDA_ARCH_LIST})"
mkdir -p build
log=build/configure-$preset.log
commit=$(git describe --always --dirty --abbrev=12 2>/dev/null || true)
cmake --preset "$preset" -U CMAKE_CUDA_ARCHITECTURES -D "UNSLOTH_COMMIT=$commit" >"$log" 2>&1 || { tail -n 40 "$log" >&2; fail "CMake could not configure (all of it: $log)."; }
cmake --build "build/$preset" --target "$@"
