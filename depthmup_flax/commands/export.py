"""The rule's factors for your network, as JSON for any framework.

    depthmup export FILE.py:NET --width=N --depth=N --base_width=N --base_depth=N [FLAG ...]

Examples:
    depthmup export model.py:Net --width=1024 --depth=32 --base_width=64 --base_depth=4 \\
        --input=8x20 --output=rule.json
    depthmup export model.py:GPT --fields='{"n_embd": 1024}' --base_fields='{"n_embd": 128}' \\
        --input=1x64:int32 --output=rule.json

NET is a class or a function that returns a network of torch, Linen, NNX, Equinox or Haiku.
The audit must be ok. docs/pytorch.md has a program that reads the table.
Exit codes: 0 the table is written, 2 bad input, or the audit is not ok.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
from typing import Any

from depthmup_flax.commands.parser import Parser, names
from depthmup_flax.util.errors import InputError

_OUTPUTS = re.compile(r"of \(logits, loss\) output=0, .*what the model returns\.$")


def define(parser: Parser) -> None:
    """Adds the flags."""
    parser.define_words()
    for size in ("width", "depth"):
        parser.flag(f"--{size}", type=int, help=f"The network's field {size}.")
        parser.flag(f"--base_{size}", type=int, help="That of the base, which is tuned.")
    parser.flag("--fields", type=json_object, default={}, help="Further fields of the network, as JSON.")
    parser.flag("--base_fields", type=json_object, default={}, help="Those of the base that differ, as JSON.")
    parser.flag("--input", type=names, default=[], help="Shapes of a batch, such as 8x20 or 1x64:int32,1x64:int32.")
    parser.flag(
        "--result",
        type=name_or_number,
        help="The result that the loss reads, if there are several, such as logits or 0.",
    )
    parser.flag("--rule", default="depth_mup", help="A preset.")
    parser.flag("--output", default="rule.json", help="The file to write.")


def name_or_number(word: str) -> str | int:
    """The name of a result, or its place in a tuple."""
    return int(word) if word.isdigit() else word


def main(args: argparse.Namespace) -> None:
    """Writes the table."""
    from depthmup_flax.auditing import audit  # late: --help does not need JAX
    from depthmup_flax.frameworks.rule_table import export
    from depthmup_flax.networks.import_paths import resolve
    from depthmup_flax.rule.parametrization import get_parametrization

    if len(args.words) != 1:
        raise InputError("name one network: depthmup export model.py:Net --width=1024 --base_width=64 --input=8x20.")
    if not args.input:
        raise InputError("input is not set: give the shapes of a batch, as --input=8x20 or --input=1x64:int32.")
    rule = get_parametrization(args.rule)
    make = resolve(_import_path(args.words[0]), "the network", "model.py:Net")
    sizes = {size: getattr(args, size) for size in ("width", "depth") if getattr(args, size) is not None}
    of_base = {size: getattr(args, f"base_{size}") for size in sizes}
    for size, value in of_base.items():
        if value is None:
            raise InputError(f"base_{size} is not set: give the base's, as --base_{size}={sizes[size]}.")
    model = _network(make, {**args.fields, **sizes})
    base = _network(make, {**args.fields, **args.base_fields, **of_base})
    inputs = tuple(map(_array, args.input))
    try:
        result = audit(model, base, inputs, output=args.result)
    except InputError as error:
        # The argument of `depthmup_flax.audit` is a flag here, which takes a name or a number.
        text = _OUTPUTS.sub("--result=logits or --result=0.", str(error))
        raise InputError(re.sub(r"^output is", "result is", text)) from error
    if not result:
        print(result)  # which says what to write
    result.require()
    table = export(result, rule)
    file = pathlib.Path(args.output)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(f"{args.output}: {table['parameters']} parameters in {len(table['rows'])} rows, {args.rule}")


def _import_path(name: str) -> str:
    """``models.gpt:GPT`` of ``models/gpt.py:GPT``, or of the same file as ``./models/gpt.py`` or an absolute path."""
    file, colon, attribute = name.partition(":")
    if file.endswith(".py"):
        inside = os.path.relpath(file)
        if inside.startswith(os.pardir):
            raise InputError(f"{file} is not below this directory: run the command from the directory that holds it.")
        file = inside.removesuffix(".py").replace(os.sep, ".")
    return file + colon + attribute


def json_object(text: str) -> dict[str, Any]:
    """The fields of a flag; a `ValueError` for anything else."""
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError
    return fields


def _network(make: Any, fields: dict[str, Any]) -> Any:
    """What the user's class or function makes of its fields; values of JAX's networks are drawn where needed."""
    import functools

    from depthmup_flax.networks.model_functions import model_functions
    from depthmup_flax.networks.user_code import MISSING, PASSED, calling, parameters, takes

    for field in fields:
        if not takes(make, field):
            raise InputError(f"{make.__name__} takes no {field}: name its fields, as --fields='{{\"n_embd\": 1024}}'.")
    for name, parameter in parameters(make).items():
        if parameter.default is MISSING and name not in {*fields, *PASSED}:
            flag = f"--{name}=N, with --base_{name}" if name in ("width", "depth") else f"--fields='{{\"{name}\": 4}}'"
            raise InputError(f"{make.__name__} needs {name}: give it, as {flag}.")
    if takes(make, "rngs") or takes(make, "key"):
        return model_functions(functools.partial(make, **fields))
    with calling(make.__name__):
        return make(**fields)


def _array(text: str) -> Any:
    """The shape and type of ``8x20`` or ``1x64:int32``."""
    import jax
    import jax.numpy as jnp

    shape, _, dtype = text.partition(":")
    try:
        return jax.ShapeDtypeStruct(tuple(map(int, shape.split("x"))), jnp.dtype(dtype or "float32"))
    except (TypeError, ValueError) as error:
        raise InputError(f"input is {text!r}: write a shape such as 8x20, or 1x64:int32 for tokens.") from error
