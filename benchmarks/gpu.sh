#!/usr/bin/env bash
# Measures and tests this package on one GPU, in ten minutes: whole training steps beside PyTorch and plain Flax, the
# tests marked gpu, and the sweep of the papers' first figure. A stage that fails or takes too long does not stop the next.
#
#   benchmarks/gpu.sh [RESULTS]       summary.md, logs and results go to RESULTS (default: gpu-results). Rerunning measures
#                                     and tests again, and continues the sweep. On a GPU the table and its figure also go
#                                     to benchmarks/results and docs/performance.md
#   benchmarks/gpu.sh wheels FOLDER   collects what is installed, where there is a network, for a machine without one
#
# Environment:
#   PYTHON   the interpreter (default: python3); it should have JAX for CUDA, and PyTorch to compare with. What else is
#            missing is installed in RESULTS/env
#   WHEELS   a folder to install from instead of the network, made with the same version of Python
#   EXTRAS   extras of this package, as in "cuda12" (default: none beside train and report)
#   DATA_DIR prepared TFDS data sets with CIFAR-10 (default: synthetic images of its size)
#   TINY=1   tiny sizes; needs no GPU
#
# The exit code is 0 if every stage passed; a sweep whose time is over has passed.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly LIMIT=600
python=${PYTHON:-python3}
tiny=${TINY:-}

requirements() { # one a line: those of the package, of its extras and of the tests
  "$python" - train report ${EXTRAS:-} <<'END'
import sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
of_extras = [one for extra in sys.argv[1:] for one in project["optional-dependencies"][extra]]
own = [one for one in project["dependencies"] + of_extras if not one.startswith(project["name"])]
print(*own, "pytest>=8", "pytest-xdist>=3.7", sep="\n")
END
}

if [ "${1:-}" = wheels ]; then
  [ $# -eq 2 ] || { grep '^#' "$0" | sed 1d; exit 2; }
  requirements | "$python" -m pip wheel --wheel-dir "$2" --requirement /dev/stdin # builds what has no wheel
  exit
fi

mkdir -p "${1:-gpu-results}"
results=$(cd "${1:-gpu-results}" && pwd)
summary=$results/summary.md
failed=0

stage() { # NAME SECONDS COMMAND...
  local name=$1 limit=$2 left=$((LIMIT - SECONDS)) started=$SECONDS status=0 result=passed
  shift 2
  [ "$limit" -le "$left" ] || limit=$left
  echo "== $name, at most $limit s: tail -f $results/$name.log"
  if [ "$limit" -lt 5 ]; then
    status=1 result="not run: no time is left"
  else
    timeout --kill-after=10 "$limit" "$@" >"$results/$name.log" 2>&1 </dev/null || status=$?
    case $status in
      0) ;;
      124 | 137) result="stopped after $limit s" ;;
      *) result="failed with exit code $status" ;;
    esac
  fi
  [ "$name" != sweep ] || [ "$status" -ne 124 ] || { status=0 result="$result; rerun this script to continue"; }
  [ "$status" -eq 0 ] || failed=1
  echo "| $name | $result | $((SECONDS - started)) |" >>"$summary"
  [ "$status" -eq 0 ] || tail -n 5 "$results/$name.log" 2>/dev/null || true
}

install() { # what $python lacks, into an environment that sees its packages
  requirements >"$results/requirements.txt"
  "$python" -m pip --isolated install --quiet --dry-run --no-index --requirement "$results/requirements.txt" && return
  "$python" -m venv --system-site-packages "$results/env"
  local source=()
  [ -z "${WHEELS:-}" ] || source=(--no-index --find-links "$WHEELS")
  "$results/env/bin/python" -m pip install "${source[@]}" --requirement "$results/requirements.txt"
}
export -f install requirements
export python results EXTRAS="${EXTRAS:-}" WHEELS="${WHEELS:-}"

device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) || device=
[ -n "$device" ] || [ -n "$tiny" ] || { echo "nvidia-smi names no GPU. TINY=1 tries the script on a CPU."; exit 2; }
# Frameworks and tests share the memory; without a platform JAX would fall back on the CPU.
export XLA_PYTHON_CLIENT_PREALLOCATE=false JAX_PLATFORMS
JAX_PLATFORMS=$([ -n "$device" ] && echo cuda,cpu || echo cpu)
export PYTHONPATH=$PWD JAX_COMPILATION_CACHE_DIR=$results/compiled

printf '# %s, %s\n\n| stage | result | seconds |\n|---|---|---|\n' "${device:-a CPU, tiny sizes}" "$(date +%F)" >"$summary"

stage install 120 bash -euo pipefail -c install
[ ! -x "$results/env/bin/python" ] || python=$results/env/bin/python

if [ -n "$tiny" ]; then
  table=$results/steps.json
  stage steps 240 "$python" -m benchmarks.run --device=gpu --quick --rounds=3 --out="$table"
else
  stage steps 300 "$python" -m benchmarks.run --device=gpu
  table=$(ls -t benchmarks/results/gpu-*.json 2>/dev/null | head -n 1) || table=
  stage page 30 "$python" -m benchmarks.run --document
fi

mapfile -t tests < <(grep -rl 'mark\.gpu' tests --include='*_test.py')
stage tests 180 "$python" -m pytest -m gpu "${tests[@]}"

sweep=(--config=sweeps/lr_width_depth_mlp --config.scale="$([ -n "$tiny" ] && echo smoke || echo gpu)")
if [ -n "${DATA_DIR:-}" ]; then
  sweep+=(--config.base.data.data_dir="$DATA_DIR")
elif [ -z "$tiny" ]; then
  sweep+=(--config.base.data.name=synthetic --config.base.data.image_size=32 --config.base.data.train_examples=5000)
fi
stage sweep $((LIMIT - SECONDS - 30)) "$python" -m depthmup_flax sweep "${sweep[@]}" --workdir="$results/sweep"
stage report 60 "$python" -m depthmup_flax report "$results/sweep"

{
  if [ -s "$table" ]; then
    printf '\n## Steps\n\n' && "$python" -m benchmarks.run --show="$table"
  fi
  printf '\n## Tests\n\n%s\n' "$(tail -n 1 "$results/tests.log")"
  printf '\n## Sweep\n\n%s runs are recorded, in this and earlier runs of the script.\n\n' \
    "$(cat "$results"/sweep/records*.jsonl 2>/dev/null | wc -l)"
  sed '/^written:/,$d' "$results/report.log"
} >>"$summary" || true
cat "$summary"
exit "$failed"
