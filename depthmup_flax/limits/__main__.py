"""Draw a theory figure: python -m depthmup_flax.limits --config=configs/limits/ntk.py --workdir=runs/ntk

Measures the cases that DIR/records.jsonl lacks, then writes the figure and DIR/report.txt: fitted powers beside the
expected ones. Rerunning the command resumes an interrupted one.
"""

from absl import flags

from depthmup_flax import cli
from depthmup_flax.errors import InputError

_CONFIG = cli.define_config(
    "Python file with get_config(scale); --config.scale=smoke|cpu|gpu|paper, any field --config.widths='(64, 128)'."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory for records, report and figure; existing records are used.")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Delete the records in --workdir and start over.")


def main(argv: list[str]) -> None:
    """Measures, writes and prints the report; bad input is one sentence and exit code 2."""
    cli.require_no_arguments(argv)
    from depthmup_flax.limits.pipeline import run

    config = cli.resolved(_CONFIG)
    workdir = _WORKDIR.value or cli.default_workdir("runs/limits")
    try:
        text, paths = run(config, workdir, overwrite=_OVERWRITE.value, say=lambda s: print(s, flush=True))
    except KeyboardInterrupt:
        raise InputError("interrupted; rerunning the command resumes it.") from None
    print(text)
    print("written: " + ", ".join(str(path) for path in paths))


if __name__ == "__main__":
    cli.run(main)
