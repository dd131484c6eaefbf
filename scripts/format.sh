#!/usr/bin/env bash
# Formats C++, CUDA, Python and Markdown with the versions pinned below, at 120 columns:
#     scripts/format.sh [--check]
# --check changes nothing, says which files would change, and ends with 1 if there are any.
# The tools come from PyPI into .deps/format. Pages that scripts/reference.py generates are left alone.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

wanted=(clang-format==22.1.8 ruff==0.17.6 mdformat==1.0.0 mdformat-gfm==1.0.0)
check=no
case "${1-}" in
    "") ;;
    --check) check=yes ;;
    *) echo "usage: scripts/format.sh [--check]" >&2; exit 2 ;;
esac

mkdir -p .deps
exec 9>.deps/format.lock
flock 9
stamp="${wanted[*]} in $(readlink -f .deps)"  # scripts of a virtual environment name the folder it was made in
if [ "$(cat .deps/format/stamp 2>/dev/null)" != "$stamp" ]; then
    say "Getting ${wanted[*]} from PyPI"
    rm -rf .deps/format
    python3 -m venv .deps/format
    .deps/format/bin/python -m pip install --quiet --disable-pip-version-check --no-input --only-binary :all: "${wanted[@]}" </dev/null ||
        fail "pip could not install: ${wanted[*]}"
    echo "$stamp" >.deps/format/stamp
fi
exec 9>&-

# Tracked files and new ones that git does not ignore; what was removed but not committed is in git's list too.
files() { git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do [ ! -f "$file" ] || echo "$file"; done; }
mapfile -t code < <(files '*.cpp' '*.h' '*.cu' '*.cuh')
mapfile -t python < <(files '*.py')
mapfile -t markdown < <(files '*.md' | grep -vE '^docs/reference/(options|commands)/')
clang_format=(--style=file) ruff=(--quiet --line-length 120) mdformat=(--wrap 120 --compact-tables)
if [ "$check" = yes ]; then
    clang_format+=(--dry-run -Werror --ferror-limit=1) ruff+=(--check --diff) mdformat+=(--check)
else
    clang_format+=(-i)
fi
bin=.deps/format/bin
status=0
printf '%s\0' "${code[@]}" | xargs -0 -P 2 -n 50 "$bin/clang-format" "${clang_format[@]}" || status=1
"$bin/ruff" format "${ruff[@]}" "${python[@]}" || status=1
"$bin/mdformat" "${mdformat[@]}" "${markdown[@]}" || status=1
[ "$status" = 0 ] || fail "These files are not formatted as this project formats them." "Run: scripts/format.sh"
