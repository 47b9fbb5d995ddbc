#!/usr/bin/env bash
# The part of tpu_pod.sh that runs on every worker: a program that outlives the connection that started it.
#
#   tpu_worker.sh start [--sweep] PROGRAM...   ends what runs here, and starts the program in the background
#   tpu_worker.sh follow                       shows its output until it ends
#   tpu_worker.sh code [SECONDS]               waits for its end, ends it after so long, and prints code=ITS EXIT CODE
#   tpu_worker.sh stop                         asks it to write a checkpoint and end, and waits for that
#
# --sweep gives the program --shard=I/N, worker I of N, and the chips of this worker alone. Files are in ~/depthmup-run.
set -euo pipefail
directory=$HOME/depthmup-run
metadata="http://metadata.google.internal/computeMetadata/v1/instance/attributes"

alive() { # the program, or whoever is to note its exit code
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
  await_end "${TPU_STOP_SECONDS:-120}" || end_now
}

end_now() {
  kill -KILL "$(cat "$directory/pid")" 2>/dev/null || true
  await_end 10 || true
}

alone() { # what confines libtpu to this worker of a pod: a process that waits for no other
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
      alone
      arguments=("--shard=$(attribute agent-worker-number)/$(attribute worker-network-endpoints | tr , '\n' | grep -c .)")
    fi
    mkdir -p "$directory"
    stop
    rm -f "$directory/code" "$directory/pid"
    setsid nohup bash "$0" keep "$@" ${arguments[@]+"${arguments[@]}"} >>"$directory/log" 2>&1 </dev/null &
    echo $! >"$directory/keeper"
    while alive && [ ! -s "$directory/pid" ]; do sleep 0.1; done
    ;;
  keep) # PROGRAM...: runs it and notes its exit code
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
    await_end "${2:-}" || end_now
    # None is written if the machine went down with the program: preempted.
    echo "code=$(cat "$directory/code" 2>/dev/null || echo 75)"
    ;;
  stop)
    stop
    ;;
  *)
    echo "error: tpu_worker.sh ${1:-}: tpu_pod.sh calls it with start, follow, code or stop." >&2
    exit 2
    ;;
esac
