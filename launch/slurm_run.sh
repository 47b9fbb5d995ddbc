#!/usr/bin/env bash
# Runs a Python program as a step of this Slurm job, and requeues the job depending on the exit code. Called by
# slurm.sbatch and slurm_array.sbatch.
#
#   bash launch/slurm_run.sh train.py --config=... --workdir=...
set -euo pipefail
[ -n "${SLURM_JOB_ID:-}" ] || { echo "error: this is not a Slurm job: submit with sbatch launch/slurm.sbatch." >&2; exit 2; }
max_restarts=${MAX_RESTARTS:-3}
[[ $max_restarts =~ ^[0-9]+$ ]] || { echo "error: MAX_RESTARTS is '$max_restarts': must be a whole number." >&2; exit 2; }

# The last task of an array has the array's number as its job id, which would name all tasks.
job=$SLURM_JOB_ID
[ -z "${SLURM_ARRAY_JOB_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID

say() {
  echo "launch: job $job: $1" >&2
}

requeue() {
  scontrol requeue "$job"
  exit 0
}

# The number of crashes is kept in the job's comment, which survives requeueing. SLURM_RESTART_COUNT counts preemptions
# too.
crashes() {
  local comment
  comment=$(squeue --noheader --jobs="$job" --format=%k)
  [[ $comment =~ crashes=([0-9]+) ]] && echo "${BASH_REMATCH[1]}" || echo 0
}

# By default JAX uses one GPU per Slurm task, that of the task's number on the node. A task alone on its node uses all.
if [ "${SLURM_GPUS_ON_NODE:-0}" -gt 1 ] && [ "${SLURM_NTASKS:-1}" -eq "${SLURM_NNODES:-1}" ]; then
  JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((SLURM_GPUS_ON_NODE - 1)))
  export JAX_LOCAL_DEVICE_IDS
fi

# A signal to this shell, not only to the step, means that Slurm cancels or requeues the job itself.
ended_by_slurm=""
trap 'ended_by_slurm=1' TERM INT
srun --kill-on-bad-exit=1 bash launch/slurm_task.sh "${LAUNCH_PYTHON:-python}" "$@" &
step=$!
code=0
wait "$step" || code=$?
while kill -0 "$step" 2>/dev/null; do # the trap interrupted the wait
  code=0
  wait "$step" || code=$?
done
if [ "$code" -eq 255 ]; then # see slurm_task.sh
  code=2
elif [ "$code" -ge 180 ] && [ "$code" -le 253 ]; then
  code=$((code - 179))
fi

if [ "$code" -eq 0 ] || [ "$code" -eq 2 ] || [ -n "$ended_by_slurm" ]; then
  exit "$code"
fi
if [ "$code" -eq 75 ]; then
  say "preempted (exit code 75): requeued"
  requeue
fi
count=$(($(crashes) + 1))
if [ "$count" -gt "$max_restarts" ]; then
  say "crashed with exit code $code: giving up after $max_restarts restarts (MAX_RESTARTS)"
  exit "$code"
fi
say "crashed with exit code $code: requeued, restart $count of $max_restarts"
scontrol update "JobId=$job" "Comment=crashes=$count"
requeue
