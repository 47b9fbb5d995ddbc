#!/usr/bin/env bash
# Trains on a Cloud TPU pod: requests the pod, copies this code to it, runs it on all workers, shows the output of
# worker 0, requests a new pod after a preemption, and deletes the pod when the run has ended.
#
#   launch/tpu_pod.sh --name=vit --zone=us-west4-a --accelerator=v5litepod-256 --spot --setup="$(cat setup.sh)" -- \
#     --config=configs/imagenet_vit.py --workdir=/mnt/runs/vit
#
# Arguments after -- go to train.py, or with --sweep to python -m depthmup_flax sweep. --workdir must be storage that
# all workers share and that outlives them: a bucket (gs://my-bucket/vit), or what --setup mounts.
#
#   --name=NAME           name of the queued resource and of the TPU
#   --zone=ZONE           Google Cloud zone
#   --project=PROJECT     Google Cloud project; default: gcloud's
#   --accelerator=TYPE    for example v5litepod-256
#   --runtime=VERSION     TPU software version; default v2-alpha-tpuv5-lite, for v5e
#   --spot                cheaper, may be preempted at any time
#   --setup=COMMAND       run once on every new worker, in the copy of this code; default: installs Python 3.12 and this
#                         package in ~/venv
#   --python=FILE         interpreter on the workers; default ~/venv/bin/python
#   --program=FILE        Python file on the workers to run instead, with the same flags
#   --sweep               worker i of N trains part i of N of a sweep, on its own chips
#   --max_restarts=R      restarts after crashes, on the same pod; default 3
#   --requests=N          give up after N failed requests for a pod in a row; default 20
#   --poll=SECONDS        time between queries of the pod's state; default 30
#   --delete=WHEN         ended (default): when the run has ended, successfully or not; always: also when this script is
#                         interrupted, after a checkpoint; never
#   --follow              attach to a run that was started before
#
# Interrupting this script stops neither the program nor the costs: it prints what still exists. Exit codes: 0
# completed; 2 bad input, never retried; 75 interrupted; otherwise that of the crash.
set -euo pipefail
# shellcheck source=/dev/null
. "$(dirname "$0")/common.sh"

name="" zone="" project="" accelerator="" runtime=v2-alpha-tpuv5-lite spot="" python="" program=train.py sweep=""
max_restarts=3 requests=20 poll=30 delete=ended follow=""
# shellcheck disable=SC2016
setup='python3 -m pip install -q uv && python3 -m uv venv -q --allow-existing --python 3.12 ~/venv &&
  python3 -m uv pip install -q --python ~/venv/bin/python ".[tpu,buckets]"'

while [ $# -gt 0 ] && [ "$1" != -- ]; do
  value=${1#*=}
  case $1 in
    --help | -h)
      show_help
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
    *) fail "unknown option '$1': see --help. Flags of the program go after --." ;;
  esac
  shift
done
[ $# -gt 1 ] || fail "nothing to run: add -- and the program's flags. For example: -- --config=configs/imagenet_vit.py --workdir=/mnt/runs/vit."
shift
for option in name zone accelerator; do
  [ -n "${!option}" ] || fail "--$option is not set: see --help."
done
whole --max_restarts "$max_restarts" 0
whole --requests "$requests" 1
whole --poll "$poll" 0
one_of --delete "$delete" ended always never
command -v gcloud >/dev/null || fail "gcloud is not installed: install the Google Cloud CLI."
cd "$(dirname "$0")/.."
git rev-parse --is-inside-work-tree >/dev/null 2>&1 || fail "$PWD is not a git checkout: only a checkout can be copied to the pod."

where=("--zone=$zone" "--quiet")
[ -z "$project" ] || where+=("--project=$project")
quoted() { printf '%q ' "$@"; }
python=${python:-"~/venv/bin/python"}
# shellcheck disable=SC2088 # the worker's home directory
case $python in
  "~/"* | "\$HOME/"*) command="\$HOME/$(quoted "${python#*/}")" ;;
  *) command=$(quoted "$python") ;;
esac
if [ -n "$sweep" ] && [ "$program" = train.py ]; then
  command+="-m depthmup_flax sweep "
else
  command+="$(quoted "$program")"
