#!/usr/bin/env bash
# Runs several processes on this machine, as one training run or as parts of a sweep, and restarts them after a crash.
#
#   launch/local.sh --processes=2 --devices=2 -- --config=configs/digits.py --workdir=runs/digits
#   launch/local.sh --sweep --processes=8 --gpus=1 -- --config=configs/sweeps/vit.py --workdir=runs/sweep
#
# Arguments after -- go to train.py, or with --sweep to python -m depthmup_flax sweep. A single process uses all GPUs of
# a machine: use several for a sweep, or to test here what will run on several hosts.
#
#   --processes=N      number of processes; with --sweep process i trains part i of N
#   --sweep            independent parts of a sweep, each restarted alone
#   --devices=D        D CPU devices per process
#   --gpus=G           G GPUs per process, from CUDA_VISIBLE_DEVICES or from all
#   --max_restarts=R   restarts after crashes, of the run or of each part; default 3
#   --grace=S          seconds from the end of one process to SIGTERM for the others, and then to SIGKILL; default 30
#   --logs=DIR         output of all processes but the first; default: a temporary directory, deleted on success
#   --program=FILE     Python file to run instead, with the same flags
#   --python=FILE      interpreter; default python
#
# SIGTERM and Ctrl-C are forwarded: the run writes a checkpoint, and the same command resumes it. A second kills it.
# Exit codes: 0 completed; 2 bad input, never retried; 75 preempted, run the command again; otherwise that of the crash.
set -euo pipefail
# shellcheck source=/dev/null
. "$(dirname "$0")/common.sh"

processes="" sweep="" devices="" gpus="" max_restarts=3 grace=30 logs="" program="" python=python

while [ $# -gt 0 ] && [ "$1" != -- ]; do
  value=${1#*=}
  case $1 in
    --help | -h)
      show_help
      exit
      ;;
    --processes=*) processes=$value ;;
    --sweep) sweep=1 ;;
    --devices=*) devices=$value ;;
    --gpus=*) gpus=$value ;;
    --max_restarts=*) max_restarts=$value ;;
    --grace=*) grace=$value ;;
    --logs=*) logs=$value ;;
    --program=*) program=$value ;;
    --python=*) python=$value ;;
    *) fail "unknown option '$1': see --help. Flags of the program go after --." ;;
  esac
  shift
