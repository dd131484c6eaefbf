#!/usr/bin/env bash
# Fuzzes the parsers (tests/fuzz, one target a file; docs/development/checks.md) with clang's libFuzzer, AddressSanitizer and UBSan:
#     scripts/fuzz.sh [--changed] [SECONDS] [TARGET...]
# SECONDS each (default: FUZZ_SECONDS, or 10), all targets unless some are named, as many at a time as there are cores (FUZZ_JOBS: another number).
# Fails when a target crashes, leaks, or takes more time or memory than an input may; the input is kept and the command that
# reproduces it is printed. What is found on the way stays in build/fuzz/corpus for the next call.
# Targets that held are noted in tests/verified.txt with a hash of their parser's sources: commit it with the parser.
# --changed: fuzzes only targets whose parser is not the noted one; ends with code 77 if there is none, or no clang.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

changed=
if [ "${1-}" = --changed ]; then
    changed=yes
    shift
    has_libfuzzer || { say "Skipped: there is no clang with libFuzzer here (scripts/setup.sh --fuzz installs it)."; exit 77; }
fi
seconds=${FUZZ_SECONDS:-10}
if [[ "${1-}" =~ ^[0-9]+$ ]]; then
    seconds=$1
    shift
fi
all=()
for file in tests/fuzz/*.cpp; do all+=("$(basename "$file" .cpp)"); done
for target in "$@"; do
    [ -f "tests/fuzz/$target.cpp" ] || fail "There is no fuzz target '$target'." "The targets are: ${all[*]}"
done
[ $# -gt 0 ] || set -- "${all[@]}"

# What stands after "// KEY:" in a target's file.
words_of() { sed -n "s|^// $1: ||p" "tests/fuzz/$2.cpp"; }
# verified ACTION TARGET, of scripts/verified.py
# shellcheck disable=SC2046
verified() { scripts/verified.py "$1" "fuzz/$2" "tests/fuzz/$2.cpp" $(words_of parser "$2"); }

if [ -n "$changed" ]; then
    wanted=()
    for target in "$@"; do verified check "$target" || wanted+=("$target"); done
    [ ${#wanted[@]} -gt 0 ] || { say "Skipped: no parser changed since it was fuzzed (tests/verified.txt)."; exit 77; }
    set -- "${wanted[@]}"
fi

scripts/build.sh fuzz "${@/#/fuzz_}"

# The folders that the targets write to lie in memory where that is possible, and go with this script.
scratch=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/unsloth-fuzz-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch
findings=build/fuzz/findings
mkdir -p "$findings"

# Of the log, the last of what a sed script prints.
last() { sed -n "$1" "$log" | tail -n 1; }

run_target() {
    local target=$1 own=build/fuzz/corpus/$1 log=build/fuzz/$1.log seeds=() options=() folder
    mkdir -p "$own"
    # shellcheck disable=SC2046
    for folder in "tests/fuzz/corpus/$target" $(words_of seeds "$target"); do [ ! -d "$folder" ] || seeds+=("$folder"); done
    read -r -a options <<<"$(words_of options "$target")"
    local program=build/fuzz/tests/fuzz/fuzz_$target ok=passed
    local cpu TIMEFORMAT=%U
    cpu=$({ time "$program" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$findings/$target-" "${options[@]}" "$own" "${seeds[@]}" >"$log" 2>&1 </dev/null; } 2>&1) || ok=FAILED
    printf '%-17s %s  %9s runs in %5.0f s of CPU, %6s a second, coverage %5s, peak %4s MB\n' "$target" "$ok" \
        "$(last 's/^stat::number_of_executed_units: *//p')" "$cpu" "$(last 's/^stat::average_exec_per_sec: *//p')" \
        "$(last 's/.* cov: \([0-9]*\) .*/\1/p')" "$(last 's/^stat::peak_rss_mb: *//p')"
    [ "$ok" = FAILED ] || return 0
    local input
    input=$(last 's/.*Test unit written to //p')
    {
        grep -a -m 1 -A 2 -E 'ERROR:|runtime error|terminate called|fuzz target:|Assertion' "$log" || tail -n 20 "$log"
        grep -a -E '^ *#[0-9]+ .*/(src|tests/fuzz)/' "$log" | head -n 8 || true
        echo "all of it: $log; to see it again: $program ${input:-(no input was kept)}"
    } | sed 's/^/    /'
    return 1
}

jobs=${FUZZ_JOBS:-$(nproc)}
say "Fuzzing $# targets for $seconds s each, $jobs at a time"
export -f run_target words_of last
export seconds findings
printf '%s\n' "$@" | xargs -P "$jobs" -I{} bash -c 'run_target "$1"' _ {} || fail "The parsers do not hold: see above."
if [ "$seconds" -ge 10 ]; then for target in "$@"; do verified record "$target"; done; fi
say "Every parser held."
