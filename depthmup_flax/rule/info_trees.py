"""Trees of `ParamInfo`: paths, globs, JSON."""

import abc
import dataclasses
import fnmatch
import functools
import logging
import math
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util
from flax.core.meta import AxisMetadata

from depthmup_flax.rule.factor import Factor, as_tuples
from depthmup_flax.rule.parametrization import AuditRecord, Geometry, Parametrization, ParamInfo, Role
from depthmup_flax.util.errors import InputError, did_you_mean, shown
from depthmup_flax.util.types import ArrayTree, InfoTree

log = logging.getLogger(__name__)


def is_info(x: object) -> bool:
    """``is_leaf`` for maps over a tree of `ParamInfo`."""
    return isinstance(x, ParamInfo)


def path_name(path: jax.tree_util.KeyPath) -> str:
    """``blocks/Dense_0/kernel`` for a key path of ``jax.tree_util``."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def is_nnx(x: object, *names: str) -> bool:
    """Whether ``x`` is an instance of ``flax.nnx.<name>``. False where NNX is not imported, which is slow."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(x, tuple(getattr(nnx, name) for name in names))


def is_equinox(x: object) -> bool:
    """Whether ``x`` is an Equinox module. False where Equinox is not imported."""
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(x, equinox.Module)


def is_torch(x: object) -> bool:
    """Whether ``x`` is a torch module. False where torch is not imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.nn.Module)


def parts_of(path: str) -> list[str]:
    """``["blocks", "0", "bias"]`` for ``blocks/0/bias`` or torch's ``blocks.0.bias``."""
    return re.split(r"[/.]", path)


class HasInfo(abc.ABC):
    """What may stand for a tree of `ParamInfo`: an audit."""

    @property
    @abc.abstractmethod
    def info(self) -> InfoTree:
        """The `ParamInfo` of every parameter."""


def info_of(info: InfoTree | HasInfo) -> InfoTree:
    """The tree of `ParamInfo` of an audit, or the tree itself.

    The optimizers, `rescale_init` and the other functions that ask for ``info`` call it once, so
    that a user may pass either.

    Raises:
      InputError: it is neither, such as a tree of arrays.
    """
    tree = info.info if isinstance(info, HasInfo) else info
    for leaf in [None] if tree is None else jax.tree.leaves(tree, is_leaf=is_info):
        if not is_info(leaf):
            raise InputError(
                f"info is {shown(info)}: pass what dm.audit(model, base, x) "
                "returns, or its info, as in adamw(learning_rate, audit, rule) and "
                "depthmup(direction, audit, rule, learning_rate)."
            )
    return tree


def flatten_info(info: InfoTree) -> dict[str, ParamInfo]:
    """Path -> `ParamInfo`, in the order of the tree."""
    leaves = jax.tree_util.tree_leaves_with_path(info_of(info), is_leaf=is_info)
    return {path_name(path): leaf for path, leaf in leaves}


def with_decay(info: InfoTree, mask: ArrayTree | Callable[[Any], ArrayTree] | None) -> InfoTree:
    """``info`` whose parameters decay where ``mask`` is true: a tree, or of a tree of shapes, as in ``optax.adamw``.

    Raises:
      InputError: the mask's structure is neither that of the parameters nor a beginning of it.
    """
    if mask is None:
        return info
    shapes = lambda: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, float), info, is_leaf=is_info)
    given = jax.tree.leaves(mask)
    is_tree = bool(given) and all(isinstance(leaf, (bool, np.bool_)) for leaf in given)
    if not is_tree and not callable(mask):
        raise InputError(f"mask is {shown(mask)}: give a bool for each parameter, or a function of their shapes.")
    tree = mask if is_tree else mask(shapes())
    decaying = lambda decays, part: jax.tree.map(
        lambda leaf: dataclasses.replace(leaf, decay=bool(decays)), part, is_leaf=is_info
    )
    try:
        return jax.tree.map(decaying, tree, info)
    except ValueError as error:
        named = {path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)}
        absent = [path for path in flatten_info(info) if path not in named]
        lacks = f"lacks {len(absent)} parameters, such as {absent[0]!r}" if absent else "has names of no parameter"
        raise InputError(f"mask {lacks}: give a bool for each.") from error


