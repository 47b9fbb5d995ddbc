#!/usr/bin/env bash
# Runs the sweeps and the limits of the papers' figures one after another. Rerunning resumes an interrupted run.
#
#   reproduction/run.sh SCALE [NAME ...]      SCALE: smoke, cpu, gpu or paper (of the limits, paper has linear_limit and
#                                              diversity only); for residual MLPs
#                                              also long, 20 epochs of a small set; gpu10, three experiments for ten
#                                              minutes each of a large GPU: trained_ends, which_preset, lr_width_depth_conv
#                                              NAME: a file of configs/sweeps or reproduction/configs; default: all
#
# Results go to reproduction/records/<NAME>-<SCALE>: compressed records, tables (report.txt) and figures; a sweep's whole
# report to its folder report. Records are decompressed while a run appends to them.
# Environment: DATA_DIR is the directory of prepared TFDS data sets (default: TFDS's own), TINY_IMAGENET the directory of
# Tiny ImageNet, TEXT a text file (defaults: the paths in the recorded sweep.json, which are part of its runs' names),
# MNIST the name of a data set (default: tfds:mnist).
# On the committed records it trains nothing: they hold every run of the scales cpu and long.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { grep '^#' "$0" | sed 1d; exit 2; }
scale=$1
shift
mlps="lr_width_depth_mlp trained_ends ode_sde pre_nonlin abs block_depth block_multiplier layernorm"
others="digits cifar10 lr_width_depth_conv vit norm other_hparams_momentum other_hparams_gamma0 other_hparams_weight_decay trade_off
  how_long how_long_vit lazy zero_init imagenet lr_width_depth_sgd block_depth_tuned block_depth_heatmap megatron
  megatron_multiplier megatron_largest_rate muon muon_conv muon_gpt schedules hyperball hyperball_zero
  which_exponent_mlp which_exponent_gpt which_exponent_vit which_preset
  ntk linear_kernel linear_limit limit_convergence resmlp_limit training_curve phase_diagram diversity"
[ "$scale" != long ] || others=
[ "$scale" != gpu10 ] || mlps=trained_ends others="which_preset lr_width_depth_conv"
# shellcheck disable=SC2086
[ $# -ge 1 ] || set -- $mlps $others

run_limit() {
  local data=()
  case $name:$scale in
    *:smoke) ;;
    linear_limit:*)
      data=("--config.data.name=${MNIST:-tfds:mnist}")
      [[ ${MNIST:-tfds:mnist} != tfds:* ]] || data+=("--config.data.data_dir=${DATA_DIR:-}")
      ;;
    training_curve:* | diversity:*) data=("--config.data.name=tfds:cifar10" "--config.data.data_dir=${DATA_DIR:-}") ;;
  esac
  python -m reproduction.limits --config="reproduction/configs/limits/$name.py" --config.scale="$scale" --workdir="$workdir" \
    "${data[@]}"
}

run_sweep() {
  local data=() figure figures recorded=
  [ ! -e "$workdir/sweep.json" ] || recorded=$(sed -En 's/^ *"name": "(text|folder):(.*)",?$/\2/p' "$workdir/sweep.json")
  local text=${TEXT:-${recorded:-tinyshakespeare.txt}}
  [ "$scale" != smoke ] || text=README.md
  case $name:$scale in
    megatron* | muon_gpt:* | which_exponent_gpt:* | which_preset:* | stream_dtype:*) data=("--config.base.data.name=text:$text") ;;
    *:smoke | digits:*) ;;
    imagenet:*) data=("--config.base.data.name=folder:${TINY_IMAGENET:-${recorded:-tiny-imagenet-200}}") ;;
    *) data=("--config.base.data.data_dir=${DATA_DIR:-}") ;;
  esac
  local config=configs/sweeps/$name.py
  [ -e "$config" ] || config=reproduction/$config
  python -m depthmup_flax sweep --config="$config" --config.scale="$scale" --workdir="$workdir" \
    "${data[@]}"
  python -m reproduction.claims "$workdir" > "$workdir/report.txt"
  case $name in
    block_depth_heatmap) figures=(heatmap) ;;
    other_hparams* | imagenet) figures=(transfer curves) ;;
    how_long*) figures=(over_time curves) ;;
    trade_off) figures=(parameters) ;;
    schedules | hyperball*) figures=() ;; # both axes at once, which no panel shows
    *) figures=(transfer) ;;
  esac
  for figure in "${figures[@]}"; do cp "$workdir/report/$figure.png" "$workdir/"; done
}

for name in "$@"; do
  echo "== $name"
  workdir=reproduction/records/$name-$scale
  records=$workdir/records.jsonl
  [ ! -e "$records.gz" ] || gunzip "$records.gz"
  if [ -e "reproduction/configs/limits/$name.py" ]; then run_limit; else run_sweep; fi
  gzip -n -9 "$records" # -n: no time in the file, so that the same records give the same bytes
done
