#!/usr/bin/env bash
# Measures and tests this package on one GPU, in ten minutes: whole training steps beside PyTorch and plain Flax, the
# tests marked gpu, and the sweep of the papers' first figure. A stage that fails or takes too long does not stop the next.
#
#   benchmarks/gpu.sh [RESULTS]       summary.md, logs and results go to RESULTS (default: gpu-results). Rerunning measures
#                                     and tests again, and continues the sweep. On a GPU the table and its figure also go
#                                     to benchmarks/results and reproduction/pages/performance.md
#   benchmarks/gpu.sh wheels FOLDER   collects what is installed, where there is a network, for a machine without one
#   benchmarks/gpu.sh install RESULTS only installs, in RESULTS/env, if something is missing
#
# Environment:
#   PYTHON   the interpreter (default: python3); it should have JAX for CUDA, and PyTorch to compare with. What else is
#            missing is installed
#   WHEELS   a folder to install from instead of the network, made with the same version of Python
#   EXTRAS   extras of this package beside train and report, separated by spaces, such as cuda12 (default: none)
#   DATA_DIR prepared TFDS data sets with CIFAR-10 (default: synthetic images of its size)
#   TINY=1   tiny sizes; needs no GPU
#
# The exit code is 0 if every stage passed; a sweep whose time is over has passed.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly LIMIT=600
python=${PYTHON:-python3}
tiny=${TINY:-}
IFS=' ' read -ra extras <<<"train report ${EXTRAS:-}"

usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$PWD/benchmarks/gpu.sh"
  exit 2
}

requirements() { # one a line: those of the package, of its extras and of the tests
  "$python" - "${extras[@]}" <<'END'
import sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
of_extras = [one for extra in sys.argv[1:] for one in project["optional-dependencies"][extra]]
own = [one for one in project["dependencies"] + of_extras if not one.startswith(project["name"])]
print(*own, "pytest>=8", "pytest-xdist>=3.7", sep="\n")
END
}

install() { # RESULTS
  local source=()
  requirements >"$1/requirements.txt"
  "$python" -m pip --isolated install --quiet --dry-run --no-index --requirement "$1/requirements.txt" && return
  "$python" -m venv --system-site-packages "$1/env"
  [ -z "${WHEELS:-}" ] || source=(--no-index --find-links "$WHEELS")
  "$1/env/bin/python" -m pip install "${source[@]}" --requirement "$1/requirements.txt"
}

stage() { # NAME SECONDS COMMAND...
  local name=$1 limit=$2 left=$((LIMIT - SECONDS)) started=$SECONDS status=0 result=passed
  shift 2
  [ "$limit" -le "$left" ] || limit=$left
  echo "== $name, at most $limit s: tail -f $results/$name.log"
  if [ "$limit" -lt 5 ]; then
    status=1 result="not run: no time is left"
  else
    timeout --kill-after=20 "$limit" "$@" >"$results/$name.log" 2>&1 </dev/null || status=$?
    case $status in
      0) ;;
      124 | 137) result="stopped after $limit s" ;;
      *) result="failed with exit code $status" ;;
    esac
  fi
  [ "$name:$status" != sweep:124 ] || { status=0 result="$result; rerun this script to continue"; }
  echo "| $name | $result | $((SECONDS - started)) |" >>"$summary"
  [ "$status" -eq 0 ] || { failed=1; tail -n 5 "$results/$name.log" || true; }
}

case "${1:-}" in
  -h | --help) usage ;;
  wheels)
    [ $# -eq 2 ] || usage
    requirements | "$python" -m pip wheel --wheel-dir "$2" --requirement /dev/stdin # builds what has no wheel
    exit
    ;;
  install)
    [ $# -eq 2 ] || usage
    install "$2"
    exit
    ;;
esac

device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) || device=
[ -n "$device" ] || [ -n "$tiny" ] || { echo "nvidia-smi names no GPU. TINY=1 tries the script on a CPU."; exit 2; }
mkdir -p "${1:-gpu-results}"
results=$(cd "${1:-gpu-results}" && pwd)
summary=$results/summary.md
failed=0
# The frameworks and the tests share the memory; without a platform's name JAX would fall back on the CPU.
export XLA_PYTHON_CLIENT_PREALLOCATE=false JAX_PLATFORMS=${device:+cuda,}cpu
export PYTHONPATH=$PWD JAX_COMPILATION_CACHE_DIR=$results/compiled
printf '# %s, %s\n\n| stage | result | seconds |\n|---|---|---|\n' "${device:-a CPU, tiny sizes}" "$(date +%F)" >"$summary"

stage install 120 benchmarks/gpu.sh install "$results"
[ ! -x "$results/env/bin/python" ] || python=$results/env/bin/python

sweep=(--config=reproduction/configs/sweeps/lr_width_depth_mlp.py --workdir="$results/sweep")
if [ -n "$tiny" ]; then
  table=$results/steps.json
  steps=(--quick --rounds=3 --out="$table")
  sweep+=(--config.scale=smoke)
else
  table=benchmarks/results/gpu-$(tr '[:upper:]' '[:lower:]' <<<"$device" | grep -oE '[a-z0-9]+' | paste -sd-).json
  steps=(--out="$table")
  sweep+=(--config.scale=gpu)
  if [ -n "${DATA_DIR:-}" ]; then
    sweep+=(--config.base.data.data_dir="$DATA_DIR")
  else
    sweep+=(--config.base.data.name=synthetic --config.base.data.image_size=32 --config.base.data.train_examples=5000)
  fi
fi
rm -f "$table" # of an earlier run
stage steps 300 "$python" -m benchmarks.run --device=gpu "${steps[@]}"
[ -n "$tiny" ] || stage page 30 "$python" -m benchmarks.run --document
mapfile -t tests < <(grep -rl 'mark\.gpu' tests --include='*_test.py')
stage tests 180 "$python" -m pytest -m gpu "${tests[@]}"
stage sweep $((LIMIT - SECONDS - 30)) "$python" -m depthmup_flax sweep "${sweep[@]}"
stage report 60 "$python" -m depthmup_flax report "$results/sweep"

{
  printf '\n## Steps\n\n'
  [ ! -e "$table" ] || "$python" -m benchmarks.run --show="$table"
  printf '\n## Tests\n\n%s\n' "$(grep -E '^[0-9]+ (passed|failed|errors?)' "$results/tests.log" || echo "No count: see tests.log")"
  printf '\n## Sweep\n\n%s runs are recorded, of this and earlier runs of the script. report.log:\n\n' \
    "$(cat "$results"/sweep/records*.jsonl 2>/dev/null | wc -l)"
  head -n 3 "$results/report.log"
} >>"$summary" || true
cat "$summary"
exit "$failed"
