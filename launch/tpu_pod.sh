#!/usr/bin/env bash
# Trains on a Cloud TPU pod: requests it, copies this code there, runs it on all workers, shows the output of the first,
# requests the pod again when it was preempted, and deletes it when the run has ended.
#
#   launch/tpu_pod.sh --name=vit --zone=us-west4-a --accelerator=v5litepod-256 --spot --setup="$(cat setup.sh)" -- \
#     --config=configs/imagenet_vit.py --workdir=/mnt/runs/vit
#
# What follows -- goes to train.py, or with --sweep to python -m depthmup_flax.sweep. --workdir must be the same storage
# on all workers, and outlive them: mount it in --setup.
#
#   --name=NAME           of the queued resource and of the TPU
#   --zone=ZONE           where
#   --project=PROJECT     default: gcloud's
#   --accelerator=TYPE    such as v5litepod-256
#   --runtime=VERSION     of the TPU's software; default v2-alpha-tpuv5-lite, that of v5e
#   --spot                cheaper, may be preempted at any time
#   --setup=COMMAND       run on every new worker, in the copy of this code; default: Python 3.12 and this package in ~/venv
#   --python=FILE         the interpreter there; default ~/venv/bin/python
#   --program=FILE        a Python file there, run with the same flags
#   --sweep               worker i of N trains part i of N of a sweep, on its own chips
#   --max_restarts=R      so often is a crash tried again, on the same pod; default 3
#   --requests=N          so often in a row may a request for a pod fail; default 20
#   --poll=SECONDS        between looks at the pod's state; default 30
#   --delete=WHEN         ended (default): when the run has ended, well or not; always: also when this script is
#                         interrupted, after a checkpoint; never
#   --follow              the run has been started before: shows it again, and goes on from there
#
# The program goes on if this script is interrupted, and so do the costs: it says what still exists. Exit code: 0 ended;
# 2 bad input, which is never tried again; 75 interrupted; else the crash's.
set -euo pipefail

name="" zone="" project="" accelerator="" runtime=v2-alpha-tpuv5-lite spot="" python="" program=train.py sweep=""
max_restarts=3 requests=20 poll=30 delete=ended follow=""
# shellcheck disable=SC2016
setup='python3 -m pip install -q uv && python3 -m uv venv -q --allow-existing --python 3.12 ~/venv &&
  python3 -m uv pip install -q --python ~/venv/bin/python ".[tpu]"'

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
    --name=*) name=$value ;;
    --zone=*) zone=$value ;;
    --project=*) project=$value ;;
    --accelerator=*) accelerator=$value ;;
    --runtime=*) runtime=$value ;;
    --spot) spot=1 ;;
    --setup=*) setup=$value ;;
    --python=*) python=$value ;;
    --program=*) program=$value ;;
    --sweep) sweep=1 ;;
    --max_restarts=*) max_restarts=$value ;;
    --requests=*) requests=$value ;;
    --poll=*) poll=$value ;;
    --delete=*) delete=$value ;;
    --follow) follow=1 ;;
    *) fail "unknown option '$1': see --help; flags of the program come after --." ;;
  esac
  shift
done
[ $# -gt 1 ] || fail "nothing to run: write -- and then the program's flags, such as -- --config=configs/imagenet_vit.py --workdir=/mnt/runs/vit."
shift
for option in name zone accelerator; do
  [ -n "${!option}" ] || fail "--$option is not set: see --help."
done
whole --max_restarts "$max_restarts" 0
whole --requests "$requests" 1
whole --poll "$poll" 0
case $delete in
  ended | always | never) ;;
  *) fail "--delete=$delete: use ended, always or never." ;;
esac
command -v gcloud >/dev/null || fail "gcloud is not installed: get the Google Cloud CLI."
cd "$(dirname "$0")/.."
git rev-parse --is-inside-work-tree >/dev/null 2>&1 || fail "$PWD is not a git checkout: its files tell what to copy."

where=("--zone=$zone" "--quiet")
[ -z "$project" ] || where+=("--project=$project")
quoted() { printf '%q ' "$@"; }
command="${python:-\$HOME/venv/bin/python} "
if [ -n "$sweep" ] && [ "$program" = train.py ]; then
  command+="-m depthmup_flax.sweep "
else
  command+="$(quoted "$program")"
fi
command+=$(quoted "$@")
scratch=$(mktemp -d "${TMPDIR:-/tmp}/depthmup-launch.XXXXXX")
code=0 # of the program
child=""

on_interrupt() {
  trap '' INT TERM
  [ -z "$child" ] || kill -- "-$child" 2>/dev/null || true
  if [ "$delete" = always ] && pod_exists; then
    say "interrupted: the run writes a checkpoint and ends"
    on_workers all "bash depthmup/launch/tpu_worker.sh stop" || true
    delete_pod
  elif pod_exists; then
    say "interrupted, but $name in $zone exists, runs on, and costs. See it again: the same command with --follow. End it:"
    say "  gcloud compute tpus queued-resources delete $name ${where[*]} --force"
  fi
  exit 75
}
trap on_interrupt INT TERM
trap 'rm -rf "$scratch"' EXIT

waiting() { # a command whose end this shell awaits without being deaf to signals; it ends with all that it has started
  local status=0
  set -m
  "$@" </dev/null &
  child=$!
  set +m
  wait "$child" || status=$?
  child=""
  return "$status"
}

on_workers() { # WORKERS COMMAND
  waiting gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker="$1" --ssh-flag="-o ServerAliveInterval=30" \
    --command="$2"
}