fi
command+=$(quoted "$@")
scratch=$(mktemp -d "${TMPDIR:-/tmp}/depthmup-launch.XXXXXX")
code=0 # exit code of the program

on_interrupt() {
  trap '' INT TERM
  [ -z "$child" ] || kill -- "-$child" 2>/dev/null || true
  if [ "$delete" = always ] && pod_exists; then
    say "interrupted: the run writes a checkpoint and stops"
    on_workers all "bash depthmup/launch/tpu_worker.sh stop" || true
    delete_pod
  elif pod_exists; then
    say "interrupted: $name in $zone still runs and is billed. To attach again, add --follow to the command. To delete it:"
    say "  gcloud compute tpus queued-resources delete $name ${where[*]} --force"
  fi
  exit 75
}
trap on_interrupt INT TERM
trap 'rm -rf "$scratch"' EXIT

on_workers() { # WORKERS COMMAND
  waiting gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker="$1" --ssh-flag="-o ServerAliveInterval=30" \
    --command="$2"
}

state() { # NONE, PREEMPTED, or the state of the queued resource: ACTIVE, WAITING_FOR_RESOURCES, FAILED, SUSPENDED, ...
  local current
  if ! current=$(gcloud compute tpus queued-resources describe "$name" "${where[@]}" --format="value(state.state)" 2>&1); then
    case $current in
      *NOT_FOUND* | *"not found"* | *"not exist"*) echo NONE ;;
      *) echo "UNKNOWN ($(echo "$current" | tail -n 1))" ;;
    esac
    return
  fi
  if [ "$current" = ACTIVE ]; then
    case $(gcloud compute tpus tpu-vm describe "$name" "${where[@]}" --format="value(state)" 2>&1) in
      PREEMPTED | TERMINATED | STOPPED | *NOT_FOUND*) current=PREEMPTED ;;
    esac
  fi
  echo "$current"
}

pod_exists() {
  [ "$(state)" != NONE ]
}

delete_pod() {
  say "deleting $name"
  if ! gcloud compute tpus queued-resources delete "$name" "${where[@]}" --force; then
    say "$name in $zone could not be deleted: it may still be billed"
    return 1
  fi
}

request_pod() { # fails if no pod is available; exits if the request is invalid
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
      fail "gcloud rejected the request for $accelerator in $zone: see above."
      ;;
  esac
  say "no pod: $(echo "$output" | tail -n 1)"
  return 1
}

get_pod() { # waits for the pod; sets $new if it did not exist before
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
      *) new=1 ;; # in the queue, or being deleted
    esac
    if [ "$failed" -ge "$requests" ]; then
      say "no pod after $failed failed requests (--requests)"
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

follow_program() { # shows output until the program ends; sets $code. Fails if the workers are unreachable.
  local number lines=+1 seconds=60
  [ -z "$sweep" ] || seconds="" # parts of a sweep end independently, the workers of a run together
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

run_once() { # on an existing pod. Fails if the workers are unreachable or --setup fails.
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

finish() { # exits with $code
  trap - INT TERM
  if [ "$delete" = never ]; then
    say "$name in $zone still exists and is billed (--delete=never)"
  elif pod_exists; then
    delete_pod || [ "$code" -ne 0 ] || code=1
  fi
  exit "$code"
}

crashes=0 unreachable=0 prepared=""
while true; do
  get_pod
  if ! run_once; then
    # Most likely a preemption, which the state will show. Otherwise the network or --setup fails.
    [ "$(state)" = ACTIVE ] || continue
    unreachable=$((unreachable + 1))
    if [ "$unreachable" -gt "$max_restarts" ]; then
      say "the workers cannot be reached or set up, see above: giving up after $max_restarts retries (--max_restarts)"
      code=1
      finish
    fi
    waiting sleep "$poll"
    continue
  fi
  unreachable=0
  case $code in
    0 | 2) finish ;;
    75) say "preempted (exit code 75): restarting" ;;
    *)
      if [ "$crashes" -ge "$max_restarts" ]; then
        say "crashed with exit code $code: giving up after $max_restarts restarts (--max_restarts)"
        finish
      fi
      crashes=$((crashes + 1))
      say "crashed with exit code $code: restart $crashes of $max_restarts"
      ;;
  esac
done
