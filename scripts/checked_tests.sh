#!/usr/bin/env bash
# Builds and runs tests that need no LibTorch in a build that looks for mistakes:
#     scripts/checked_tests.sh thread | sanitize
# thread: ThreadSanitizer; sanitize: AddressSanitizer and UBSan. One program, built in a minute or two: of core,
# the ranks' store and monitor, and data's threads.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1-}
case "$preset" in
    thread | sanitize) ;;
    *) echo "usage: scripts/checked_tests.sh thread|sanitize" >&2; exit 2 ;;
esac
scripts/build.sh "$preset" checked_test
# GCC 12's libtsan does not start where addresses are random in 32 bits (vm.mmap_rnd_bits).
fixed=()
if [ "$preset" = thread ] && setarch -R true 2>/dev/null; then fixed=(setarch -R); fi
exec "${fixed[@]}" ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -R '^checked_test$'
