#!/usr/bin/env bash
# Runs one task of a Slurm step. srun's exit code is the highest of all tasks, so the most important is made the highest:
# bad input 255, a crash with a code below 75 that code plus 100, preempted 75, ended 0. slurm_run.sh undoes it.
# A program that SIGTERM ends before it is ready for it (143) is preempted, too.
#
#   srun bash launch/slurm_task.sh python train.py --config=...
set -euo pipefail
trap : TERM # Slurm signals all processes of a task: the program decides, this waits for it
code=0
"$@" || code=$?
if [ "$code" -eq 2 ]; then
  code=255
elif [ "$code" -eq 143 ]; then
  code=75
elif [ "$code" -gt 0 ] && [ "$code" -lt 75 ]; then
  code=$((code + 100))
fi
exit "$code"