done
[ $# -gt 1 ] || fail "nothing to run: add -- and the program's flags. For example: -- --config=configs/digits.py --workdir=runs/digits."
shift
[ -n "$processes" ] || fail "--processes is not set: give a number. For example: --processes=2."
whole --processes "$processes" 1
whole --max_restarts "$max_restarts" 0
whole --grace "$grace" 0
[ -z "$devices" ] || whole --devices "$devices" 1
[ -z "$gpus" ] || whole --gpus "$gpus" 1
[ -z "$devices" ] || [ -z "$gpus" ] || fail "--devices and --gpus are both set: use one. --devices is for the CPU."
command -v "$python" >/dev/null || fail "--python=$python is not a program: it must be a Python interpreter."

if [ -n "$program" ]; then
  [ -f "$program" ] || fail "--program=$program is not a file: it must be a Python file."
  run=("$python" "$program" "$@")
elif [ -n "$sweep" ]; then
  run=("$python" -m depthmup_flax sweep "$@")
else
  run=("$python" "$(dirname "$0")/../train.py" "$@")
fi
visible=()
if [ -n "$gpus" ] && [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
  IFS=, read -ra visible <<<"$CUDA_VISIBLE_DEVICES"
elif [ -n "$gpus" ]; then
  read -ra visible <<<"$(seq -s ' ' 0 $((processes * gpus - 1)))"
fi
[ -z "$gpus" ] || [ ${#visible[@]} -ge $((processes * gpus)) ] ||
  fail "--processes=$processes with --gpus=$gpus needs more GPUs: CUDA_VISIBLE_DEVICES has ${#visible[@]}."

temporary=""
if [ -z "$logs" ]; then
  logs=$(mktemp -d "${TMPDIR:-/tmp}/depthmup-launch.XXXXXX")
  temporary=1
fi
mkdir -p "$logs" 2>/dev/null || fail "--logs=$logs cannot be created: use another directory."

# Per process: its id while it lives, its exit code afterwards, its number of crashes. ended: processes that ended
# since the last poll. outcome: the most severe exit code (bad input, then a crash, then a preemption).
pids=() codes=() crashes=() ended=() outcome=0
signals=0 forwarded=0 ending="" port=""
trap 'signals=$((signals + 1))' TERM INT HUP
trap 'kill_all' EXIT

exec_process() { # becomes process $1
  if [ -n "$devices" ]; then
    export JAX_PLATFORMS=cpu
    export XLA_FLAGS="${XLA_FLAGS:-} --xla_force_host_platform_device_count=$devices"
  elif [ -n "$gpus" ]; then
    CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${visible[*]:$(($1 * gpus)):gpus}")
    export CUDA_VISIBLE_DEVICES
  fi
  if [ -n "$sweep" ]; then
    exec "${run[@]}" --shard="$1/$processes"
  elif [ "$processes" -eq 1 ]; then
    exec "${run[@]}"
  fi
  exec "${run[@]}" --coordinator="127.0.0.1:$port" --num_processes="$processes" --process_id="$1"
}

start() {
  set -m # a process group each, so that its children can be killed with it
  if [ "$1" -eq 0 ]; then
    exec_process "$1" </dev/null &
  else
    exec_process "$1" </dev/null >>"$logs/process-$1.log" 2>&1 &
  fi
  pids[$1]=$!
  set +m
}

free_port() {
  "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

living() {
  [ -n "$(IFS=; echo "${pids[*]}")" ]
}

terminate_all() {
  local pid
  for pid in "${pids[@]}"; do
    [ -z "$pid" ] || kill -TERM "$pid" 2>/dev/null || true
  done
}

kill_all() {
  local pid
  ending=1
  for pid in ${pids[@]+"${pids[@]}"}; do
    [ -z "$pid" ] || kill -KILL -- "-$pid" 2>/dev/null || true
  done
}

poll() { # waits a little, forwards signals, and fills $ended
  local i code
  sleep 0.2
  if [ "$signals" -gt 1 ]; then
    kill_all
  elif [ "$signals" -gt "$forwarded" ]; then
    say "stopping, waiting for checkpoints; a second signal kills the processes"
    terminate_all
    forwarded=$signals
  fi
  ended=()
  for i in "${!pids[@]}"; do
    if [ -n "${pids[i]}" ] && ! kill -0 "${pids[i]}" 2>/dev/null; then
      code=0
      wait "${pids[i]}" 2>/dev/null || code=$?
      # Ended by SIGTERM before its handler was installed, or killed by this script: preempted.
      if [ "$code" -eq 143 ] || { [ -n "$ending" ] && [ "$code" -eq 137 ]; }; then code=75; fi
      kill -KILL -- "-${pids[i]}" 2>/dev/null || true # its children
      pids[i]="" codes[i]=$code
      ended+=("$i")
      [ "$code" -eq 0 ] || [ "$code" -eq 75 ] || report "$i" "$code"
    fi
  done
}

report() { # PROCESS CODE
  say "process $1 exited with code $2"
  [ "$1" -eq 0 ] || tail -n 20 "$logs/process-$1.log" | sed "s/^/[process $1] /" >&2
}

severity() {
  case $1 in
    0) echo 0 ;;
    75) echo 1 ;;
    2) echo 3 ;;
    *) echo 2 ;;
  esac
}

note() { # CODE: becomes the outcome if it is more severe
  [ "$(severity "$1")" -le "$(severity "$outcome")" ] || outcome=$1
}

should_restart() { # NAME CODE CRASHES
  [ "$signals" -eq 0 ] || return 1
  case $(severity "$2") in
    1) say "$1 was preempted (exit code 75): restarting" ;;
    2)
      if [ "$3" -ge "$max_restarts" ]; then
        say "$1 crashed: giving up after $max_restarts restarts (--max_restarts)"
        return 1
      fi
      say "$1 crashed: restart $(($3 + 1)) of $max_restarts"
      ;;
    *) return 1 ;;
  esac
}

finish() {
  trap - EXIT
  if [ -n "$temporary" ] && { [ "$outcome" -eq 0 ] || [ "$processes" -eq 1 ]; }; then
    rm -rf "$logs"
  elif [ "$processes" -gt 1 ]; then
    say "output of the other processes: $logs/process-*.log"
  fi
  exit "$outcome"
}

run_once() { # starts all processes and waits until they have ended
  local i deadline=""
  outcome=0 ending="" port=$(free_port)
  for ((i = 0; i < processes; i++)); do start "$i"; done
  while living; do
    poll
    for i in ${ended[@]+"${ended[@]}"}; do
      note "${codes[i]}"
    done
    [ "$outcome" -eq 0 ] || deadline=${deadline:-$((SECONDS + grace))}
    if [ -n "$deadline" ] && [ "$SECONDS" -ge "$deadline" ]; then
      if [ -z "$ending" ]; then
        ending=1 deadline=$((SECONDS + grace))
        terminate_all
      else
        kill_all
      fi
    fi
  done
}

run_together() {
  local count=0
  run_once
  while should_restart "the run" "$outcome" "$count"; do
    [ "$outcome" -eq 75 ] || count=$((count + 1))
    run_once
  done
}

run_parts() {
  local i
  for ((i = 0; i < processes; i++)); do
    crashes[i]=0
    start "$i"
  done
  while living; do
    poll
    for i in ${ended[@]+"${ended[@]}"}; do
      if should_restart "part $i" "${codes[i]}" "${crashes[i]}"; then
        [ "${codes[i]}" -eq 75 ] || crashes[i]=$((crashes[i] + 1))
        start "$i"
      else
        note "${codes[i]}"
      fi
    done
  done
}

[ "$processes" -eq 1 ] || say "output of processes 1 to $((processes - 1)): $logs/process-*.log"
if [ -n "$sweep" ]; then
  run_parts
else
  run_together
fi
finish
