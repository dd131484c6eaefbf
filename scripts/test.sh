#!/usr/bin/env bash
# Gets what is needed, builds everything and runs the tests:
#     scripts/test.sh [--preset PRESET] [CTEST ARGUMENT...]
# For instance `scripts/test.sh --preset sanitize -R formats`. Tests of the GPU skip themselves where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=release
case "${1-}" in -h | --help) sed -n '2,/^set /{/^# /p}' "scripts/${0##*/}" | cut -c3-; exit ;; esac
if [ "${1-}" = --preset ]; then
    [ $# -ge 2 ] || { echo "usage: scripts/test.sh [--preset PRESET] [CTEST ARGUMENT...]" >&2; exit 2; }
    preset=$2
    shift 2
fi
scripts/build.sh "$preset" all
# Larger golden files, where they lie beside the project, serve some optional tests.
if [ -z "${UNSLOTH_SHARED-}" ] && [ -d ../shared/golden ]; then
    UNSLOTH_SHARED=$(cd ../shared && pwd)
    export UNSLOTH_SHARED
fi
exec ctest --test-dir "build/$preset" --output-on-failure --no-tests=error --parallel "$(nproc)" "$@"
