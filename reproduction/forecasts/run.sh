#!/usr/bin/env bash
# Registers the forecasts of docs/forecast.md, or trains their targets and checks them.
#
#   reproduction/forecasts/run.sh register|check|publish [NAME ...]     results: reproduction/forecasts/NAME.json; reproduction/forecasts/checked.jsonl
#
# Environment: DATA_DIR is the directory of prepared TFDS data sets, TEXT a text file (Tiny Shakespeare), RUNS a directory
# for records and runs (default: runs/forecast).
#
# Ladders with --budget were planned by an earlier planner (widths and depths halved together, one of them again, --axes
# with steps): NAME.json has their rungs.
set -euo pipefail
here=$(dirname "$0")
runs=${RUNS:-runs/forecast}
# name, config, flags
forecasts="
mlp_256x32     mlp  --target.width=256 --target.depth=32 --target.steps=600 --budget=15%
mlp_256x16     mlp  --target.width=256 --target.depth=16 --target.steps=600 --budget=26%
mlp_norm       mlp  --target.width=128 --target.depth=64 --target.steps=600 --budget=37% --config.model.norm=layer
mlp_steps      mlp  --target.width=128 --target.depth=16 --budget=22% --axes=width,depth,steps
conv_128x24    conv --target.width=128 --target.depth=24 --widths=8,16,32 --depths=3,6,12
conv_128x12    conv --target.width=128 --target.depth=12 --widths=8,16,32 --depths=3,4,6
conv_steps     conv --target.width=64 --target.steps=1600 --widths=8,16,32 --steps=50,100,200
gpt_128x16     gpt  --target.width=128 --target.depth=16 --budget=16%
gpt_128x8      gpt  --target.width=128 --target.depth=8 --budget=23%
gpt_steps      gpt  --target.width=64 --target.depth=8 --target.steps=800 --budget=26% --axes=width,depth,steps
mlp_256x48     mlp  --target.width=256 --target.depth=48 --target.steps=600 --widths=8,12,16 --depths=1,2,4 --config.seed=10
mlp_128x28     mlp  --target.width=128 --target.depth=28 --target.steps=600 --widths=8,16,32 --depths=2,4,8 --config.seed=20
mlp_128x32     mlp  --target.width=128 --target.depth=32 --budget=14% --axes=width,depth,steps --config.seed=30
conv_128x25    conv --target.width=128 --target.depth=25 --widths=8,16,24 --depths=3,4,6 --config.seed=10
conv_64x28     conv --target.width=64 --target.depth=28 --widths=16,24,32 --depths=3,4,6 --config.seed=20
gpt_128x19     gpt  --target.width=128 --target.depth=19 --target.steps=100 --widths=8,12,16 --depths=1,2,4 --config.seed=10
gpt_96x16      gpt  --target.width=96 --target.depth=16 --widths=8,12,16 --depths=1,2,4 --config.seed=20
gpt_64x14      gpt  --target.width=64 --target.depth=14 --widths=8,16,32 --depths=1,2,3 --config.seed=30
mlp_512x26     mlp  --target.width=512 --target.depth=26 --target.steps=600 --widths=8,16,32 --depths=1,2,4 --config.seed=40
conv_256x24    conv --target.width=256 --target.depth=24 --widths=8,16,32 --depths=3,4,6 --config.seed=30
gpt_256x17     gpt  --target.width=256 --target.depth=17 --widths=8,16,32 --depths=1,2,4 --config.seed=40
mlp_3124       mlp  --target.width=256 --target.depth=16 --target.steps=3124 --widths=8,16,32 --steps=98,195,390 --config.seed=50
conv_3200      conv --target.width=128 --target.depth=3 --target.steps=3200 --widths=16,24,32 --steps=200,400,800 --config.seed=40
gpt_1600       gpt  --target.width=128 --target.depth=8 --target.steps=1600 --widths=8,16,32 --steps=50,100,200 --config.seed=50
mlp_1562       mlp  --target.width=256 --target.depth=16 --target.steps=1562 --widths=8,16,32 --steps=98,195,390 --config.seed=60
conv_800       conv --target.width=128 --target.depth=6 --target.steps=800 --widths=16,24,32 --steps=100,150,200 --config.seed=50
gpt_800        gpt  --target.width=128 --target.depth=8 --target.steps=800 --widths=8,16,32 --steps=50,100,200 --config.seed=60
gpt_96x8       gpt  --target.width=96 --target.depth=8 --widths=8,16,32 --depths=1,2,4 --config.seed=70
gpt_64x6_400   gpt  --target.width=64 --target.depth=6 --target.steps=400 --widths=8,12,16,20 --config.seed=80
gpt_64x4_600   gpt  --target.width=64 --target.depth=4 --target.steps=600 --widths=8,16,24 --steps=50,100,200 --config.seed=90
gpt_48x6_800   gpt  --target.width=48 --target.depth=6 --target.steps=800 --widths=8,12,24 --steps=50,100,200 --config.seed=100
mlp_128x16_300 mlp  --target.width=128 --target.depth=16 --target.steps=300 --widths=8,16,32 --depths=2,4,8 --config.seed=70
mlp_256x8_400  mlp  --target.width=256 --target.depth=8 --target.steps=400 --widths=8,16,24,32 --config.seed=80
mlp_128x8_1200 mlp  --target.width=128 --target.depth=8 --target.steps=1200 --widths=8,16,32 --steps=75,150,300 --config.seed=90
mlp_192x4_900  mlp  --target.width=192 --target.depth=4 --target.steps=900 --widths=8,16,32 --steps=75,150,300 --config.seed=100
mlp_norm_96x24 mlp  --target.width=96 --target.depth=24 --target.steps=300 --widths=8,16,32 --depths=2,4,8 --config.model.norm=layer --config.seed=110
conv_64x15     conv --target.width=64 --target.depth=15 --widths=8,16,32 --depths=3,4,6 --config.seed=60
mlp_96x20_200  mlp  --target.width=96 --target.depth=20 --target.steps=200 --widths=8,16,32 --depths=2,4,8 --config.seed=120
mlp_192x6_250  mlp  --target.width=192 --target.depth=6 --target.steps=250 --widths=8,16,32,48 --config.seed=130
mlp_norm_160x8 mlp  --target.width=160 --target.depth=8 --target.steps=200 --widths=8,16,32 --depths=1,2,4 --config.model.norm=layer --config.seed=140
gpt_64x10_150  gpt  --target.width=64 --target.depth=10 --target.steps=150 --widths=8,16,32 --depths=1,2,4 --config.seed=110
mlp_norm_96x6  mlp  --target.width=96 --target.depth=6 --target.steps=150 --widths=8,16,24,32 --config.model.norm=layer --config.seed=190
mlp_128x4_150  mlp  --target.width=128 --target.depth=4 --target.steps=150 --widths=8,16,24,32 --config.seed=170
mlp_96x4_600   mlp  --target.width=96 --target.depth=4 --target.steps=600 --widths=8,16,32 --steps=75,150,300 --config.seed=150
mlp_48x4_600   mlp  --target.width=48 --target.depth=4 --target.steps=600 --steps=50,75,100,150 --config.seed=160
gpt_32x2_400   gpt  --target.width=32 --target.depth=2 --target.steps=400 --steps=50,75,100,150 --config.seed=130
mlp_norm_32_800 mlp --target.width=32 --target.depth=6 --target.steps=800 --steps=50,100,150,200 --config.model.norm=layer --config.seed=180
"

