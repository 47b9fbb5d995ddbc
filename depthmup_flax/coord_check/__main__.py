"""Check that a config's network follows the rule: the coordinate check.

    depthmup check --config=NAME [--config.FIELD=VALUE ...] [FLAG ...]

Examples:
    depthmup check --config=digits
    depthmup check --config=digits --config.parametrization.preset=mup
    depthmup check --config=cifar10_resnet --widths=32,64,128 --workdir=runs/check

Trains networks of several widths and depths for a few steps on one batch, with
the config's optimizer and learning rate: activations and updates must keep
their size. digits takes 45 s on 2 CPU cores (AMD EPYC); again, 20 s, because
compiled programs are kept.
depthmup config digits explains the fields of the config.
Exit codes: 0 the check passes, 1 it fails, and says why, 2 bad input.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absl import flags
from ml_collections import ConfigDict

from depthmup_flax import cli, config_files
from depthmup_flax.compilation_cache import cache_compilations
from depthmup_flax.errors import InputError
from depthmup_flax.workdir.directory import COORD_CHECK, claimed

if TYPE_CHECKING:
    from depthmup_flax.coord_check.report import Report

_CONFIG = cli.define_config("A shipped config, such as digits, or a Python file.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory for records, report and figure; default: none.")
_WIDTHS = flags.DEFINE_list("widths", None, "Widths A,B,C to try; default 4, 8, 16 times the base.")
_DEPTHS = flags.DEFINE_list("depths", None, "Depths A,B,C to try; default 4, 8, 16 times the base.")
_WIDTH = flags.DEFINE_integer("width", 0, "Width of the networks whose depth varies; 0: the base.")
_DEPTH = flags.DEFINE_integer("depth", 0, "Depth of the networks whose width varies; 0: the base.")
_STEPS = flags.DEFINE_integer("steps", 10, "Training steps.")
_SEEDS = flags.DEFINE_integer("seeds", 4, "Initial values per size.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 16, "Training examples in the batch.")
_TOLERANCE = flags.DEFINE_float("tolerance", 0.2, "Largest exponent that counts as flat.")
_SPECTRAL = flags.DEFINE_bool("spectral", False, "Also record the spectral norm of every update.")


def main(argv: list[str]) -> int:
    """Prints the report; returns the exit code."""
    cli.require_no_arguments(argv)
    cache_compilations()
    config = cli.resolved(_CONFIG)
    overrides = config_files.overrides()
    for name in ("width", "depth"):
        if f"model.{name}" in overrides and config.model[f"base_{name}"]:
            raise InputError(
                f"--config.model.{name}={overrides[f'model.{name}']} is not used by the check: set the {name}s to "
                f"compare with --{name}s=A,B,C, the {name} of all other networks with --{name}=N, or the base with "
                f"--config.model.base_{name}."
            )
    with contextlib.ExitStack() as stack:
        check = _prepared(config)  # before the claim: a wrong flag leaves no directory
        claim = stack.enter_context(claimed(_WORKDIR.value, COORD_CHECK)) if _WORKDIR.value else None
        report = check()
        print(report)
        if claim is not None:
            claim.check(now=True)
            report.write_to(claim.directory)
            print(f"\nThe records, report and figure are in {claim.directory}.")
    return 0 if report.ok else 1


def _prepared(config: ConfigDict) -> Callable[[], Report]:
    from depthmup_flax.coord_check.from_config import prepared_check  # late: --help does without JAX

    numbers = (_WIDTH, _DEPTH, _STEPS, _SEEDS, _BATCH_SIZE, _TOLERANCE, _SPECTRAL)
    plan: dict[str, Any] = {flag.name: flag.value for flag in numbers}
    plan |= {flag.name: _sizes(flag.name, flag.value) for flag in (_WIDTHS, _DEPTHS)}
    return prepared_check(config, **plan)


def _sizes(name: str, values: list[str] | None) -> list[int] | None:
    try:
        return None if values is None else [int(value) for value in values if value]
    except ValueError as error:
        raise InputError(
            f"--{name} is {','.join(values or ())}: use whole numbers with commas, as in --{name}=64,128,256."
        ) from error


if __name__ == "__main__":
    cli.run(main)
