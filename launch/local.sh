#!/usr/bin/env bash
# Runs several processes on this machine, as one training run or as parts of a sweep.
#
#   launch/local.sh 2 --config=configs/digits.py --workdir=runs/digits
#   GPUS=1 launch/local.sh 8 sweep --config=configs/sweeps/digits.py --workdir=runs/sweep
#
# The first argument is the number of processes N. With `sweep`, process i trains part i of N. Further flags go to
# train.py or to depthmup sweep. A single process uses all GPUs of a machine: use several for a sweep, or to test here
# what will run on several hosts.
#
# Environment variables:
#   GPUS=G           process i sees the GPUs G * i to G * i + G - 1
#   CPU_DEVICES=D    D CPU devices in each process
#   LAUNCH_PYTHON    interpreter; default python
#
# Ctrl-C and SIGTERM are forwarded: the processes write checkpoints, and the same command resumes. When one process of a
# run fails, the others get SIGTERM. The exit code is the first one that is not 0.
set -euo pipefail
processes=${1:?usage: launch/local.sh N [sweep] FLAGS; see the head of the script}
[[ $processes =~ ^[1-9][0-9]*$ ]] || { echo "error: '$processes': must be the number of processes." >&2; exit 2; }
shift
python=${LAUNCH_PYTHON:-python}
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
sweep=""
[ "${1:-}" != sweep ] || { sweep=1; shift; }
if [ -n "${CPU_DEVICES:-}" ]; then
  export JAX_PLATFORMS=cpu XLA_FLAGS="${XLA_FLAGS:-} --xla_force_host_platform_device_count=$CPU_DEVICES"
fi

pids=()
trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' TERM INT
for ((i = 0; i < processes; i++)); do
  if [ -n "${GPUS:-}" ]; then
    CUDA_VISIBLE_DEVICES=$(seq -s, $((i * GPUS)) $((i * GPUS + GPUS - 1)))
    export CUDA_VISIBLE_DEVICES
  fi
  if [ -n "$sweep" ]; then
    "$python" -m depthmup_flax sweep "$@" --shard="$i/$processes" &
  else
    JAX_COORDINATOR_ADDRESS="127.0.0.1:$port" JAX_NUM_PROCESSES="$processes" JAX_PROCESS_ID="$i" \
      "$python" "$(dirname "$0")/../train.py" "$@" &
  fi
  pids+=($!)
done

outcome=0
while [ ${#pids[@]} -gt 0 ]; do
  sleep 0.2 || true  # which a signal to the whole group ends, too
  for i in "${!pids[@]}"; do
    kill -0 "${pids[i]}" 2>/dev/null && continue
    code=0
    wait "${pids[i]}" || code=$?
    unset "pids[i]"
    if [ "$code" -ne 0 ] && [ "$outcome" -eq 0 ]; then
      outcome=$code
      [ -n "$sweep" ] || kill -TERM "${pids[@]}" 2>/dev/null || true
    fi
  done
done
exit "$outcome"
