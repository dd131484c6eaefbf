#!/usr/bin/env bash
# Starts one process a GPU on this machine, all of which train one model; the same as `unsloth-train launch`:
#     scripts/launch.sh [--nproc_per_node N|auto] [--nnodes N --node_rank I --master_addr HOST] [--master_port PORT] … --config FILE …
# `unsloth-train launch --help` lists the rest. --program PATH names the unsloth-train to take; without it build/release's.
set -euo pipefail
program=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build/release/unsloth-train
arguments=()
while [ $# -gt 0 ]; do
    if [ "$1" = --program ] && [ $# -ge 2 ]; then
        program=$2
        shift
    else
        arguments+=("$1")
    fi
    shift
done
[ -x "$program" ] || { echo "launch.sh: there is no program $program; build it (scripts/build.sh), or name it with --program" >&2; exit 2; }
exec "$program" launch "${arguments[@]}"
