#!/usr/bin/env bash
# Measures what recipes cost against a search, for the table of docs/forecast.md.
#
#   reproduction/recipe/run.sh [NAME ...]      NAME: mlp, gpt, conv; default: all
#
# A ladder for each network, unless ladders/NAME has it, then searches at 16 and 64 times the compute. Rerunning resumes.
# Results: results.jsonl; compressed records in reproduction/records/recipe_NAME_COMPUTE-cpu.
# Environment: DATA_DIR is the directory of prepared TFDS data sets, TEXT a text file (Tiny Shakespeare; part of the
# names of its runs), RUNS a directory for records of ladders (default: runs/recipe).
set -euo pipefail
here=$(dirname "$0")
runs=${RUNS:-runs/recipe}
[ $# -ge 1 ] || set -- mlp gpt conv
for name; do
  data=(--config.data.data_dir="${DATA_DIR:-}")
  case $name in
    mlp) ladder=(--axes=width,depth,steps --budget=20% --target.width=96 --target.depth=12 --target.steps=5000) ;;
    gpt)
      data=(--config.data.name="text:${TEXT:-tinyshakespeare.txt}")
      ladder=(--widths=8,12,16 --steps=50,100,200 --target.width=48 --target.steps=1600)
      ;;
    conv) ladder=(--widths=16,24,32 --steps=75,150,300 --target.width=96 --target.steps=2000) ;;
  esac
  registered=$here/ladders/$name
  if [ ! -e "$registered/forecast.json" ]; then
    python -m depthmup_flax forecast --config="$here/$name.py" --workdir="$runs/$name" --seeds=2 --lanes=1 "${data[@]}" "${ladder[@]}"
    mkdir -p "$registered"
    cp "$runs/$name/forecast.json" "$registered"
  fi
  for compute in 16 64; do
    records=$here/../records/recipe_${name}_$compute-cpu/records.jsonl
    [ ! -e "$records.gz" ] || gunzip "$records.gz"
    python "$here/regret.py" "$name" "$compute" "$registered"
    gzip -n -9 "$records"
  done
done
