#!/usr/bin/env bash
# Starts several processes on this machine as one run, or the parts of a sweep, and starts them again after a crash.
#
#   launch/local.sh --processes=2 --devices=2 -- --config=configs/digits.py --workdir=runs/digits
#   launch/local.sh --sweep --processes=8 --gpus=1 -- --config=configs/sweeps/vit.py --workdir=runs/sweep
#
# What follows -- goes to train.py, or with --sweep to python -m depthmup_flax.sweep. One process uses all GPUs of a
# machine: for one run several are for trying things out, for a sweep they are parts that know nothing of each other.
#
#   --processes=N      how many; with --sweep process i trains part i of N
#   --sweep            parts of a sweep, each started again by itself
#   --devices=D        each has D devices on the CPU
#   --gpus=G           each has G GPUs: of CUDA_VISIBLE_DEVICES, or of all
#   --max_restarts=R   after a crash all start again (in a sweep, that part), at most so often; default 3
#   --grace=S          when one has ended, others have S seconds to end, and S more after SIGTERM; default 30
#   --logs=DIR         for the output of all but the first; default: a temporary directory, deleted after success
#   --program=FILE     runs this Python file, with the same flags
#   --python=FILE      the interpreter; default python
#
# SIGTERM and Ctrl-C are passed on: the run writes a checkpoint, and the same command resumes it. A second Ctrl-C ends
# it at once. Exit code: 0 ended; 2 bad input, which is never tried again; 75 preempted, run it again; else the crash's.
set -euo pipefail

processes="" sweep="" devices="" gpus="" max_restarts=3 grace=30 logs="" program="" python=python

fail() {
  echo "error: $1" >&2
  exit 2
}

say() {
  echo "launch: $1" >&2
}

whole() { # NAME VALUE SMALLEST
  if ! [[ $2 =~ ^[0-9]{1,9}$ ]] || [ "$2" -lt "$3" ]; then
    fail "$1=$2: use a whole number of at least $3."
  fi
}

while [ $# -gt 0 ] && [ "$1" != -- ]; do
  value=${1#*=}
  case $1 in
    --help | -h)
      awk 'NR > 1 && !/^#/ {exit} NR > 1 {sub(/^# ?/, ""); print}' "$0"
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
    *) fail "unknown option '$1': see --help; flags of the program come after --." ;;
  esac
  shift
done
[ $# -gt 1 ] || fail "nothing to run: write -- and then the program's flags, such as -- --config=configs/digits.py --workdir=runs/digits."
shift
[ -n "$processes" ] || fail "--processes is not set: say how many, such as --processes=2."
whole --processes "$processes" 1
whole --max_restarts "$max_restarts" 0
whole --grace "$grace" 0
[ -z "$devices" ] || whole --devices "$devices" 1
[ -z "$gpus" ] || whole --gpus "$gpus" 1
[ -z "$devices" ] || [ -z "$gpus" ] || fail "--devices and --gpus: choose one, devices are on the CPU."
command -v "$python" >/dev/null || fail "--python=$python is not a program: name an interpreter."

if [ -n "$program" ]; then
  [ -f "$program" ] || fail "--program=$program is not a file: name a Python file."
  run=("$python" "$program" "$@")
elif [ -n "$sweep" ]; then
  run=("$python" -m depthmup_flax.sweep "$@")
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
  fail "--processes=$processes with --gpus=$gpus: CUDA_VISIBLE_DEVICES has only ${#visible[@]}."

temporary=""
if [ -z "$logs" ]; then
  logs=$(mktemp -d "${TMPDIR:-/tmp}/depthmup-launch.XXXXXX")
  temporary=1
fi
mkdir -p "$logs" 2>/dev/null || fail "--logs=$logs cannot be created: choose another directory."

# Of each process: its id while it lives, its exit code afterwards, how often it crashed. Those that ended since the
# last look. The gravest exit code that is not mended by a new start: bad input, then a crash, then a preemption.
pids=() codes=() crashes=() ended=() outcome=0
signals=0 passed_on=0 ending="" port=""
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
  set -m # a process group each, so that what a process has started can be ended with it
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

look() { # waits a little, passes signals on, and fills $ended
  local i code
  sleep 0.2
  if [ "$signals" -gt 1 ]; then
    kill_all
  elif [ "$signals" -gt "$passed_on" ]; then
    say "told to end, waiting for checkpoints; once more ends it at once"
    terminate_all
    passed_on=$signals
  fi
  ended=()
  for i in "${!pids[@]}"; do
    if [ -n "${pids[i]}" ] && ! kill -0 "${pids[i]}" 2>/dev/null; then
      code=0
      wait "${pids[i]}" 2>/dev/null || code=$?
      # Ended by SIGTERM before it was ready for it, or from here: as with 75, nothing is lost.
      if [ "$code" -eq 143 ] || { [ -n "$ending" ] && [ "$code" -eq 137 ]; }; then code=75; fi
      kill -KILL -- "-${pids[i]}" 2>/dev/null || true # what it has left behind
      pids[i]="" codes[i]=$code
      ended+=("$i")
      [ "$code" -eq 0 ] || [ "$code" -eq 75 ] || tell "$i" "$code"
    fi
  done
}

tell() { # PROCESS CODE
  say "process $1 ended with exit code $2"
  [ "$1" -eq 0 ] || tail -n 20 "$logs/process-$1.log" | sed "s/^/[process $1] /" >&2
}

gravity() {
  case $1 in
    0) echo 0 ;;
    75) echo 1 ;;
    2) echo 3 ;;
    *) echo 2 ;;
  esac
}

note() { # the exit code $1 is the outcome, unless a graver one is, or one as grave that came earlier
  [ "$(gravity "$1")" -le "$(gravity "$outcome")" ] || outcome=$1
}

try_again() { # NAME CODE CRASHES: whether something that ended so starts again; says it
  [ "$signals" -eq 0 ] || return 1
  case $(gravity "$2") in
    1) say "$1 was preempted (exit code 75), starting again" ;;
    2)
      if [ "$3" -ge "$max_restarts" ]; then
        say "$1 is not tried again after $max_restarts restarts (--max_restarts)"
        return 1
      fi
      say "$1 crashed, restart $(($3 + 1)) of $max_restarts"
      ;;
    *) return 1 ;;
  esac
  sleep 1
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

run_once() { # all processes, until they have ended
  local i deadline=""
  outcome=0 ending="" port=$(free_port)
  for ((i = 0; i < processes; i++)); do start "$i"; done
  while living; do
    look
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
  while try_again "the run" "$outcome" "$count"; do
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
    look
    for i in ${ended[@]+"${ended[@]}"}; do
      if try_again "part $i" "${codes[i]}" "${crashes[i]}"; then
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
