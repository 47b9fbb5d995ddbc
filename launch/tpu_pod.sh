#!/usr/bin/env bash
# Trains on all workers of a Cloud TPU pod: copies the last commit, installs the package, starts train.py in
# the background, and shows the output of worker 0.
#
#   gcloud compute tpus queued-resources create vit --node-id=vit --zone=us-west4-a --accelerator-type=v5litepod-256 \
#     --runtime-version=v2-alpha-tpuv5-lite --spot
#   launch/tpu_pod.sh vit --zone=us-west4-a -- --config=configs/imagenet_vit.py --workdir=gs://my-bucket/vit
#   launch/tpu_pod.sh vit --zone=us-west4-a follow       # shows the output again
#   launch/tpu_pod.sh vit --zone=us-west4-a stop         # SIGTERM: the run writes a checkpoint and exits
#   gcloud compute tpus queued-resources delete vit --zone=us-west4-a --force
#
# Flags after -- go to train.py; options before it (--zone, --project, ...) go to gcloud. --workdir is a bucket or a
# directory that all workers share. The run continues when this script is interrupted. After a preemption, create the
# pod again, copy the data to its disks again, and rerun the command: the run resumes.
set -euo pipefail
name=${1:?usage: launch/tpu_pod.sh NAME --zone=ZONE -- FLAGS OF train.py; see the head of the script}
shift
options=()
while [[ ${1:-} == --?* ]]; do
  options+=("$1")
  shift
done

on_workers() { # WORKERS COMMAND
  gcloud compute tpus tpu-vm ssh "$name" "${options[@]}" --worker="$1" --command="$2"
}

# shellcheck disable=SC2016 # the workers' shells expand it
case ${1:-} in
  --) ;;
  follow)
    on_workers 0 'tail --lines=+1 --follow --pid="$(cat run.pid)" run.log'
    exit
    ;;
  stop)
    on_workers all 'kill -TERM "$(cat run.pid)" && tail --follow --lines=0 --pid="$(cat run.pid)" run.log'
    exit
    ;;
  *)
    echo "error: '${1:-}': must be -- and the flags of train.py, follow or stop." >&2
    exit 2
    ;;
esac
shift
cd "$(dirname "$0")/.."
archive=$(mktemp)
trap 'rm -f "$archive"' EXIT
git archive --output="$archive" --format=tar.gz HEAD
gcloud compute tpus tpu-vm scp "$archive" "$name:depthmup.tar.gz" "${options[@]}" --worker=all
on_workers all "mkdir -p depthmup && tar -xzf depthmup.tar.gz -C depthmup && python3 -m pip install -q uv &&
  python3 -m uv venv -q --allow-existing --python 3.12 venv && python3 -m uv pip install -q --python venv/bin/python './depthmup[tpu,buckets,tfds]'"
on_workers all "cd depthmup && { setsid nohup ../venv/bin/python train.py $(printf '%q ' "$@") >>../run.log 2>&1 </dev/null & echo \$! >../run.pid; }"
exec "$0" "$name" "${options[@]}" follow
