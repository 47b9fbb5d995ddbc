#!/usr/bin/env bash
# Measures what recipes cost against a search, for the table of reproduction/pages/forecasts.md.
#
#   reproduction/recipe/run.sh [NAME ...]      NAME: mlp, gpt, conv; default: all
#
# Searches at 16 and 64 times the compute. Rerunning resumes. The rows of recipes by a ladder's law, in ladders/, are of a
# chooser that the package no longer has.
# Results: results.jsonl; compressed records in reproduction/records/recipe_NAME_COMPUTE-cpu.
# Environment: DATA_DIR is the directory of prepared TFDS data sets, TEXT a text file (Tiny Shakespeare; part of the
# names of its runs).
set -euo pipefail
here=$(dirname "$0")
[ $# -ge 1 ] || set -- mlp gpt conv
for name; do
  for compute in 16 64; do
    records=$here/../records/recipe_${name}_$compute-cpu/records.jsonl
    [ ! -e "$records.gz" ] || gunzip "$records.gz"
    python -m reproduction.recipe.regret "$name" "$compute"
    gzip -n -9 "$records"
  done
done
