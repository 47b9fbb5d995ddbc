"""A training step of the user's own, which ``model.name`` imports, checked and adapted."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from depthmup_flax.networks.user_code import calling
from depthmup_flax.rule.info_trees import path_name
from depthmup_flax.trainer.engine.task import Hyper, Metrics, Task
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.program_digest import digest
from depthmup_flax.util.types import ArrayTree, Scalar


class NamedHyper(Mapping[str, Scalar]):
    """Hyperparameters as the user names them, ``hyper["learning_rate"]``; ``read`` gets those that are looked up."""

    def __init__(self, hyper: Hyper, owner: str, read: set[str]) -> None:
        self._values = {path.rpartition(".")[2]: value for path, value in hyper.items()}
        self._owner, self._read = owner, read

    def __getitem__(self, name: str) -> Scalar:
        if name not in self._values:
            raise InputError(f"hyper.{name} is not set, and {self._owner} reads it. Set it: hyper={{{name!r}: VALUE}}.")
        self._read.add(name)
        # An array in any case: an optimizer may be built in another way for a number that is 0.
        return jnp.asarray(self._values[name])

    def __iter__(self) -> Iterator[str]:
        self._read.update(self._values)
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@dataclasses.dataclass(frozen=True)
class UserTask:
    """A user's `Task`, adapted."""

    task: Task  # its functions; its state is the user's without what is not an array, and with raw random keys
    shapes: Any  # of the state's arrays
    averaged: tuple[str, ...]  # names of the metrics
    read: frozenset[str]  # names of the hyperparameters that the functions look up


def user_task(task: Task, name: str, hyper: Hyper, batch: Any) -> UserTask:
    """Traces the functions with shapes of a prepared batch, twice, and checks what they return; computes nothing."""
    read: set[str] = set()
    layouts: list[_Layout] = []  # one, after `init` was traced
    named = lambda hyper: NamedHyper(hyper, name, read)
    wants_key = "key" in inspect.signature(task.step).parameters

    init = functools.partial(_initial, task, name, read, layouts)

    def step(arrays: Any, batch: Any, hyper: Hyper, key: jax.Array) -> tuple[Any, Metrics]:
        with calling(f"{name}: step", arrays, batch):
            result = task.step(layouts[0].state(arrays), batch, named(hyper), *([key] if wants_key else []))
        if not (isinstance(result, tuple) and len(result) == 2):
            raise InputError(f"{name}: step returns {type(result).__name__}: return the new state and the metrics.")
        metrics = _checked_metrics(result[1], f"{name}: step")
        return _like(layouts[0].arrays(result[0], f"{name}: step"), arrays, name), metrics

    def evaluate(arrays: Any, batch: Any, hyper: Hyper) -> Metrics:
        assert task.evaluate is not None
        with calling(f"{name}: evaluate", arrays, batch):
            metrics = task.evaluate(layouts[0].state(arrays), batch, named(hyper))
        return _checked_metrics(metrics, f"{name}: evaluate")

    adapted = Task(init, step, evaluate if task.evaluate else None)
    key = jax.eval_shape(lambda: jax.random.key(0))
    scalars = {path: jax.ShapeDtypeStruct((), np.asarray(value).dtype) for path, value in hyper.items()}
    shapes = jax.eval_shape(init, key, scalars)
    _, metrics = jax.eval_shape(step, shapes, batch, scalars, key)
    if task.evaluate:
        jax.eval_shape(evaluate, shapes, batch, scalars)
    require_pure(step, (shapes, batch, scalars, key), f"{name}: step")
    return UserTask(adapted, shapes, tuple(metrics), frozenset(read))


def restored_state(task: Task, name: str, hyper: Hyper, arrays: Any) -> Any:
    """The user's state of which a checkpoint holds ``arrays``; `InputError` if ``init``, traced, makes another one."""
    layouts: list[_Layout] = []
    made = jax.eval_shape(lambda: _initial(task, name, set(), layouts, jax.random.key(0), hyper))
    return layouts[0].state(fitted(made, arrays, name))


def _initial(task: Task, name: str, read: set[str], layouts: list[_Layout], key: jax.Array, hyper: Hyper) -> ArrayTree:
    """The arrays of a new state, whose layout the first call keeps."""
    with calling(f"{name}: init"):
        state = task.init(key, NamedHyper(hyper, name, read))
    if not layouts:
        layouts.append(_Layout.of(state))
    return layouts[0].arrays(state, f"{name}: init")


