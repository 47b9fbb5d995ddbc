#!/usr/bin/env bash
# Runs the papers' figures, sweeps and limits, one after another; goes on where it was interrupted.
#
#   docs/reproduction.sh SCALE [NAME ...]      SCALE: smoke, cpu, gpu or paper (sweeps only)
#                                              NAME: a file of configs/sweeps or configs/limits
#
# Records, tables and figures go to docs/reproduction/<NAME>-<SCALE>, everything of a sweep's report to its folder report.
# DATA_DIR is where TFDS sets are prepared (default: TFDS's own), TINY_IMAGENET and TEXT are the paths of Tiny ImageNet's
# directory and of a text file, MNIST is a data set's name (default: tfds:mnist).
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { grep '^#' "$0" | sed 1d; exit 2; }
scale=$1
shift
[ $# -ge 1 ] || set -- lr_width_depth_mlp lr_width_depth_conv vit norm other_hparams_momentum other_hparams_gamma0 \
  other_hparams_weight_decay trade_off how_long imagenet ode_sde pre_nonlin abs block_depth block_depth_heatmap \
  block_multiplier layernorm megatron megatron_multiplier \
  ntk linear_kernel linear_limit limit_convergence phase_diagram diversity

for name in "$@"; do
  data=()
  if [ -e "configs/limits/$name.py" ]; then
    if [ "$scale" != smoke ]; then
      case $name in
        linear_limit) data=("--config.data.name=${MNIST:-tfds:mnist}" "--config.data.data_dir=${DATA_DIR:-}") ;;
        diversity) data=("--config.data.name=tfds:cifar10" "--config.data.data_dir=${DATA_DIR:-}") ;;
      esac
    fi
    echo "== $name"
    python -m depthmup_flax.limits --config="configs/limits/$name.py" --config.scale="$scale" \
      --workdir="docs/reproduction/$name-$scale" "${data[@]}"
    continue
  fi
  if [ "$scale" != smoke ]; then
    case $name in
      megatron*) data=("--config.base.data.name=text:${TEXT:-tinyshakespeare.txt}") ;;
      imagenet) data=("--config.base.data.name=folder:${TINY_IMAGENET:-tiny-imagenet-200}") ;;
      *) data=("--config.base.data.data_dir=${DATA_DIR:-}") ;;
    esac
  elif [[ $name == megatron* ]]; then
    data=("--config.base.data.name=text:README.md")
  fi
  echo "== $name"
  workdir=docs/reproduction/$name-$scale
  python -m depthmup_flax.sweep --config="configs/sweeps/$name.py" --config.scale="$scale" --workdir="$workdir" "${data[@]}"
  python -m depthmup_flax.report "$workdir" | sed "/^written:/,\$d" > "$workdir/report.txt"
  case $name in
    block_depth_heatmap) figures=(heatmap) ;;
    other_hparams*) figures=(transfer curves) ;;
    how_long) figures=(over_time curves) ;;
    trade_off) figures=(parameters) ;;
    imagenet) figures=(transfer curves) ;;
    *) figures=(transfer) ;;
  esac
  for figure in "${figures[@]}"; do cp "$workdir/report/$figure.png" "$workdir/"; done
done
