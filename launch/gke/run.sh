#!/usr/bin/env bash
# Trains on TPUs of a GKE cluster: fills in a manifest, applies it, shows the output of the first worker, and deletes it
# when the run has ended.
#
#   launch/gke/run.sh --name=vit --image=IMAGE --accelerator=tpu-v5-lite-podslice --topology=16x16 --claim=runs -- \
#     --config=configs/imagenet_vit.py --workdir=/runs/vit
#   launch/gke/run.sh --name=sweep --sweep=64 --image=IMAGE --accelerator=tpu-v5-lite-podslice --topology=2x2 \
#     --claim=runs -- --config=configs/sweeps/vit.py --workdir=/runs/sweep
#
# What follows -- goes to train.py (jobset.yaml: a pod on every host of a slice), or with --sweep to python -m
# depthmup_flax.sweep (sweep.yaml: parts that know nothing of each other). It needs kubectl with access to the cluster,
# and for a run JobSet there (https://jobset.sigs.k8s.io). Dockerfile makes the image.
#
#   --name=NAME            of the JobSet or Job
#   --image=IMAGE          with this code at its working directory
#   --accelerator=TYPE     of the nodes: tpu-v5-lite-podslice, tpu-v5p-slice, tpu-v6e-slice, ...
#   --topology=AxB         of the slice; its chips by --chips are the hosts
#   --chips=C              of a host; default 4
#   --claim=NAME           a persistent volume claim, mounted at /runs, that all pods can write (ReadWriteMany)
#   --spot                 nodes that are cheaper and may be preempted at any time
#   --sweep=N              N parts of a sweep, each on a host of its own; the topology is one host's
#   --max_restarts=R       so often is a crash tried again (in a sweep, each part's); default 3
#   --grace=SECONDS        from SIGTERM to SIGKILL, for the checkpoint; default 120
#   --namespace=NAME       default: kubectl's
#   --poll=SECONDS         between looks; default 10
#   --delete=WHEN          ended (default): when the run has ended, well or not; always: also when this script is
#                          interrupted, after a checkpoint; never
#   --follow               the run has been started before: shows it again
#   --dry_run              prints the manifest
#
# The run goes on if this script is interrupted, and so do the costs: it says what still exists. Exit code: 0 ended;
# 2 bad input, which is never tried again; 75 interrupted; else the crash's.
set -euo pipefail

name="" image="" accelerator="" topology="" chips=4 claim="" spot="" sweep="" max_restarts=3 grace=120 poll=10
delete=ended follow="" dry_run=""
kubectl=(kubectl)

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
    *) fail "unknown option '$1': see --help; flags of the program come after --." ;;
  esac
  shift
done
[ $# -gt 1 ] || fail "nothing to run: write -- and then the program's flags, such as -- --config=configs/imagenet_vit.py --workdir=/runs/vit."
shift
for option in name image accelerator topology claim; do
  [ -n "${!option}" ] || fail "--$option is not set: see --help."
done
# A label of Kubernetes, short enough for the names of pods: NAME-workers-0-63-abcde.
[[ $name =~ ^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$ ]] ||
  fail "--name=$name: use at most 40 small letters, digits and -, beginning with a letter."
[[ $topology =~ ^[1-9][0-9]*(x[1-9][0-9]*){1,2}$ ]] || fail "--topology=$topology: use chips along each side, such as 4x4."
whole --chips "$chips" 1
whole --max_restarts "$max_restarts" 0
whole --grace "$grace" 0
whole --poll "$poll" 0
case $delete in
  ended | always | never) ;;
  *) fail "--delete=$delete: use ended, always or never." ;;
