#!/usr/bin/env bash
# Starts one process a GPU on this machine, all of which train one model:
#     scripts/launch.sh --nproc_per_node 4 [--nnodes N --node_rank I --master_addr HOST] [--master_port PORT] [--program PATH] ARGUMENT …
# Everything else goes to unsloth-train, on every rank. The first rank that fails ends the others; its exit code is the script's. SIGINT and
# SIGTERM reach every rank, which then save together. torchrun --no-python, srun and mpirun set the same environment.
set -euo pipefail
usage() { sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

processes='' nodes=1 node=0 address=127.0.0.1 port=29500 program=''
while [ $# -gt 0 ]; do
    case $1 in
        --nproc_per_node) processes=${2:?}; shift 2 ;;
        --nnodes) nodes=${2:?}; shift 2 ;;
        --node_rank) node=${2:?}; shift 2 ;;
        --master_addr) address=${2:?}; shift 2 ;;
        --master_port) port=${2:?}; shift 2 ;;
        --program) program=${2:?}; shift 2 ;;
        --help | -h) usage ;;
        *) break ;;
    esac
done
[[ $processes =~ ^[1-9][0-9]*$ ]] || usage
[ -n "$program" ] || program=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build/release/unsloth-train
[ -x "$program" ] || { echo "launch.sh: there is no program $program; build it, or name it with --program" >&2; exit 2; }

ranks=()
for ((i = 0; i < processes; i++)); do
    RANK=$((node * processes + i)) WORLD_SIZE=$((nodes * processes)) LOCAL_RANK=$i LOCAL_WORLD_SIZE=$processes \
        MASTER_ADDR=$address MASTER_PORT=$port "$program" "$@" &
    ranks+=($!)
done
forward() { kill -"$1" "${ranks[@]}" 2>/dev/null || true; }
trap 'forward INT' INT
trap 'forward TERM' TERM

code=0
for ((left = processes; left > 0;)); do
    ended='' status=0
    wait -n -p ended "${ranks[@]}" || status=$?
    [ -n "$ended" ] || continue  # a trap interrupted the wait
    left=$((left - 1))
    for i in "${!ranks[@]}"; do
        [ "${ranks[i]}" = "$ended" ] || continue
        rank=$((node * processes + i))
        unset "ranks[i]"
    done
    if [ $status -ne 0 ] && [ $code -eq 0 ]; then
        code=$status
        [ $status -eq 130 ] || [ $status -eq 143 ] || echo "launch.sh: rank $rank ended with exit code $status" >&2
        # The others notice by themselves, after a timeout. Those that stop in order after a signal keep their own time.
        [ $status -eq 130 ] || [ $status -eq 143 ] || { sleep 1; forward KILL; }
    fi
done
exit $code
