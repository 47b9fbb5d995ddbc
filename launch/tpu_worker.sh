#!/usr/bin/env bash
# The part of tpu_pod.sh that runs on every worker: keeps a program running when the connection ends.
#
#   tpu_worker.sh start [--sweep] PROGRAM...   stops a running program, and starts this one in the background
#   tpu_worker.sh follow [LINE]                shows its output until it ends
#   tpu_worker.sh code [SECONDS]               waits for its end, kills it after SECONDS, and prints code=EXIT_CODE
#   tpu_worker.sh stop                         sends SIGTERM and waits for the checkpoint
#
# With --sweep the program gets --shard=I/N, for worker I of N, and only this worker's chips. Files are in
# ~/depthmup-run.
set -euo pipefail
directory=$HOME/depthmup-run
metadata="http://metadata.google.internal/computeMetadata/v1/instance/attributes"

alive() { # whether the keeper runs, which outlives the program and records its exit code
  [ -f "$directory/keeper" ] && kill -0 "$(cat "$directory/keeper")" 2>/dev/null
}

await_end() { # [SECONDS]
  local end=$((SECONDS + ${1:-999999999}))
  while alive && [ "$SECONDS" -lt "$end" ]; do sleep 0.2; done
  ! alive
}

stop() {
  alive || return 0
  kill -TERM "$(cat "$directory/pid")" 2>/dev/null || true
  await_end "${TPU_STOP_SECONDS:-120}" || kill_now
}

kill_now() {
  kill -KILL "$(cat "$directory/pid")" 2>/dev/null || true
  await_end 10 || true
}

confine_libtpu() { # to the chips of this worker, so that it does not wait for other workers
  local chips bounds
  chips=$(find /dev/ -maxdepth 1 -name 'accel*' | wc -l)
  [ "$chips" -gt 0 ] || [ ! -d /dev/vfio ] || chips=$(find /dev/vfio/ -name '[0-9]*' | wc -l)
  case $chips in
    1) bounds=1,1,1 ;;
    8) bounds=2,4,1 ;;
    *) chips=4 bounds=2,2,1 ;;
  esac
  export TPU_PROCESS_BOUNDS=1,1,1 TPU_CHIPS_PER_PROCESS_BOUNDS=$bounds
  TPU_VISIBLE_CHIPS=$(seq -s, 0 $((chips - 1)))
  export TPU_VISIBLE_CHIPS
}

attribute() {
  curl --silent --fail --header "Metadata-Flavor: Google" "$metadata/$1"
}

case ${1:-} in
  start)
    shift
    arguments=()
    if [ "${1:-}" = --sweep ]; then
      shift
      confine_libtpu
      arguments=("--shard=$(attribute agent-worker-number)/$(attribute worker-network-endpoints | tr , '\n' | grep -c .)")
    fi
    mkdir -p "$directory"
    stop
    rm -f "$directory/code" "$directory/pid"
    setsid nohup bash "$0" keep "$@" ${arguments[@]+"${arguments[@]}"} >>"$directory/log" 2>&1 </dev/null &
    echo $! >"$directory/keeper"
    while alive && [ ! -s "$directory/pid" ]; do sleep 0.1; done
    ;;
  keep) # PROGRAM...: runs it and records its exit code
    shift
    "$@" &
    echo $! >"$directory/pid"
    code=0
    wait $! || code=$?
    echo "$code" >"$directory/code"
    ;;
  follow)
    tail --lines="${2:-+1}" --follow=name --sleep-interval=0.2 --pid="$(cat "$directory/keeper")" "$directory/log"
    ;;
  code)
    await_end "${2:-}" || kill_now
    # A preempted machine records no code.
    echo "code=$(cat "$directory/code" 2>/dev/null || echo 75)"
    ;;
  stop)
    stop
    ;;
  *)
    echo "error: tpu_worker.sh ${1:-}: must be start, follow, code or stop. It is called by tpu_pod.sh." >&2
    exit 2
    ;;
esac
