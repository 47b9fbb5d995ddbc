"""Train a network with Depth-muP: python train.py --config=configs/digits.py --workdir=runs/digits

Any field of the config can be set on the command line, --config.model.depth=24. The same command again resumes the
run. --print_params shows what the rule gives every parameter, and trains nothing.
"""

import pathlib
import sys
import traceback

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from depthmup_flax.errors import InputError
from depthmup_flax.parametrization import describe_presets

DEFAULT_CONFIG = pathlib.Path(__file__).parent / "configs" / "digits.py"

_CONFIG = config_flags.DEFINE_config_file("config", None, "Python file with get_config(). Default: configs/digits.py")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run; created if absent, resumed if it holds the run.")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "Delete the run that --workdir holds, and start anew.")
_PRINT_PARAMS = flags.DEFINE_bool("print_params", False, "Print the parameter table and exit.")

__doc__ = f"{__doc__}\n--config.parametrization.preset is one of\n{describe_presets()}\n"


def main(argv: list[str]) -> None:
    """Runs what the flags say; bad input ends with one sentence and exit code 2."""
    if len(argv) > 1:
        raise InputError(f"unexpected argument {argv[1]!r}: flags are written --config.model.depth=24.")
    # Imported here, so that --help and a wrong flag answer at once.
    from depthmup_flax.experiment import build
    from depthmup_flax.trainer import train_and_evaluate

    if _PRINT_PARAMS.value:
        print(build(_config()).parameter_table())
        return
    if not _WORKDIR.value:
        raise InputError("--workdir is not set: name a directory for the run, such as --workdir=runs/digits.")
    train_and_evaluate(_config(), _WORKDIR.value, overwrite=_OVERWRITE.value)


def _config() -> ConfigDict:
    path = config_flags.get_config_filename(flags.FLAGS["config"])
    try:
        _CONFIG.value.to_dict()  # a file that was not found fails when it is looked at
    except OSError as error:
        raise InputError(f"--config={path} cannot be read: name a Python file with get_config().") from error
    return _CONFIG.value


def _parse(argv: list[str]) -> list[str]:
    if not any(argument.split("=")[0] in ("--config", "-config") for argument in argv):
        argv = [argv[0], f"--config={DEFAULT_CONFIG}", *argv[1:]]
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        raise InputError(str(error)) from error
    except (AttributeError, KeyError) as error:
        if "ml_collections" not in traceback.extract_tb(error.__traceback__)[-1].filename:
            raise  # from inside the config file
        cause = error.args[0] if isinstance(error.args[0], KeyError) else error
        name, *hint = str(cause.args[0]).splitlines()  # 'dpth', then perhaps: Did you mean "depth" instead of "dpth"?
        raise InputError(f"config has no field {name}. {' '.join(hint)}".rstrip()) from error


if __name__ == "__main__":
    logging.set_verbosity(logging.WARNING)
    try:
        app.run(main, flags_parser=_parse)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