def named_geometries(info: InfoTree, geometry: str | ArrayTree) -> dict[str, Geometry]:
    """Path -> geometry, from one for all parameters or a tree; `InputError` if there is no such geometry."""
    paths = list(flatten_info(info))
    structure: Any = jax.tree.structure(info, is_leaf=is_info)
    if isinstance(geometry, str):
        given = [geometry] * len(paths)
    else:
        try:
            given = structure.flatten_up_to(geometry)
        except ValueError as error:
            raise InputError(f"geometry is {geometry!r}: give one leaf per parameter, as in info.") from error
    for name in given:
        if name not in list(Geometry):
            raise InputError(f"geometry is {name!r}: {did_you_mean(str(name), map(str, Geometry))}")
    return dict(zip(paths, map(Geometry, given), strict=True))


def map_info(function: Callable[..., Any], info: InfoTree, tree: ArrayTree, *others: ArrayTree) -> ArrayTree:
    """``function(path, leaf_info, array)`` over a tree of arrays; what optax has masked stays, be it a leaf or a part.

    ``others`` have the same structure, and their arrays follow as arguments.

    Paths find their info: the tree may be a part of the model, such as ``nnx.state(model, nnx.LoRAParam)``, and have
    nodes in place of arrays, such as ``nnx.Variable``.

    Raises:
      InputError: a path is not in ``info``, or one of several equal layers is missing.
    """
    infos, found, masked = flatten_info(info), set[str](), set[str]()

    def at_leaf(of_leaf: jax.tree_util.KeyPath, leaf: Any, *other_leaves: Any) -> ArrayTree:
        name = path_name(of_leaf)
        if isinstance(leaf, optax.MaskedNode):
            masked.add(name)
            return leaf
        if (path := _at_or_above(name, infos)) is None:
            raise InputError(f"{_UNLIKE} ({name!r} is not in info): {_PASS}")
        found.add(path)
        return function(path, infos[path], leaf, *other_leaves)

    is_leaf = lambda x: isinstance(x, (optax.MaskedNode, AxisMetadata))
    result = jax.tree_util.tree_map_with_path(at_leaf, tree, *others, is_leaf=is_leaf)
    missing = [path for path in infos if path not in found and _at_or_above(path, masked) is None]
    layers = {template(path) for path in found} if missing else ()
    for path in missing:
        if template(path) in layers:  # a network of fewer layers
            raise InputError(f"{_UNLIKE} (info has {path!r}): {_PASS}")
    return result


def _at_or_above(path: str, paths: Collection[str]) -> str | None:
    """The one of ``paths`` that a path is, or is inside of."""
    while path not in paths:
        if "/" not in path:
            return None
        path = path.rpartition("/")[0]
    return path


_UNLIKE = "the structure of the parameters is not that of info"
_PASS = (
    "pass variables['params'] of the network that info was made for (not of the base model), unboxed by "
    "flax.linen.unbox."
)


def matches(path: str, pattern: str) -> bool:
    """Whether a glob matches a path or its beginning: ``"stem"`` matches ``stem/kernel``."""
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern}[/.]*")


def frozen_paths(info: InfoTree, patterns: Sequence[str]) -> set[str]:
    """Paths that match a glob of ``patterns``; `InputError` if one matches no parameter, or together they match all."""
    if isinstance(patterns, str):
        raise InputError(f"optimizer.frozen is the string {patterns!r}: use a tuple of patterns, ({patterns!r},).")
    paths = list(flatten_info(info))
    frozen = {path for path in paths if any(matches(path, pattern) for pattern in patterns)}
    for pattern in patterns:
        if not any(matches(path, pattern) for path in paths):
            hint = did_you_mean(pattern, {parts_of(path)[0] for path in paths})
            raise InputError(f"optimizer.frozen has {pattern!r}, which matches no parameter: {hint}")
    if paths and len(frozen) == len(paths):
        raise InputError(f"optimizer.frozen = {tuple(patterns)} freezes every parameter: leave something to train.")
    return frozen


def template(path: str) -> str:
    """A path without its numbers: equal layers have one."""
    return re.sub(r"\d+", "*", path)


def collapsed(paths: Sequence[str], numbered: bool = False) -> str:
    """One name for paths with one `template`: ``block_*/kernel``, or ``block_{0,1,2,...}/kernel``."""
    columns = [list(dict.fromkeys(column)) for column in zip(*(re.split(r"(\d+)", p) for p in paths), strict=True)]
    several = lambda numbers: f"{{{','.join(numbers[:3] + ['...'] * (len(numbers) > 3))}}}"
    return "".join(c[0] if len(c) == 1 else several(c) if numbered else "*" for c in columns)


