"""Parameters that a pure function names where it uses them, and the containers and names that people keep them in."""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

Path = tuple[str, ...]
Naming = Callable[[Sequence[Path], Sequence[Any]], Any]  # paths in order of use, one value for each -> a tree


class Scope:
    """Makes or finds the parameters of a part of a network: ``p("kernel", n, n)``, ``(p / "block_0")("kernel", n, n)``.

    The first call of a network records shapes in ``made``; later ones read ``given``.
    """

    def __init__(self, made: dict[Path, tuple[int, ...]], given: Mapping[Path, Any] | None, path: Path = ()):
        self.made, self.given, self.path = made, given, path

    def __truediv__(self, name: str) -> Scope:
        return Scope(self.made, self.given, (*self.path, name))

    def __call__(self, name: str, *shape: int) -> jax.Array:
        path = (*self.path, name)
        if self.given is not None:
            return self.given[path]
        self.made[path] = shape
        return jnp.zeros(shape)

    def unrolled(self, depth: int, block: Callable[[Scope, Any, Any], Any], x: Any, name: str = "block") -> Any:
        """``block(p, x, layer)`` for every layer, with parameters of its own."""
        for i in range(depth):
            x = block(self / f"{name}_{i}", x, i)
        return x

    def scanned(self, depth: int, block: Callable[[Scope, Any, Any], Any], x: Any, name: str = "blocks") -> Any:
        """The same in ``lax.scan`` over stacked parameters."""
        inside = self / name
        if self.given is None:
            own = Scope({}, None)
            out = block(own, x, jnp.zeros((), int))  # no layer is known by its number
            self.made.update({(*inside.path, *path): (depth, *shape) for path, shape in own.made.items()})
            return out
        n = len(inside.path)
        stacked = {path[n:]: leaf for path, leaf in self.given.items() if path[:n] == inside.path}
        body = lambda x, layer: (block(Scope({}, layer[0]), x, layer[1]), None)
        return jax.lax.scan(body, x, (stacked, jnp.arange(depth)))[0]


def as_pair(net: Callable[[Scope, Any], Any], x: Any, naming: Naming) -> tuple[Callable[[Any, Any], Any], Any]:
    """``(function, parameters)`` of a network, with shapes in place of arrays."""
    made: dict[Path, tuple[int, ...]] = {}
    jax.eval_shape(lambda x: net(Scope(made, None), x), x)
    paths = list(made)
    order = jax.tree.leaves(naming(paths, range(len(paths))))

    def function(params: Any, *arguments: Any) -> Any:
        given = {paths[k]: leaf for k, leaf in zip(order, jax.tree.leaves(params), strict=True)}
        return net(Scope({}, given), arguments if isinstance(x, tuple) else arguments[0])

    return function, naming(paths, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in made.values()])


def renamed(rename: Callable[[Path], Path]) -> Naming:
    """Nested dicts with other keys."""

    def naming(paths: Sequence[Path], values: Sequence[Any]) -> Any:
        tree: dict[str, Any] = {}
        for path, value in zip(map(rename, paths), values, strict=True):
            inner = tree
            for name in path[:-1]:
                inner = inner.setdefault(name, {})
            inner[path[-1]] = value
        return tree

    return naming


def _each(change: Callable[[str, int], str]) -> Naming:
    """Changes what ends in a number: ``change("block", 3)``."""

    def rename(name: str) -> str:
        stem, _, number = name.rpartition("_")
        return change(stem, int(number)) if stem and number.isdigit() else name

    return renamed(lambda path: tuple(map(rename, path)))


def joined(separator: str) -> Naming:
    """One flat dict."""
    return lambda paths, values: {separator.join(path): v for path, v in zip(paths, values, strict=True)}


def _letters(paths: Sequence[Path], values: Sequence[Any]) -> Any:
    names = itertools.chain(string.ascii_lowercase, map("".join, itertools.product(string.ascii_lowercase, repeat=2)))
    return dict(zip(names, values, strict=False))


def _lettered_blocks(paths: Sequence[Path], values: Sequence[Any]) -> Any:
    letter = lambda stem, k: string.ascii_lowercase[k]
    return _each(letter)(paths, values)


def _lists(paths: Sequence[Path], values: Sequence[Any]) -> Any:
    """A list of blocks beside the rest."""
    tree = renamed(lambda path: path)(paths, values)
    numbered = [name for name in tree if name.rpartition("_")[2].isdigit()]
    stems = {name.rpartition("_")[0] for name in numbered}
    count = lambda stem: sum(name.rpartition("_")[0] == stem for name in numbered)
    lists = {f"{stem}s": [tree[f"{stem}_{k}"] for k in range(count(stem))] for stem in stems}
    return {**{name: value for name, value in tree.items() if name not in numbered}, **lists}


_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

NAMINGS: Mapping[str, Naming] = {
    "nested": renamed(lambda path: path),
    "from_one": _each(lambda stem, k: f"{stem}_{k + 1}"),
    "haiku": _each(lambda stem, k: f"{stem}_{k}" if k else stem),
    "glued_unnumbered_first": _each(lambda stem, k: f"{stem}{k}" if k else stem),
    "number_first": _each(lambda stem, k: f"{k}_{stem}"),
    "number_alone": _each(lambda stem, k: f"{k}"),
    "backward": _each(lambda stem, k: f"{stem}_{99 - k}"),
    "words": _each(lambda stem, k: f"{stem}_{_WORDS[k]}"),
    "lettered_blocks": _lettered_blocks,
    "dots": joined("."),
    "letters": _letters,
    "list": lambda paths, values: list(values),
    "numbers": lambda paths, values: {str(k): value for k, value in enumerate(values)},
    "list_of_blocks": _lists,
}
