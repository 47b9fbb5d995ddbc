"""Packages that an extra of depthmup-flax installs."""

import importlib

from depthmup_flax.errors import InputError


def require(package: str, why: str, extra: str = "train") -> None:
    """Imports ``package``, or says how to install it.

    Args:
      package: the name of a module, such as "sklearn".
      why: what needs it, as the subject of a sentence: "data.name='digits'", "depthmup train".
      extra: the extra that installs it.

    Raises:
      InputError: it cannot be imported.
    """
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise InputError(
            f'{why} needs the package {package}, which cannot be imported ({error}). Type `pip install "depthmup-flax['
            f'{extra}]"`.'
        ) from error