esac
size=$((${topology//x/*}))
[ $((size % chips)) -eq 0 ] || fail "--chips=$chips does not divide the $size chips of --topology=$topology."
hosts=$((size / chips))
kind=jobset program=(python train.py)
if [ -n "$sweep" ]; then
  whole --sweep "$sweep" 1
  [ "$hosts" -eq 1 ] || fail "--topology=$topology is $hosts hosts of $chips chips: a part of a sweep has one, such as --topology=2x2."
  # shellcheck disable=SC2016 # the pod's shell is to replace it
  kind=job program=(bash -c 'exec python -m depthmup_flax.sweep --shard="$JOB_COMPLETION_INDEX/'"$sweep"'" "$@"' sweep)
fi

quoted() { # a JSON string, which YAML understands
  local text=$1
  text=${text//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  text=${text//$'\t'/\\t}
  echo "\"$text\""
}

list() { # of arguments; Kubernetes would replace $(NAME) in them
  local text found="" open="\$("
  for text in "$@"; do
    found+=", $(quoted "${text//"$open"/"\$$open"}")"
  done
  echo "[${found#, }]"
}

manifest() {
  local text word values=()
  text=$(cat "$(dirname "$0")/$([ "$kind" = job ] && echo sweep || echo jobset).yaml")
  values=("NAME=$name" "IMAGE=$(quoted "$image")" "ACCELERATOR=$accelerator" "TOPOLOGY=$topology" "CHIPS=$chips"
    "CLAIM=$claim" "MAX_RESTARTS=$max_restarts" "GRACE=$grace" "HOSTS=$hosts" "PARTS=$sweep"
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
command -v kubectl >/dev/null || fail "kubectl is not installed."

child=""
on_interrupt() {
  trap '' INT TERM
  [ -z "$child" ] || kill -- "-$child" 2>/dev/null || true
  if [ "$delete" = always ]; then
    say "interrupted: the run writes a checkpoint and ends"
    delete_run || true
  else
    say "interrupted, but $kind $name exists, runs on, and costs. See it again: the same command with --follow. End it:"
    say "  ${kubectl[*]} delete $kind $name"
  fi
  exit 75
}

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

delete_run() { # pods get SIGTERM, and --grace seconds
  say "deleting $kind $name"
  if ! "${kubectl[@]}" delete "$kind" "$name" --cascade=foreground --timeout=$((grace + 60))s; then
    say "$kind $name could not be deleted: it may still exist, and cost"
    return 1
  fi
}

first_pod() { # the running pod of worker 0, or nothing
  local label=job-name=$name
  [ "$kind" = job ] || label=jobset.sigs.k8s.io/jobset-name=$name
  "${kubectl[@]}" get pods --selector="$label,batch.kubernetes.io/job-completion-index=0" \
    --field-selector=status.phase=Running --output=name | tail -n 1
}

conditions() { # TYPE=REASON of those that hold
  "${kubectl[@]}" get "$kind" "$name" \
    --output='jsonpath={range .status.conditions[?(@.status=="True")]}{.type}={.reason} {end}'
}

crash_code() { # of a pod that crashed, as far as one is left
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
    say "$kind $name still exists (--delete=never)"
  else
    delete_run || [ "$code" -ne 0 ] || code=1
  fi
  exit "$code"
}

if [ -z "$follow" ]; then
  if ! refused=$(manifest "$@" | "${kubectl[@]}" create --filename=- 2>&1); then
    echo "$refused" >&2
    case $refused in
      *AlreadyExists*) fail "a $kind $name exists already: delete it, see it with --follow, or choose another --name." ;;
      *"no matches for kind"*) fail "the cluster has no JobSet: see https://jobset.sigs.k8s.io/docs/installation." ;;
      *) fail "kubectl could not create $kind $name: see above." ;;
    esac
  fi
  say "$kind $name created"
fi
trap on_interrupt INT TERM
shown="" failures=0
while true; do
  if ! now=$(conditions); then
    # The cluster's own upgrades make it unreachable for minutes.
    failures=$((failures + 1))
    if [ "$failures" -gt 30 ]; then
      say "the cluster cannot be reached; $kind $name may still exist, and cost"
      exit 1
    fi
    waiting sleep "$poll"
    continue
  fi
  failures=0
  case " $now" in
    *" Completed="* | *" Complete="*) finish 0 ;;
    *" Failed=FailJobSetFailurePolicyAction"* | *" Failed=PodFailurePolicy"*)
      say "bad input (exit code 2), not tried again"
      finish 2
      ;;
    *" Failed="*)
      code=$(crash_code)
      say "crashed with exit code $code, not tried again after $max_restarts restarts (--max_restarts)"
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