register() {
  local data=(--config.data.data_dir="${DATA_DIR:-}")
  [ "$2" != gpt ] || data=(--config.data.name="text:${TEXT:-tinyshakespeare.txt}")
  python -m depthmup_flax forecast --config="$here/$2.py" --workdir="$runs/$1" "${data[@]}" "${@:3}"
  python -m reproduction.forecasts.register "$runs/$1/forecast.json" "$1"
}

check() {
  local started
  started=$(date +%s)
  python -m depthmup_flax train --config="$runs/$1/target.py" --workdir="$runs/$1/target" --config.train.checkpoint=False
  touch "$here/checked.jsonl"
  sed -i "/\"name\": \"$1\",/d" "$here/checked.jsonl"
  python -m depthmup_flax forecast --check="$runs/$1/target" --workdir="$runs/$1" --json |
    sed "s/^{/{\"name\": \"$1\", \"started\": $started, /" >> "$here/checked.jsonl"
}

# Registers, commits, and only then trains: checked.jsonl has the start, in seconds, which is after the committer's time.
publish() {
  register "$@"
  git -C "$here" add "$1.json"
  git -C "$here" commit -qm "The forecast $1 is registered before its target is trained" -- "$1.json"
  check "$1"
}

action=$1
shift
while read -r name config flags; do
  case " ${*:-$name} " in
    # shellcheck disable=SC2086
    *" $name "*) [ -z "$name" ] || "$action" "$name" "$config" $flags < /dev/null ;;
  esac
done <<< "$forecasts"
