#!/usr/bin/env bash
# Trains on TPUs of a GKE cluster: fills in a manifest, creates it, shows the output of worker 0, and deletes it when
# the run has ended.
#
#   launch/gke/run.sh --name=vit --image=IMAGE --accelerator=tpu-v5-lite-podslice --topology=16x16 --claim=runs -- \
#     --config=configs/imagenet_vit.py --workdir=/runs/vit
#   launch/gke/run.sh --name=sweep --sweep=64 --image=IMAGE --accelerator=tpu-v5-lite-podslice --topology=2x2 \
#     --claim=runs -- --config=configs/sweeps/vit.py --workdir=/runs/sweep
#
# Arguments after -- go to train.py (jobset.yaml: a pod on every host of a slice), or with --sweep to python -m
# depthmup_flax sweep (sweep.yaml: independent parts). Requires kubectl with access to the cluster and, for a run,
# JobSet in the cluster (https://jobset.sigs.k8s.io). Dockerfile builds the image.
#
#   --name=NAME            name of the JobSet or Job
#   --image=IMAGE          container image with this code in its working directory
#   --accelerator=TYPE     of the nodes: tpu-v5-lite-podslice, tpu-v5p-slice, tpu-v6e-slice, ...
#   --topology=AxB         chips of the slice along each side; chips / --chips is the number of hosts
#   --chips=C              chips per host; default 4
#   --claim=NAME           persistent volume claim, mounted at /runs, that all pods can write to (ReadWriteMany)
#   --spot                 cheaper nodes that may be preempted at any time
#   --sweep=N              N parts of a sweep, each on one host; --topology is that of one host
#   --max_restarts=R       restarts after crashes, of the run or of each part; default 3
#   --grace=SECONDS        time from SIGTERM to SIGKILL, for the checkpoint; default 120
#   --namespace=NAME       Kubernetes namespace; default: kubectl's
#   --poll=SECONDS         time between queries of the state; default 10
#   --delete=WHEN          ended (default): when the run has ended, successfully or not; always: also when this script is
#                          interrupted, after a checkpoint; never
#   --follow               attach to a run that was started before
#   --dry_run              print the manifest and exit
#
# Interrupting this script stops neither the run nor the costs: it prints what still exists. Exit codes: 0 completed;
# 2 bad input, never retried; 75 interrupted; otherwise that of the crash.
set -euo pipefail
# shellcheck source=/dev/null
. "$(dirname "$0")/../common.sh"

name="" image="" accelerator="" topology="" chips=4 claim="" spot="" sweep="" max_restarts=3 grace=120 poll=10
delete=ended follow="" dry_run=""
kubectl=(kubectl)

while [ $# -gt 0 ] && [ "$1" != -- ]; do
  value=${1#*=}
  case $1 in
    --help | -h)
      show_help
      exit
      ;;
    --name=*) name=$value ;;
    --image=*) image=$value ;;
    --accelerator=*) accelerator=$value ;;
    --topology=*) topology=$value ;;
    --chips=*) chips=$value ;;
    --claim=*) claim=$value ;;
    --spot) spot=1 ;;
    --sweep=*) sweep=$value ;;
    --max_restarts=*) max_restarts=$value ;;
    --grace=*) grace=$value ;;
    --namespace=*) kubectl+=("--namespace=$value") ;;
    --poll=*) poll=$value ;;
    --delete=*) delete=$value ;;
    --follow) follow=1 ;;
    --dry_run) dry_run=1 ;;
    *) fail "unknown option '$1': see --help. Flags of the program go after --." ;;
  esac
  shift
