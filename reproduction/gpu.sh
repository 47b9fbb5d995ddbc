#!/usr/bin/env bash
# Runs B24's Figures 2 to 6 and TP6's 10 to 13 on one GPU, in an hour of an H200. Each call ends after some minutes and
# saves its state; rerunning it continues, in the middle of a run if need be.
#
#   reproduction/gpu.sh [--seconds=600] [FIGURE ...]    FIGURE: a name of --plan; default: all, those that are doubted first
#   reproduction/gpu.sh --plan                          prints figures, configs, scales and minutes that are expected
#
# The exit code is 0 if all is done, 75 if work is left for another call, 1 if a figure failed; others go on.
#
# Environment:
#   OUT      directory of records and reports (default: runs/gpu)
#   DATA_DIR directory of prepared TFDS data sets with CIFAR-10 (default: TFDS's own)
#   PYTHON   the interpreter (default: python); it should have JAX for CUDA. benchmarks/gpu.sh installs what is missing
#   TINY=1   tiny sizes, synthetic data; needs no GPU
set -euo pipefail
cd "$(dirname "$0")/.."
readonly AGAIN=75 TO_SAVE=30
readonly out=${OUT:-runs/gpu} python=${PYTHON:-python} tiny=${TINY:-}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
# Name, config, scale, minutes: the lower bounds of the plans in pages/reproduction.md times 1.5, the ratio of measured
# steps to them (pages/performance.md), and a minute to compile; of limits, guessed.
readonly plan="\
tp6-fig10 lr_width_depth_mlp gpu10 11
tp6-fig11 ode_sde gpu 4
tp6-fig12 layernorm gpu 8
tp6-fig13 block_multiplier gpu 3
b24-fig4a other_hparams_momentum gpu 2
b24-fig4b other_hparams_gamma0 gpu 2
b24-fig2 norm gpu 10
b24-fig3 vit gpu 14
b24-fig6 ntk gpu 3
b24-fig5 limit_convergence gpu 5"

narrowed() { # FIGURE: flags that leave out of its grids what takes long, one a line
  local grid
  case $1 in
    tp6-fig10) # with frozen ends, block_only and mup repeat depth_mup's and sp's runs
      for grid in depths widths; do echo "--config.grids.$grid.parametrization.preset=('depth_mup', 'sp')"; done
      echo "--config.grids.widths.model.width=(256,)"
      ;;
    b24-fig2) for grid in scaled unscaled; do echo "--config.grids.$grid.model.depth=(8, 16, 32)"; done ;;
    b24-fig3) for grid in norms cosine; do echo "--config.grids.$grid.model.depth=(4, 8, 16)"; done ;;
  esac
}

train() { # FIGURE CONFIG SCALE SECONDS: resumes
  local workdir=$out/$1 flags=() path=configs/sweeps/$2.py
  local limited=(timeout --signal=TERM --kill-after="$TO_SAVE" "$4" "$python" -m)
  if [ -e "reproduction/configs/limits/$2.py" ]; then
    "${limited[@]}" reproduction.limits --config="reproduction/configs/limits/$2.py" --config.scale="$3" --workdir="$workdir"
    return
  fi
  [ -e "$path" ] || path=reproduction/$path
  if [ -z "$tiny" ]; then
    mapfile -t flags < <(narrowed "$1")
    flags+=("--config.base.data.data_dir=${DATA_DIR:-}")
  fi
  "${limited[@]}" depthmup_flax sweep --config="$path" --config.scale="$3" --workdir="$workdir" "${flags[@]}" ||
    return # `set -e` does not hold where a caller asks for the status
  "$python" -m reproduction.claims "$workdir" >"$workdir/report.txt"
}

seconds=600
names=()
for word in "$@"; do
  case $word in
    --seconds=*[!0-9]* | --seconds=) echo "error: $word: give a whole number of seconds, such as --seconds=600." >&2; exit 2 ;;
    --seconds=*) seconds=${word#*=} ;;
    --plan) printf '%s\n' "figure config scale minutes" "$plan" | column -t; exit ;;
    -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "reproduction/gpu.sh"; exit 2 ;;
    *)
      grep -q "^$word " <<<"$plan" || { echo "error: $word is no figure: see reproduction/gpu.sh --plan." >&2; exit 2; }
      names+=("$word")
      ;;
  esac
done

failed=
mkdir -p "$out"
while read -r name config scale minutes; do
  [ ${#names[@]} -eq 0 ] || [[ " ${names[*]} " == *" $name "* ]] || continue
  [ ! -e "$out/$name/done" ] || continue
  left=$((seconds - SECONDS - TO_SAVE))
  [ "$left" -gt 0 ] || { echo "the time is over before $name: run the same command again"; exit "$AGAIN"; }
  [ -z "$tiny" ] || scale=smoke
  echo "== $name: $config at $scale, about $minutes minutes in all; at most $left s now"
  status=0
  (train "$name" "$config" "$scale" "$left") >>"$out/$name.log" 2>&1 </dev/null || status=$?
  case $status in
    0) touch "$out/$name/done" ;;
    75 | 124 | 143) echo "$name is not done: run the same command again"; exit "$AGAIN" ;;
    *) failed=1; echo "$name failed with exit code $status:"; tail -n 5 "$out/$name.log" ;;
  esac
done <<<"$plan"
[ -z "$failed" ] || exit 1
echo "done: records and reports are in $out"
