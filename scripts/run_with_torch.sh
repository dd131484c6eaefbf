#!/usr/bin/env bash
# Runs a command of a carried-over build against the LibTorch of the `python3` in PATH:
#     scripts/run_with_torch.sh build/release/unsloth-train --help
# For machines that have the right torch installed but were not set up with scripts/setup.sh. Libraries that lie beside the
# command (spdlog, PCRE2, … copied along) are found too.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: run_with_torch.sh COMMAND [ARGUMENT …]" >&2; exit 2; }
folders=$(python3 - <<'PY'
import glob, importlib.util, os, sys
spec = importlib.util.find_spec("torch")
if spec is None:
    sys.exit("run_with_torch.sh: this python3 has no torch")
torch = os.path.dirname(spec.origin)
site = os.path.dirname(torch)
print(":".join([os.path.join(torch, "lib"), *sorted(glob.glob(os.path.join(site, "nvidia", "*", "lib")))]))
PY
)
here=$(dirname -- "$(command -v -- "$1")")
export LD_LIBRARY_PATH="$here:$folders${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$@"
