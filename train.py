"""Train a network with Depth-muP: python train.py --config=configs/digits.py --workdir=runs/digits

Any field of the config can be set on the command line, --config.model.depth=24. The same command again resumes the
run. --print_params shows what the rule gives every parameter, and trains nothing.
"""

import sys

from absl import app, flags, logging
from ml_collections import config_flags

from depthmup_flax.errors import InputError

_CONFIG = config_flags.DEFINE_config_file("config", "configs/digits.py", "Python file with get_config().")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run; created if absent, resumed if it holds the run.")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Delete the run that --workdir holds, and start anew.")
_PRINT_PARAMS = flags.DEFINE_bool("print_params", False, "Print the parameter table and exit.")


def main(argv: list[str]) -> None:
    """Runs what the flags say; bad input ends with one sentence and exit code 2."""
    if len(argv) > 1:
        raise InputError(f"unexpected argument {argv[1]!r}: flags are written --config.model.depth=24.")
    from depthmup_flax.experiment import build
    from depthmup_flax.trainer import train_and_evaluate

    if _PRINT_PARAMS.value:
        print(build(_CONFIG.value).parameter_table())
        return
    if not _WORKDIR.value:
        raise InputError("--workdir is not set: name a directory for the run, such as --workdir=runs/digits.")
    train_and_evaluate(_CONFIG.value, _WORKDIR.value, overwrite=_OVERWRITE.value)


def _parse(argv: list[str]) -> list[str]:
    try:
        return app.parse_flags_with_usage(argv)
    except (AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        # What ml_collections raises for a field or a file that does not exist, or a value of the wrong type.
        lines = [line for line in str(error).strip("'\"").replace("\\n", "\n").splitlines() if line.strip()]
        raise InputError(" ".join(lines)) from error


if __name__ == "__main__":
    logging.set_verbosity(logging.WARNING)
    try:
        app.run(main, flags_parser=_parse)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
