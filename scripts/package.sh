#!/usr/bin/env bash
# Makes a relocatable package: the program, the libraries it needs, their licences, manual page and completions.
#     scripts/package.sh [--build FOLDER] [--folder] [OUT]
# OUT (default: dist) receives unsloth-train-VERSION-linux-x86_64.tar.gz; with --folder, the folder alone. --build takes an existing
# build (build/release) as it is; without it the preset release is built for the architectures that TORCH_CUDA_ARCH_LIST names, by
# default all that are measured or known to work. What runs it needs: x86-64, a glibc as new as the one here (the package's README names
# it), and for GPUs the driver. LibTorch's Python is not part of it.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
# shellcheck source=scripts/parts.sh
. scripts/parts.sh

from= archive=yes out=dist
while [ $# -gt 0 ]; do
    case "$1" in
        --build) [ $# -ge 2 ] || fail "--build wants a folder."; from=$2; shift ;;
        --folder) archive= ;;
        -*) echo "usage: scripts/package.sh [--build FOLDER] [--folder] [OUT]" >&2; exit 2 ;;
        *) out=$1 ;;
    esac
    shift
done
use_build "$from"
get_patchelf

name=unsloth-train-$version-linux-x86_64
folder=$out/$name
say "Collecting $folder"
rm -rf "$folder"
mkdir -p "$folder"/{bin,lib/gcc,licenses,share}
find_libraries
copy_libraries "$folder/lib" package
# What the program itself loads first is what all other libraries get.
"$patchelf" --set-rpath '$ORIGIN:/usr/lib/x86_64-linux-gnu:/usr/lib64:$ORIGIN/gcc' "$folder/lib/unsloth-train"
ln -s ../lib/unsloth-train "$folder/bin/unsloth-train"

say "Licences, manual page, completions"
copy_licenses "$folder/licenses"
site=$(echo .deps/venv/lib/python3*/site-packages)
for wheel in "$site"/{torch,nvidia_*,pyarrow}-*.dist-info; do
    [ -d "$wheel" ] || continue
    target=$folder/licenses/$(basename "$wheel" .dist-info)
    mkdir -p "$target"
    find "$wheel" \( -iname '*licen*' -o -iname '*notice*' \) -type f -exec cp {} "$target/" \;
    rmdir "$target" 2>/dev/null || true
done
write_shared "$folder/share" "$folder/share"

glibc=$(objdump -T "$folder"/lib/{*.so*,unsloth-train} 2>/dev/null | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1)
cat >"$folder/README" <<TEXT
$("$build/unsloth-train" --version)

bin/unsloth-train runs from wherever this folder lies: put its bin into PATH, or link to it. It needs x86-64 Linux with
glibc ${glibc#GLIBC_} or newer, for GPU runs an NVIDIA driver of 580 or newer, and for downloads from the Hugging Face hub the system's
certificates (package ca-certificates). bin/unsloth-train doctor looks at the machine.

share/ holds the manual page, completions for bash, zsh and fish, examples for launchers, and configurations: bench
--check, started in share/, reads them; licenses/ the terms of all parts.
TEXT
say "$(du -shL "$folder" | cut -f1) in $(find "$folder/lib" -type f | wc -l) files of lib/; needs glibc ${glibc#GLIBC_}"

if [ -n "$archive" ]; then
    pack=gzip
    command -v pigz >/dev/null && pack=pigz
    say "Packing $folder.tar.gz"
    tar -C "$out" -I "$pack" -cf "$folder.tar.gz.part" --owner=0 --group=0 --hard-dereference "$name"
    mv "$folder.tar.gz.part" "$folder.tar.gz"
    (cd "$out" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
    say "$folder.tar.gz: $(du -h "$folder.tar.gz" | cut -f1)"
fi
