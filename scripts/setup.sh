#!/usr/bin/env bash
# Gets everything that the build needs, on Debian 12 or Ubuntu 24.04, into the system (packages) and .deps/ (LibTorch, CUDA):
#     scripts/setup.sh [--cpu-only | --fuzz | --python-peers]
# --cpu-only leaves out CUDA's compiler and libraries (4 GB); enough for the presets cpu-only, sanitize and thread.
# --fuzz gets what the preset fuzz needs and no more: packages, clang among them, and no LibTorch.
# --python-peers gets, after all else, what tests look at this program's files with, and are skipped without: transformers, PEFT and
# bitsandbytes and clients of serve (0.4 GB) into .deps/peers, and on Debian a browser (chromium, 0.3 GB).
# Safe to repeat; does nothing when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

kind=cuda
case "${1-}" in
    "") ;;
    --cpu-only) kind=cpu ;;
    --fuzz) kind=fuzz ;;
    --python-peers) kind=peers; scripts/setup.sh ;;
    *) echo "usage: scripts/setup.sh [--cpu-only | --fuzz | --python-peers]" >&2; exit 2 ;;
esac

# protobuf-compiler (with its two libraries, 7 MB, seconds) is used while building alone.
# Wanted versions. LibTorch is the one inside the PyPI wheel, CUDA's compiler and libraries come from the wheels beside it.
packages=(g++ cmake ninja-build ccache pkg-config git xz-utils ca-certificates
          nlohmann-json3-dev libspdlog-dev libfmt-dev libpcre2-dev libicu-dev libyaml-cpp-dev prometheus-cpp-dev zlib1g-dev libzstd-dev libxxhash-dev libcurl4-openssl-dev libssl-dev libnghttp2-dev libprotozero-dev protobuf-compiler libjpeg-dev libpng-dev libwebp-dev libgtest-dev libgmock-dev)
[ "$kind" != fuzz ] || packages+=(clang libclang-rt-dev)
torch=torch==2.11.0
cuda_toolchain=(nvidia-cudnn-frontend==1.32.0 nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
                nvidia-cuda-cccl==13.0.85)
# Arrow's libraries, which read Parquet files.
arrow=pyarrow==26.0.1
# Reads and quantises GGUF files: the tests compare exports with it.
gguf=gguf==0.19.0
# What libtorch_cpu.so of this wheel asks for even where there is no CUDA; the versions are those torch's metadata pins.
cpu_libraries=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
peers=scripts/python_peers.txt
older_client=openai==1.109.1  # the generation before the peers'
if [ "$kind" = peers ]; then  # its other packages were installed by the call above; Ubuntu's chromium is a snap, which no container starts
    packages=()
    ! grep -qsx ID=debian /etc/os-release || packages=(chromium)
fi