def sizes(shapes: Sequence[tuple[int, ...]]) -> str:
    """Shapes of one rank as a table shows them, with ``*`` for a size that differs: ``3x3x*``."""
    columns = map(set, zip(*shapes, strict=True))
    return "x".join(str(*column) if len(column) == 1 else "*" for column in columns) or "scalar"


def require_inner_layers(info: InfoTree, rule: Parametrization) -> None:
    """Raises `InputError` if the rule has an exponent for inner layers of branches, and none is known."""
    if rule.inner_gamma is not None and not any(leaf.inner for leaf in flatten_info(info).values()):
        raise InputError(
            f"parametrization.inner_gamma is {rule.inner_gamma:g}, but no branch has an inner layer, whose product a "
            "later layer of the branch reads: leave inner_gamma unset."
        )


def audit_of(info: InfoTree) -> AuditRecord | None:
    """The record of the audit that an info is of; ``None`` if it is of no audit."""
    return next((leaf.audited for leaf in flatten_info(info).values() if leaf.audited is not None), None)


def require_followed(info: InfoTree, rule: Parametrization) -> None:
    """Raises `InputError` if ``info`` is of an audit that found a fault, or of code with another rule's factors.

    Fields of the rule that are traced are not judged.
    """
    record = audit_of(info)
    if record is None:
        return
    if record.problem:
        raise InputError(
            f"info is of an audit that says {record.problem} Write what print(audit) shows; or take info from "
            "audit.accept(name, ...), with the names of what may remain."
        )
    for _, text in conflicts(record, rule):
        raise InputError(text)


def conflicts(record: AuditRecord, rule: Parametrization) -> Iterator[tuple[str, str]]:
    """The fields of a rule whose factors stand in the code with other numbers, and a sentence about each.

    Fields of the rule that are traced are not judged.
    """
    advice = "Pass the rule that the code was written for, or take the factor out of the code: parameters carry it then"
    if record.alpha is not None and _differ(record.alpha, rule.alpha):
        text = (
            f"parametrization.alpha is {rule.alpha:g}, but the code multiplies branches by r^-{record.alpha:g}: it is "
            f"written for alpha = {record.alpha:g}. {advice}."
        )
        yield "alpha", text
    if record.width_power is not None and _differ(record.width_power, rule.width_power):
        text = (
            f"parametrization.width is {rule.width!r}, but the code has factors of the width, as 1/m at the readout. "
        )
        yield "width", f"{text}{advice}."
    if record.width_power is not None and _differ(record.gamma0_width_exponent, rule.gamma0_width_exponent):
        text = (
            f"parametrization.gamma0_width_exponent is {rule.gamma0_width_exponent:g}, but the code divides its output "
            f"by m^{record.gamma0_width_exponent:g} beside 1/m. {advice}."
        )
        yield "gamma0_width_exponent", text
    if record.has_multiplier or not _differ(1.0, rule.branch_multiplier):
        return
    why = "no branch has a multiplier in the code, and no parameter can carry one"
    remedy = "write h = h + rule.residual_multiplier(r) * y, or leave branch_multiplier at 1"
    if record.has_multiplier is None:
        why = "model and base are equally deep, so the audit cannot tell whether the code has it"
        remedy = "audit a deeper model, or leave branch_multiplier at 1"
    text = f"parametrization.branch_multiplier is {rule.branch_multiplier:g}, but {why}: {remedy}."
    yield "branch_multiplier", text


def _differ(in_code: float, of_rule: Any) -> bool:
    """Whether two exponents differ; one that may be traced is not looked at."""
    return not hasattr(of_rule, "dtype") and not math.isclose(in_code, of_rule)


def on_host(x: Any) -> Any:
    """An array in this process's memory as NumPy's, whose operations compile nothing; others as they are."""
    is_near = isinstance(x, jax.Array) and x.is_fully_addressable and x.sharding.device_set == {jax.devices("cpu")[0]}
    return np.asarray(x) if is_near and not jnp.issubdtype(x.dtype, jax.dtypes.extended) else x


def root_mean_square(x: Any) -> float:
    """Of an array's values."""
    x = on_host(x)
    numpy = np if isinstance(x, np.ndarray) else jnp
    return float(numpy.sqrt(numpy.mean(numpy.square(numpy.abs(x).astype(jnp.float32)))))