done
[ $# -gt 1 ] || fail "nothing to run: add -- and the program's flags. For example: -- --config=configs/imagenet_vit.py --workdir=/runs/vit."
shift
for option in name image accelerator topology claim; do
  [ -n "${!option}" ] || fail "--$option is not set: see --help."
done
# A Kubernetes label, short enough for pod names: NAME-workers-0-63-abcde.
[[ $name =~ ^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$ ]] ||
  fail "--name=$name: must be at most 40 lower-case letters, digits and -, starting with a letter."
[[ $topology =~ ^[1-9][0-9]*(x[1-9][0-9]*){1,2}$ ]] || fail "--topology=$topology: must be the chips along each side. For example: --topology=4x4."
whole --chips "$chips" 1
whole --max_restarts "$max_restarts" 0
whole --grace "$grace" 0
whole --poll "$poll" 0
one_of --delete "$delete" ended always never
size=$((${topology//x/*}))
[ $((size % chips)) -eq 0 ] || fail "--chips=$chips: must divide the $size chips of --topology=$topology."
hosts=$((size / chips))
kind=jobset program=(python train.py)
if [ -n "$sweep" ]; then
  whole --sweep "$sweep" 1
  [ "$hosts" -eq 1 ] || fail "--topology=$topology is $hosts hosts of $chips chips: a part of a sweep uses one host. For example: --topology=2x2."
  # shellcheck disable=SC2016 # the pod's shell expands it
  kind=job program=(bash -c 'exec python -m depthmup_flax sweep --shard="$JOB_COMPLETION_INDEX/'"$sweep"'" "$@"' sweep)
fi

quoted() { # TEXT: as a JSON string, which is valid YAML
  local text=$1 code octal character escape
  text=${text//\\/\\\\}
  text=${text//\"/\\\"}
  if [[ $text == *[[:cntrl:]]* ]]; then
    for code in {1..31} 127; do
      printf -v octal '%o' "$code"
      printf -v character '%b' "\\0$octal"
      printf -v escape '\\u%04x' "$code"
      text=${text//"$character"/"$escape"}
    done
  fi
  echo "\"$text\""
}

list() { # ARGUMENT...: as a YAML list. Kubernetes replaces $(NAME), and $$ by $, so each $ is doubled
  local text items=""
  for text in "$@"; do
    items+=", $(quoted "${text//\$/\$\$}")"
  done
  echo "[${items#, }]"
}

manifest() {
  local text word values=()
  text=$(cat "$(dirname "$0")/$([ "$kind" = job ] && echo sweep || echo jobset).yaml")
  values=("NAME=$name" "IMAGE=$(quoted "$image")" "ACCELERATOR=$(quoted "$accelerator")" "TOPOLOGY=$topology"
    "CHIPS=$chips" "CLAIM=$(quoted "$claim")" "MAX_RESTARTS=$max_restarts" "GRACE=$grace" "HOSTS=$hosts" "PARTS=$sweep"
    "SPOT=${spot:+cloud.google.com/gke-spot: \"true\"}" "COMMAND=$(list "${program[@]}" "$@")")
  for word in "${values[@]}"; do
    text=${text//"@${word%%=*}@"/"${word#*=}"}
  done
  echo "$text"
}

if [ -n "$dry_run" ]; then
  manifest "$@"
  exit
fi
command -v kubectl >/dev/null || fail "kubectl is not installed: install it and give it access to the cluster."

on_interrupt() {
  trap '' INT TERM
  [ -z "$child" ] || kill -- "-$child" 2>/dev/null || true
  if [ "$delete" = always ]; then
    say "interrupted: the run writes a checkpoint and stops"
    delete_run || true
  else
    say "interrupted: $kind $name still runs and is billed. To attach again, add --follow to the command. To delete it:"
    say "  ${kubectl[*]} delete $kind $name"
  fi
  exit 75
}

delete_run() { # pods get SIGTERM, and --grace seconds
  say "deleting $kind $name"
  if ! "${kubectl[@]}" delete "$kind" "$name" --cascade=foreground --timeout=$((grace + 60))s; then
    say "$kind $name could not be deleted: it may still be billed"
    return 1
  fi
}

first_pod() { # the running pod of worker 0, or nothing
  local label=job-name=$name
  [ "$kind" = job ] || label=jobset.sigs.k8s.io/jobset-name=$name
  "${kubectl[@]}" get pods --selector="$label,batch.kubernetes.io/job-completion-index=0" \
    --field-selector=status.phase=Running --output=name | tail -n 1
}

conditions() { # TYPE=REASON of each condition that holds
  "${kubectl[@]}" get "$kind" "$name" \
    --output='jsonpath={range .status.conditions[?(@.status=="True")]}{.type}={.reason} {end}'
}

crash_code() { # exit code of a crashed pod; 1 if none is left
  local label=job-name=$name codes code
  [ "$kind" = job ] || label=jobset.sigs.k8s.io/jobset-name=$name
  codes=$("${kubectl[@]}" get pods --selector="$label" \
    --output='jsonpath={range .items[*]}{.status.containerStatuses[0].state.terminated.exitCode} {end}' || true)
  for code in $codes; do
    case $code in
      0 | 75 | 143) ;;
      *)
        echo "$code"
        return
        ;;
    esac
  done
  echo 1
}

finish() { # CODE
  local code=$1
  trap - INT TERM
  if [ "$delete" = never ]; then
    say "$kind $name still exists and may be billed (--delete=never)"
  else
    delete_run || [ "$code" -ne 0 ] || code=1
  fi
  exit "$code"
}

if [ -z "$follow" ]; then
  if ! rejected=$(manifest "$@" | "${kubectl[@]}" create --filename=- 2>&1); then
    echo "$rejected" >&2
    case $rejected in
      *AlreadyExists*) fail "a $kind $name already exists: delete it, attach to it with --follow, or use another --name." ;;
      *"no matches for kind"*) fail "JobSet is not installed in the cluster: see https://jobset.sigs.k8s.io/docs/installation." ;;
      *) fail "kubectl could not create $kind $name: see above." ;;
    esac
  fi
  say "$kind $name created"
fi
trap on_interrupt INT TERM
shown="" failures=0
while true; do
  if ! now=$(conditions); then
    # A cluster is unreachable for minutes while its control plane is upgraded.
    failures=$((failures + 1))
    if [ "$failures" -gt 30 ]; then
      say "the cluster cannot be reached: $kind $name may still run and be billed"
      exit 1
    fi
    waiting sleep "$poll"
    continue
  fi
  failures=0
  case " $now" in
    *" Completed="* | *" Complete="*) finish 0 ;;
    *" Failed=FailJobSetFailurePolicyAction"* | *" Failed=PodFailurePolicy"*)
      say "bad input (exit code 2): not retried"
      finish 2
      ;;
    *" Failed="*)
      code=$(crash_code)
      say "crashed with exit code $code: giving up after $max_restarts restarts (--max_restarts)"
      finish "$code"
      ;;
  esac
  pod=$(first_pod || true)
  if [ -n "$pod" ]; then
    options=()
    [ "$pod" != "$shown" ] || options=(--tail=20)
    shown=$pod
    waiting "${kubectl[@]}" logs --follow "$pod" ${options[@]+"${options[@]}"} || true
  fi
  waiting sleep "$poll"
done
