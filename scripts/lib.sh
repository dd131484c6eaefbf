# shellcheck shell=bash
# Words that the scripts beside this file share; they source it.
say() { printf '== %s\n' "$*"; }
warn() { printf 'warning: %s\n' "$*" >&2; }
# fail LINE...: says what is wrong and what to do, and ends the script.
fail() {
    printf 'error: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '       %s\n' "$@" >&2
    exit 1
}
# Whether clang++ is here and can make a libFuzzer program with the sanitizers.
has_libfuzzer() {
    command -v clang++ >/dev/null || return
    echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
        clang++ -x c++ - -fsanitize=fuzzer,address,undefined -o /dev/null 2>/dev/null
}
