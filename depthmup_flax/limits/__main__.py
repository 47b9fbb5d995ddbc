"""Draw a theory figure: infinite networks against trained ones.

    depthmup limits --config=NAME [--config.FIELD=VALUE ...] [FLAG ...]

Examples:
    depthmup limits --config=limits/ntk --config.scale=smoke
    depthmup limits --config=limits/ntk --config.widths="(64, 128)"
    depthmup limits --config=limits/phase_diagram --workdir=runs/phases

--config.scale is smoke, cpu, gpu or paper. Measures the cases that records.jsonl
lacks, then writes the figure and report.txt: fitted powers beside the expected.
Rerunning the command resumes. depthmup config limits/ntk explains the fields.
"""

from absl import flags

from depthmup_flax import cli

_CONFIG = cli.define_config("A shipped config, such as limits/ntk, or a Python file.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory; default runs/limits/ and the config's name.")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Delete the records in --workdir and start again.")


def main(argv: list[str]) -> None:
    """Measures, writes and prints the report; bad input is one sentence and exit code 2."""
    cli.require_no_arguments(argv)
    from depthmup_flax.limits.pipeline import run

    config = cli.resolved(_CONFIG)
    workdir = _WORKDIR.value or cli.default_workdir("runs/limits")
    text, paths = run(config, workdir, overwrite=_OVERWRITE.value)
    print(text)
    print("written: " + ", ".join(str(path) for path in paths))


if __name__ == "__main__":
    cli.run(main)