_SAMPLING_ERRORS = 4  # standard errors that are allowed
_LEAST_TOLERANCE = 0.2  # of a logarithm: how far initial values may be from those that the rule wants


_RESCALE = (
    "Call params = dm.rescale_init(params, base_params, audit, rule) before the optimizer's init, with this rule (or "
    "of an NNX model nnx.update(model, dm.rescale_init(model, ...)))"
)


def require_rescaled(info: InfoTree, params: ArrayTree, rule: Parametrization, remedy: str = _RESCALE) -> None:
    """Raises `InputError` if parameters that carry a factor have not the initial values that the rule wants.

    Root mean squares are compared with those of the base model's initial values, times `Parametrization.init_ratio` and
    the factor. Values that are traced, or a base model given by shapes alone, cannot be judged, which is logged once.
    ``remedy`` is the error's sentence about what to call.
    """
    record = audit_of(info)
    carriers = {path: leaf for path, leaf in flatten_info(info).items() if leaf.carries}
    if record is None or record.base_sizes is None or not carriers:
        return
    if _is_traced(params) or any(hasattr(value, "dtype") for value in rule.numbers().values()):
        _log_once("initial values are traced, so it is not checked that dm.rescale_init has set them")
        return
    sizes = record.base_sizes()
    if not sizes:
        _log_once(
            "the base model was given by shapes, so it is not checked that dm.rescale_init has set initial values"
        )
        return

    def look(path: str, leaf: ParamInfo, x: Any) -> None:
        factor = leaf.factor(rule)
        if path not in carriers or path not in sizes or np.allclose(factor, 1.0):
            return
        size = root_mean_square(leaf.uncarried(on_host(x), rule))
        wanted = sizes[path] * (rule.init_ratio(leaf) or 1.0)
        if size == 0 or wanted == 0:
            return
        smallest = float(np.min(np.abs(np.log(np.abs(factor[factor != 1] if np.ndim(factor) else factor)))))
        sampling = _SAMPLING_ERRORS * math.sqrt(0.5 / x.size + 0.5 * leaf.width_in * leaf.width_out / x.size)
        tolerance = max(sampling, min(_LEAST_TOLERANCE, smallest / 2))
        if abs(math.log(size / wanted)) > tolerance:
            carried = root_mean_square(x)
            raise InputError(
                f"{path!r} carries a factor that is not in the code, so it must start at other values: its root mean "
                f"square is {carried:.3g}, {size / wanted:.3g} times what the rule wants. {remedy}. If an earlier run "
                "has trained these parameters, pass dm.rescaled_before(audit) in place of audit."
            )

    map_info(look, info, params)


def _is_traced(tree: ArrayTree) -> bool:
    return any(map(has_no_value, jax.tree.leaves(tree)))


def has_no_value(array: Any) -> bool:
    """Whether an array is traced, or a shape alone."""
    return isinstance(array, (jax.core.Tracer, jax.ShapeDtypeStruct))


@functools.cache
def _log_once(text: str) -> None:
    log.info("%s.", text)


def info_to_json(info: InfoTree) -> dict[str, dict[str, Any]]:
    """Path -> fields, for a checkpoint's metadata. `info_from_json` is the inverse for nested dictionaries."""

    def fields(leaf: ParamInfo) -> dict[str, Any]:
        plain = {name: value for name, value in vars(leaf).items() if name != "audited"}
        return plain | {"carried": vars(leaf.carried)}

    return {name: fields(leaf) for name, leaf in flatten_info(info).items()}


def info_from_json(data: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A nested dictionary of `ParamInfo` from what `info_to_json` wrote.

    Runs of before had a number, under their rule, in place of the powers that a parameter carries.
    """
    names = {field.name for field in dataclasses.fields(ParamInfo)} - {"audited"}

    def leaf(fields: Mapping[str, Any]) -> ParamInfo:
        plain = {name: as_tuples(value) for name, value in fields.items() if name in names}
        carried = fields["carried"]
        powers = carried if isinstance(carried, Mapping) else {"constant": carried}
        factor = Factor(**{name: as_tuples(value) for name, value in powers.items()})
        return ParamInfo(**plain | {"role": Role(fields["role"]), "carried": factor})

    return traverse_util.unflatten_dict({name: leaf(fields) for name, fields in data.items()}, sep="/")


def param_count(info: InfoTree) -> int:
    """Numbers in the arrays that a tree of `ParamInfo` describes."""
    return sum(math.prod(leaf.shape) for leaf in flatten_info(info).values())