state() { # NONE, PREEMPTED, or what the queued resource says: ACTIVE, WAITING_FOR_RESOURCES, FAILED, SUSPENDED, ...
  local found
  if ! found=$(gcloud compute tpus queued-resources describe "$name" "${where[@]}" --format="value(state.state)" 2>&1); then
    case $found in
      *NOT_FOUND* | *"not found"* | *"not exist"*) echo NONE ;;
      *) echo "UNKNOWN ($(echo "$found" | tail -n 1))" ;;
    esac
    return
  fi
  if [ "$found" = ACTIVE ]; then
    case $(gcloud compute tpus tpu-vm describe "$name" "${where[@]}" --format="value(state)" 2>&1) in
      PREEMPTED | TERMINATED | STOPPED | *NOT_FOUND*) found=PREEMPTED ;;
    esac
  fi
  echo "$found"
}

pod_exists() {
  [ "$(state)" != NONE ]
}

delete_pod() {
  say "deleting $name"
  if ! gcloud compute tpus queued-resources delete "$name" "${where[@]}" --force; then
    say "$name in $zone could not be deleted: it may still exist, and cost"
    return 1
  fi
}

request_pod() { # whether a request was accepted; a wrong one ends the script
  local output options=()
  [ -z "$spot" ] || options+=(--spot)
  if output=$(gcloud compute tpus queued-resources create "$name" "${where[@]}" --node-id="$name" \
    --accelerator-type="$accelerator" --runtime-version="$runtime" ${options[@]+"${options[@]}"} 2>&1); then
    return 0
  fi
  case $output in
    *RESOURCE_EXHAUSTED* | *UNAVAILABLE* | *INTERNAL* | *"no more capacity"* | *ALREADY_EXISTS*) ;;
    *)
      echo "$output" >&2
      fail "gcloud refused the request for $accelerator in $zone: see above."
      ;;
  esac
  say "no pod: $(echo "$output" | tail -n 1)"
  return 1
}

get_pod() { # waits until the pod is there; sets $new if it was not before
  local now="" last="" failed=0
  new=""
  while true; do
    now=$(state)
    [ "$now" = "$last" ] || say "$name: $now"
    last=$now
    case $now in
      ACTIVE) return ;;
      NONE)
        new=1
        request_pod || failed=$((failed + 1))
        ;;
      FAILED | SUSPENDED | PREEMPTED)
        [ "$now" != FAILED ] || failed=$((failed + 1))
        delete_pod || failed=$((failed + 1))
        ;;
      UNKNOWN*) failed=$((failed + 1)) ;;
      *) new=1 ;; # in the queue, or on its way out
    esac
    if [ "$failed" -ge "$requests" ]; then
      say "no pod after $failed failures (--requests)"
      code=1
      finish
    fi
    waiting sleep "$poll"
  done
}

prepare_workers() {
  local file bundle=$scratch/code.tgz
  git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
    tar --null --create --gzip --file="$bundle" --files-from=- || return 1
  waiting gcloud compute tpus tpu-vm scp "$bundle" "$name:depthmup-code.tgz" "${where[@]}" --worker=all || return 1
  on_workers all "mkdir -p depthmup && tar -xzf depthmup-code.tgz -C depthmup && cd depthmup && {
$setup
}"
}

follow_program() { # shows output until the program ends; sets $code. Fails if the workers cannot be reached.
  local number lines=+1 seconds=60
  [ -z "$sweep" ] || seconds="" # the parts of a sweep end when they end, the workers of a run together
  [ -z "$follow" ] || lines=20
  follow=""
  on_workers 0 "bash depthmup/launch/tpu_worker.sh follow $lines" || return 1
  on_workers all "bash depthmup/launch/tpu_worker.sh code $seconds" >"$scratch/codes" || return 1
  code=0
  while read -r number; do
    case $number in
      0) ;;
      2) code=2 ;;
      75 | 143) [ "$code" -ne 0 ] || code=75 ;;
      *) [ "$code" -eq 2 ] || code=$number ;;
    esac
  done < <(sed -n 's/.*code=\([0-9][0-9]*\).*/\1/p' "$scratch/codes")
}

run_once() { # on a pod that is there. Fails if the workers cannot be reached, or --setup fails.
  if [ -n "$new" ] || { [ -z "$prepared" ] && [ -z "$follow" ]; }; then
    prepared="" follow=""
    prepare_workers || return 1
    prepared=1
  fi
  if [ -z "$follow" ]; then
    on_workers all "cd depthmup && bash launch/tpu_worker.sh start ${sweep:+--sweep} $command" || return 1
  fi
  follow_program
}

finish() { # with $code
  trap - INT TERM
  if [ "$delete" = never ]; then
    say "$name in $zone still exists, and costs (--delete=never)"
  elif pod_exists; then
    delete_pod || [ "$code" -ne 0 ] || code=1
  fi
  exit "$code"
}

crashes=0 unreachable=0 prepared=""
while true; do
  get_pod
  if ! run_once; then
    # Preempted, most likely, and the state says so soon; else it is the network, or --setup that fails.
    [ "$(state)" = ACTIVE ] || continue
    unreachable=$((unreachable + 1))
    if [ "$unreachable" -gt "$max_restarts" ]; then
      say "the workers cannot be reached or prepared, see above; not tried again (--max_restarts)"
      code=1
      finish
    fi
    waiting sleep "$poll"
    continue
  fi
  unreachable=0
  case $code in
    0 | 2) finish ;;
    75) say "preempted (exit code 75), running again" ;;
    *)
      if [ "$crashes" -ge "$max_restarts" ]; then
        say "crashed with exit code $code; not tried again after $max_restarts restarts (--max_restarts)"
        finish
      fi
      crashes=$((crashes + 1))
      say "crashed with exit code $code; restart $crashes of $max_restarts"
      ;;
  esac
done