install_packages() {
    command -v dpkg-query >/dev/null || {
        warn "This is no Debian or Ubuntu: scripts/setup.sh cannot check system packages. Wanted: ${packages[*]}"
        return
    }
    local missing=() package
    for package in "${packages[@]}"; do
        [[ "$package" != *clang* ]] || ! has_libfuzzer || continue  # another clang does as well
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    [ "$kind" = fuzz ] || python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    [ ${#missing[@]} -gt 0 ] || return 0
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || fail "These packages are missing, and this is neither root nor is there sudo: ${missing[*]}" \
            "Ask an administrator to run: apt-get install ${missing[*]}"
        as_root=(sudo)
    fi
    say "Installing system packages: ${missing[*]}"
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y)
    "${apt[@]}" install --no-install-recommends "${missing[@]}" </dev/null >.deps/apt.log 2>&1 && return
    "${apt[@]}" update </dev/null >.deps/apt.log 2>&1 || { tail -n 20 .deps/apt.log >&2; fail "apt-get update failed (all of it: .deps/apt.log)."; }
    "${apt[@]}" install --no-install-recommends "${missing[@]}" </dev/null >.deps/apt.log 2>&1 ||
        { tail -n 20 .deps/apt.log >&2; fail "apt-get install failed (all of it: .deps/apt.log)."; }
}

make_venv() {
    .deps/venv/bin/python -m pip --version >/dev/null 2>&1 && return
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "$(python3 --version) is too old: LibTorch's wheel wants 3.10 or newer."
    say "Making .deps/venv with $(python3 --version)"
    rm -rf .deps/venv
    python3 -m venv .deps/venv
}

pip_install() {
    .deps/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --only-binary :all: "$@" </dev/null ||
        fail "pip could not install: $*" "Check the network and the free space here (5 GB for CUDA, 2 GB for --cpu-only), then repeat."
}

install_wheels() {
    make_venv
    if [ "$kind" = cuda ]; then
        say "Getting LibTorch and CUDA from PyPI (2.5 GB; about a minute on a fast line)"
        pip_install "$torch"
        pip_install --no-deps "${cuda_toolchain[@]}"
    else
        say "Getting LibTorch from PyPI (0.5 GB)"
        pip_install --no-deps "$torch" "${cpu_libraries[@]}"
    fi
    if .deps/venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        pip_install --no-deps "$arrow"
    else
        warn "There is no $arrow for this Python: built without it, the program reads no Parquet files."
    fi
    pip_install "$gguf"
    local libtorch
    libtorch=$(echo .deps/venv/lib/python3*/site-packages/torch/lib/libtorch_cpu.so)
    [ -f "$libtorch" ] || fail "pip installed torch, but $libtorch is not there."
    if ldd "$libtorch" | grep 'not found'; then fail "LibTorch misses the libraries above."; fi
}

# A second environment, which also sees the packages of the first: torch is there once.
install_peers() {
    say "Getting transformers, PEFT and bitsandbytes from PyPI (0.1 GB)"
    rm -rf .deps/peers
    .deps/venv/bin/python -m venv --without-pip .deps/peers
    local site
    site=$(echo .deps/peers/lib/python3*/site-packages)
    echo "../../../../venv/${site#.deps/peers/}" >"$site/venv.pth"
    PIP_PYTHON=.deps/peers/bin/python pip_install --no-compile --no-deps -r "$peers"
    PIP_PYTHON=.deps/peers/bin/python pip_install --no-compile --no-deps --target .deps/peers/openai-1 "$older_client"
    # Not from here, where our folder kernels looks like a package that bitsandbytes would use.
    (cd .deps && HF_HUB_OFFLINE=1 peers/bin/python -W ignore -c 'import torch, transformers, peft, bitsandbytes, accelerate' >peers.log 2>&1) ||
        { tail -n 20 .deps/peers.log >&2; fail ".deps/peers cannot import what was installed there (all of it: .deps/peers.log)."; }
}

# The stamp holds a hash of all that is wanted here: another version in this file makes the next call install again.
wanted=$(printf '%s\n' "${packages[@]}" "$torch" "$arrow" "$gguf" "${cuda_toolchain[@]}" "${cpu_libraries[@]}" | sha256sum | cut -d' ' -f1)
[ "$kind" != peers ] || wanted=$({ echo "$wanted" "$older_client"; cat "$peers"; } | sha256sum | cut -d' ' -f1)
is_done() {
    local have
    if [ "$kind" = fuzz ]; then
        has_libfuzzer && [ "$(cat .deps/stamp-fuzz 2>/dev/null)" = "$wanted" ]
        return
    fi
    if [ "$kind" = peers ]; then
        [ "$(cat .deps/stamp-peers 2>/dev/null)" = "$wanted" ] && [ -x .deps/peers/bin/python ]
        return
    fi
    for have in "$kind" cuda; do  # the CUDA set contains the CPU one
        [ "$(cat ".deps/stamp-$have" 2>/dev/null)" = "$wanted" ] && [ -x .deps/venv/bin/python ] && return
    done
    return 1
}

is_done && exit
mkdir -p .deps
exec 9>.deps/lock
flock 9  # two calls at once would write into the same folder
is_done && exit
install_packages
if [ "$kind" = peers ]; then
    install_peers
elif [ "$kind" = fuzz ]; then
    has_libfuzzer || fail "clang is installed, but cannot link a libFuzzer program." "It wants the compiler-rt of its version: on Debian libclang-rt-VERSION-dev."
else
    install_wheels
fi
echo "$wanted" >".deps/stamp-$kind"
say "All that the build needs is there."
