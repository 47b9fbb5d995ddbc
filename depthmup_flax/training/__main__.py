"""Train one network with Depth-muP.

    depthmup train --config=NAME [--config.FIELD=VALUE ...] [FLAG ...]

Examples:
    depthmup train --config=digits
    depthmup train --config=digits --config.model.depth=32 --workdir=runs/deep
    depthmup train --config=cifar10_resnet --print_params

Rerunning the command resumes the run. In a clone, python train.py is the same.
depthmup config lists the configs, depthmup config digits all fields of one.

Exit codes: 0 the run has ended, 2 bad input, 74 the disk or the data failed,
75 interrupted by a signal, with the state saved, or another process uses the
work directory: rerun the command to resume.
"""

from absl import flags

from depthmup_flax import cli, console, errors
from depthmup_flax.compilation_cache import cache_compilations
from depthmup_flax.garbage import few_collections
from depthmup_flax.records import COMPLETED

_CONFIG = cli.define_config("A shipped config, such as digits, or a Python file.", default="digits")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory; default runs/ and the config's name.")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Delete the run in --workdir and start again.")
cli.define_processes()
_PRINT_PARAMS = flags.DEFINE_bool("print_params", False, "Print the factors of all parameters and exit.")


def main(argv: list[str]) -> int:
    """Trains the config; returns an exit code of `depthmup_flax.errors`."""
    cli.require_no_arguments(argv)
    # Imported here, so that --help and a wrong flag answer at once.
    with few_collections():
        from depthmup_flax.data.sources.registry import find_source
        from depthmup_flax.parallel import distributed
        from depthmup_flax.training.experiment import build
        from depthmup_flax.training.loop import PREEMPTED, train_and_evaluate
        from depthmup_flax.training.stored_trace import Traces

    if _PRINT_PARAMS.value:
        print(build(cli.resolved(_CONFIG)).parameter_table())
        return 0
    cli.prepare_cpu()
    cache = cache_compilations()
    cli.start_processes()  # before what may fail in one process, so that it ends the others
    config = cli.resolved(_CONFIG)
    workdir = _WORKDIR.value or cli.default_workdir("runs")
    traces = Traces(cache, code=[cli.config_path().partition(":")[0]]) if cache else None
    result = train_and_evaluate(config, workdir, overwrite=_OVERWRITE.value, traces=traces)
    if result["status"] == COMPLETED and config.train.checkpoint and distributed.is_first():
        what = '--prompt="Once"' if find_source(config.data.name)[0].kind == "text" else "image.png"
        console.next_step(f"depthmup predict {workdir} {what}")
    return errors.PREEMPTED if result["status"] == PREEMPTED else 0


if __name__ == "__main__":
    cli.run(main)
