#!/usr/bin/env bash
# Runs one task of a Slurm step. srun exits with the highest code of all tasks, so codes are mapped to their severity:
# bad input to 255, a crash below 75 to its code plus 179, preempted is 75, completed 0. slurm_run.sh maps them back.
# Larger codes stay: those of signals are 129 to 159, and srun exits with one if this shell is killed, too. 143, a
# program that SIGTERM ended before its handler was installed, counts as preempted.
#
#   srun bash launch/slurm_task.sh python train.py --config=...
set -euo pipefail
trap : TERM # Slurm signals all processes of a task: the program handles it, this shell waits
code=0
"$@" || code=$?
if [ "$code" -eq 2 ]; then
  code=255
elif [ "$code" -eq 143 ]; then
  code=75
elif [ "$code" -gt 0 ] && [ "$code" -lt 75 ]; then
  code=$((code + 179))
fi
exit "$code"
