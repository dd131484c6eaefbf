#!/usr/bin/env bash
# The same run under torchrun, which finds the machines through one of them and starts all ranks anew after a failure:
#     NODES=2 HEAD=node0 configs/launch/torchrun.sh run.json [--section.key VALUE …]      # on each machine
# UNSLOTH_SECRET_FILE names a file with the same secret on each machine (openssl rand -hex 32).
# Any torch serves: the ranks bring their own LibTorch.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: torchrun.sh CONFIG [--section.key VALUE …]" >&2; exit 2; }
config=$1
shift
exec torchrun --no-python --nnodes "${NODES:-1}" --nproc_per_node "${GPUS:-gpu}" --rdzv_backend c10d --rdzv_endpoint "${HEAD:-localhost}:${PORT:-29400}" \
    --rdzv_id "${JOB:-unsloth-train}" --max_restarts "${RESTARTS:-3}" "${UNSLOTH_TRAIN:-build/release/unsloth-train}" train --config "$config" "$@"
