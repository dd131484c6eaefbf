#!/usr/bin/env bash
# Makes a wheel, which pip installs without compiling: unsloth_train-VERSION-py3-none-manylinux_2_XX_x86_64.whl
#     scripts/wheel.sh [--build FOLDER] [--level N] [OUT]
# OUT (default: dist) receives it. --build takes an existing build (build/release) as it is; without it the preset release is built for
# the architectures that TORCH_CUDA_ARCH_LIST names, as scripts/package.sh has it. --level: of compression, 0 to 9 (default 6).
# The wheel has the program, its Python package and the distribution's libraries that manylinux does not promise. LibTorch, CUDA's
# libraries and Arrow are those of the Python environment: pip installs the versions that the build was linked with. The tag says
# which glibc it needs (scripts/pack_wheel.py).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
# shellcheck source=scripts/parts.sh
. scripts/parts.sh

from= level=6 out=dist
while [ $# -gt 0 ]; do
    case "$1" in
        --build) [ $# -ge 2 ] || fail "--build wants a folder."; from=$2; shift ;;
        --level) [ $# -ge 2 ] || fail "--level wants a number."; level=$2; shift ;;
        -*) echo "usage: scripts/wheel.sh [--build FOLDER] [--level N] [OUT]" >&2; exit 2 ;;
        *) out=$1 ;;
    esac
    shift
done
use_build "$from"
get_patchelf

say "Collecting the parts of unsloth_train $version"
mkdir -p "$out"
parts=$(mktemp -d "$out/.wheel-XXXXXX")
trap 'rm -rf "$parts"' EXIT
package=$parts/unsloth_train
mkdir -p "$package/lib" "$parts/licenses" "$parts/share"
cp python/unsloth_train/*.py python/unsloth_train/py.typed "$package/"
find_libraries
copy_libraries "$package/lib" wheel
# From site-packages/unsloth_train/lib to the folders of the packages beside it. As torch's own, these paths come before
# LD_LIBRARY_PATH: another NCCL or cuDNN there must not be loaded.
mapfile -t folders < <(realpath -ms "${libraries[@]%/*}" | sed -n 's|^.*/site-packages/|$ORIGIN/../../|p' | sort -u)
path=$(IFS=:; echo "\$ORIGIN:${folders[*]}")
own=("${ours[@]##*/}")
"$patchelf" --force-rpath --set-rpath "$path" "${own[@]/#/$package/lib/}"
copy_licenses "$parts/licenses"
# pip leaves empty folders of share/ behind: only the manual page goes there, as that of a package which torch brings.
write_shared "$parts/described" "$package/share"
mv "$parts/described/man" "$parts/share/"

say "Packing"
wheel=$(.deps/venv/bin/python scripts/pack_wheel.py "$parts" "$version" --level "$level" "$out")
say "$wheel: $(du -h "$wheel" | cut -f1)"
