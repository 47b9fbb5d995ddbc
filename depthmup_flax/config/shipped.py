"""The configs that come with the package, by name: ``digits``, ``sweeps/vit``."""

from __future__ import annotations

import pathlib

from depthmup_flax.util.errors import InputError, closest

_PACKAGE = pathlib.Path(__file__).parents[1]


def directory() -> pathlib.Path:
    """Their directory: inside an installed package, beside it in a checkout."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def names() -> list[str]:
    """All names, sorted; single runs first."""
    paths = [path.relative_to(directory()).with_suffix("") for path in directory().rglob("*.py")]
    return sorted((path.as_posix() for path in paths), key=lambda name: ("/" in name, name))


def is_config(word: str) -> bool:
    """Whether a word names a config, as `path_of` takes it."""
    name = word.partition(":")[0]
    return name.endswith(".py") or name in names()


def path_of(named: str) -> str:
    """The file of a config as named on a command line: ``digits``, ``sweeps/vit:gpu`` or ``my/config.py:gpu``.

    Keeps any ``:argument``. `InputError` for a name that is neither a file nor a shipped config.
    """
    name, colon, argument = named.partition(":")
    if name.endswith(".py") or pathlib.Path(name).is_file():
        return named
    if name not in names():
        same_end = [other for other in names() if other.endswith(f"/{name}")]
        meant = same_end[0] if same_end else closest(name, names())
        hint = f"did you mean {meant!r}? " if meant else ""
        raise InputError(f"--config={named} is neither a file nor a shipped config: {hint}depthmup config lists them.")
    return f"{directory() / name}.py{colon}{argument}"


def name_of(path: str | pathlib.Path) -> str | None:
    """The name of the shipped config in a file; ``None`` for another file."""
    absolute, shipped = pathlib.Path(path).resolve(), directory().resolve()
    return absolute.relative_to(shipped).with_suffix("").as_posix() if absolute.is_relative_to(shipped) else None


def run_name(path: str) -> str:
    """The default name of a config's runs: that of its file, with any argument: ``digits-smoke``."""
    name, _, argument = path.partition(":")
    return "-".join((pathlib.Path(name).stem, *([argument] if argument else [])))
