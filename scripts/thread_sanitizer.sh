#!/usr/bin/env bash
# Tests what has threads and needs no LibTorch (the ranks' store and monitor, prefetching, ordered workers, logging) with
# ThreadSanitizer, in a build of its own:
#     scripts/thread_sanitizer.sh
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh thread threads_test
# GCC 12's libtsan does not start where addresses are random in 32 bits (vm.mmap_rnd_bits).
fixed=()
if setarch -R true 2>/dev/null; then fixed=(setarch -R); fi
exec "${fixed[@]}" ctest --test-dir build/thread --output-on-failure --no-tests=error -R '^threads_test$'
