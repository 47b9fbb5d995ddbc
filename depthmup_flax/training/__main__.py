"""Trains a network with Depth-muP: depthmup train --config=digits

Set any field of the config on the command line, such as --config.model.depth=24. Rerunning the command resumes the run.
--print_params shows what the rule gives every parameter, and trains nothing.

Exit codes: 0 the run has ended, 2 bad input, 74 the disk or the data failed, 75 preempted by a signal, with the state
saved, or another process uses the work directory: rerunning the command resumes the run.
"""

from absl import flags

from depthmup_flax import cli, errors
from depthmup_flax.compilation_cache import cache_compilations
from depthmup_flax.rule.phase_diagram import describe_presets

_CONFIG = cli.define_config("A shipped config, or a Python file with get_config().", default="digits")
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Directory of the run, resumed if it holds the run; default: runs/ and the config's name."
)
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Delete the run in --workdir and start again.")
cli.define_processes()
_PRINT_PARAMS = flags.DEFINE_bool("print_params", False, "Print the parameter table and exit.")

__doc__ = f"{__doc__}\n--config.parametrization.preset is one of\n{describe_presets()}\n"


def main(argv: list[str]) -> int:
    """Trains the config; returns an exit code of `depthmup_flax.errors`."""
    cli.require_no_arguments(argv)
    # Imported here, so that --help and a wrong flag answer at once.
    from depthmup_flax.training.experiment import build
    from depthmup_flax.training.loop import PREEMPTED, train_and_evaluate

    if _PRINT_PARAMS.value:
        print(build(cli.resolved(_CONFIG)).parameter_table())
        return 0
    cache_compilations()
    cli.start_processes()  # before what may fail in one process, so that it ends the others
    config = cli.resolved(_CONFIG)
    workdir = _WORKDIR.value or cli.default_workdir("runs")
    result = train_and_evaluate(config, workdir, overwrite=_OVERWRITE.value)
    return errors.PREEMPTED if result["status"] == PREEMPTED else 0


if __name__ == "__main__":
    cli.run(main)