def fitted(shapes: ArrayTree, arrays: ArrayTree, name: str) -> ArrayTree:
    """``arrays``, dictionaries, in the structure of ``shapes``; `InputError` if one is absent or of another shape."""
    stored = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)}
    flat, structure = jax.tree_util.tree_flatten_with_path(shapes)
    wanted = {path_name(path): leaf.shape for path, leaf in flat}
    for path, shape in wanted.items():
        if path not in stored or stored[path].shape != shape:
            has = f"{path} of shape {list(stored[path].shape)}" if path in stored else f"no {path}"
            raise InputError(
                f"model.name is {name!r}: it makes {path} {list(shape)}; the run has {has}. Restore the code."
            )
    return jax.tree.unflatten(structure, [stored[path] for path in wanted])


def require_pure(function: Callable[..., Any], arguments: tuple[Any, ...], name: str) -> None:
    """Raises `InputError` if two traces of ``function`` differ: it reads or changes something besides its arguments."""
    first, second = (digest(jax.make_jaxpr(lambda *given: function(*given))(*arguments)) for _ in range(2))
    if first != second:
        raise InputError(
            f"{name} is not a pure function: two calls with the same arguments compute different things. Use only its "
            "arguments, and take random numbers from jax.random with the key that it is given."
        )


def _is_array(x: Any) -> bool:
    return isinstance(x, (jax.Array, np.ndarray, np.generic))


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


@dataclasses.dataclass(frozen=True)
class _Layout:
    """How a user's state is taken apart into arrays, in nested dictionaries, and put together."""

    structure: jax.tree_util.PyTreeDef
    paths: list[tuple[str, ...]]
    others: list[Any]  # leaf by leaf: what is not an array; of arrays a function that restores them

    @classmethod
    def of(cls, state: Any) -> _Layout:
        found, structure = jax.tree_util.tree_flatten_with_path(state)
        paths = [tuple(path_name(path).split("/")) if path else ("state",) for path, _ in found]
        restore = lambda x: jax.random.wrap_key_data if _is_key(x) else jnp.asarray if _is_array(x) else x
        return cls(structure, paths, [restore(leaf) for _, leaf in found])

    def arrays(self, state: Any, name: str) -> ArrayTree:
        """The arrays of a state of this layout, random keys as integers; ``name``: of the function that returned it."""
        if jax.tree.structure(state) != self.structure:
            raise InputError(f"{name} returns a state of another structure than init did before: return all its parts.")
        arrays: dict[tuple[str, ...], jax.Array] = {}
        for path, leaf, other in zip(self.paths, jax.tree.leaves(state), self.others, strict=True):
            if _is_array(leaf):
                arrays[path] = jax.random.key_data(leaf) if _is_key(leaf) else jnp.asarray(leaf)
            elif leaf is not other and leaf != other:
                raise InputError(
                    f"{name} changes {'/'.join(path)} from {other!r} to {leaf!r}: make it an array in init."
                )
        return unflatten_dict(arrays)

    def state(self, arrays: ArrayTree) -> Any:
        """The state of which `arrays` returned this."""
        flat = flatten_dict(arrays)
        leaves = [
            other(flat[path]) if path in flat else other for path, other in zip(self.paths, self.others, strict=True)
        ]
        return jax.tree.unflatten(self.structure, leaves)


def _like(new: ArrayTree, old: ArrayTree, name: str) -> ArrayTree:
    """``new`` without weak types; InputError unless it has the shapes and types of ``old``."""

    def checked(path: jax.tree_util.KeyPath, new: jax.Array, old: Any) -> jax.Array:
        if new.shape != old.shape or new.dtype != old.dtype:
            raise InputError(
                f"{name}: step returns {path_name(path)} of the state as {new.dtype}{list(new.shape)}, but got "
                f"{old.dtype}{list(old.shape)}: keep shapes and types."
            )
        return jax.lax.convert_element_type(new, old.dtype)

    return jax.tree_util.tree_map_with_path(checked, new, old)


def _checked_metrics(metrics: Any, where: str) -> Metrics:
    if not isinstance(metrics, Mapping) or "loss" not in metrics:
        given = f"the metrics {sorted(map(str, metrics))}" if isinstance(metrics, Mapping) else type(metrics).__name__
        raise InputError(f'{where} returns {given}: return a dictionary with "loss".')
    return {str(name): jnp.mean(jnp.asarray(value, jnp.float32)) for name, value in metrics.items()}
