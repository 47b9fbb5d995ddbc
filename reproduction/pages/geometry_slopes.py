"""How far hidden matrices alone move our models' features as networks grow, by geometry of the updates: exponents.

python -m reproduction.pages.geometry_slopes          # prints the tables of optimizers.md; Muon LAMB: of these
python -m reproduction.pages.geometry_slopes --write  # replaces them

Measured is the change of the last block's stream, root mean square, after steps in which hidden matrices alone train;
over three widths, three depths, and both together. "Right" is the library's optimizer, "wrong" the same updates times
the power of the size that a user without its factor would have. Three steps on one batch of noise with random labels:
gradients of low rank, aligned with one another. Forty steps on new batches with the labels of a linear teacher: sums of
gradients of full rank, each with much noise.
"""

import dataclasses
import functools
import os
import pathlib
import re
import sys

if __name__ == "__main__":  # as tests/conftest.py has it: these programs compile for longer than they compute
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=1"

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import depthmup_flax as dm
from depthmup_flax.auditing.config_audit import audited_model
from depthmup_flax.rule.directions import direction
from depthmup_flax.rule.info_trees import flatten_info, path_name
from depthmup_flax.rule.parametrization import Role

DOCUMENT = pathlib.Path(__file__).with_name("optimizers.md")
SEEDS = 6
DEPTHS = (4, 8, 16)
AXES = ("width", "depth", "both")  # both: as powers of the width
# Small branches, so that the base model is not far from the limit of depth.
RULE = dm.get_parametrization("depth_mup", branch_multiplier=0.25)


@dataclasses.dataclass(frozen=True)
class Training:
    """``steps`` on batches of ``batch`` examples: one, with random labels, or new ones with a teacher's."""

    steps: int
    batch: int
    new_batches: bool


FEW, MANY = Training(3, 4, False), Training(40, 64, True)
MODELS = {
    "ResMLP": functools.partial(dm.ResMLP, 10),
    "SimpleResNet": functools.partial(dm.SimpleResNet, 10),
    "ViT": functools.partial(dm.ViT, 10, patch_size=4),
    "GPT": functools.partial(dm.GPT, 16),
}


def products(g):
    """``G G^T`` and ``G^T G`` of a stack of matrices; a convolution's window belongs to its inputs."""
    matrices = as_matrices(g)
    return matrices @ matrices.mT, matrices.mT @ matrices


def as_matrices(g):
    """A stack of matrices ``[B, in, out]``."""
    stacked = g.ndim in (3, 5)
    return g.reshape(len(g) if stacked else 1, -1, g.shape[-1])


def zero_products(params):
    """`products` of zeros, as an initial state."""
    return jax.tree.map(lambda p: jax.tree.map(jnp.zeros_like, products(p)), params)


def added_products(updates, state):
    """The state and the `products` of new gradients."""
    return {name: jax.tree.map(jnp.add, products(g), state[name]) for name, g in updates.items()}


def eigenvectors(sums):
    """Of all sums of products, one after another: at once they wait for each other for ever (jax 0.10.2, two cores)."""
    found, before = {}, 0.0
    for name, pair in sums.items():
        found[name] = []
        for x in pair:
            found[name].append(jnp.linalg.eigh(x + before))
            before = 0.0 * found[name][-1][0].max()
    return found


def shampoo():
    """Shampoo (arXiv:1802.09568): ``L^-1/4 G R^-1/4`` with ``L`` the sum of ``G G^T``, ``R`` that of ``G^T G``."""

    def root(values, vectors):
        kept = values > 1e-5 * values[..., -1:]  # what gradients span
        powers = jnp.where(kept, jnp.where(kept, values, 1.0) ** -0.25, 0.0)
        return (vectors * powers[..., None, :]) @ vectors.mT

    def update(updates, state, params=None):
        del params
        state = added_products(updates, state)
        roots = {name: [root(*one) for one in pair] for name, pair in eigenvectors(state).items()}
        turned = {name: roots[name][0] @ as_matrices(g) @ roots[name][1] for name, g in updates.items()}
        return {name: turned[name].reshape(g.shape) for name, g in updates.items()}, state

    return optax.GradientTransformation(zero_products, update)


def soap():
    """SOAP (arXiv:2409.11321): Adam in the eigenbasis of Shampoo's ``L`` and ``R``, here a new one at every step."""

    def init(params):
        return zero_products(params), jax.tree.map(lambda p: jnp.zeros_like(as_matrices(p)), params)

    def update(updates, state, params=None):
        del params
        sums, second = added_products(updates, state[0]), dict(state[1])
        bases = eigenvectors(sums)
        for name, g in updates.items():
            (_, left), (_, right) = bases[name]
            turned = left.mT @ as_matrices(g) @ right
            second[name] = second[name] + turned**2
            # Outside of what gradients span there is only rounding.
            scale = jnp.max(jnp.abs(turned), axis=(1, 2), keepdims=True)
            adam = jnp.where(jnp.abs(turned) > 1e-3 * scale, turned / jnp.sqrt(second[name]), 0.0)
            updates = {**updates, name: (left @ adam @ right.mT).reshape(g.shape)}
        return updates, (sums, second)

    return optax.GradientTransformation(init, update)


def library(name, **arguments):
    """The package's optimizer of an optax direction, by name."""
    return lambda info: dm.depthmup(direction(name, **arguments), info, RULE, 1.0)


# Optimizer -> what builds it, learning rate, and the power of m that its updates have without the rule's factor:
# optax's consistent_rms for Muon, Adam's 1/m for Shampoo, no factor for the others.
OPTIMIZERS = {
    "SGD (linear)": (library("sgd"), 2.0**-15, 1.0),
    "Adam (sign)": (library("adam"), 2.0**-14, 1.0),
    "Muon (orthogonal)": (lambda info: dm.muon(1.0, info, RULE), 2.0**-12, 0.5),
    "Shampoo (two_sided)": (lambda info: dm.depthmup(shampoo(), info, RULE, 1.0, geometry="two_sided"), 2.0**-10, -1.0),
    "SOAP (rotated)": (lambda info: dm.depthmup(soap(), info, RULE, 1.0, geometry="rotated"), 2.0**-10, 0.5),
    "LAMB (norm_matched)": (library("lamb"), 2.0**-11, 0.5),
    # Their steps are shares of norms, so the rate is theirs. Wrong: the other's factor.
    "AdamH (norm_matched)": (lambda info: dm.adamh(2.0**-11, info, RULE), 1.0, 0.5),
    "MuonH (orthogonal)": (lambda info: dm.muonh(2.0**-11, info, RULE), 1.0, -0.5),
    "Adafactor (norm_matched)": (library("adafactor", min_dim_size_to_factor=16), 2.0**-11, 0.5),
}

# The sum of a few examples' gradients has fewer dimensions than the features, which is not what they are scaled for.
FEW_STEPS_DO_NOT_SHOW = ("SOAP (rotated)",)


def last_stream(model, params, x):
    """``[B, ..., n]``: the stream after the last block."""
    _, seen = model.apply({"params": params}, x, mutable=["intermediates"])
    streams = jax.tree_util.tree_flatten_with_path(seen["intermediates"])[0]
    streams = [(path_name(path), leaf) for path, leaf in streams if "stream" in path_name(path)]
    return max(streams)[1][-1]  # of the last segment, the last layer


def widths(model_name, optimizer_name):
    """The first convolutions of SimpleResNet have an eighth of its width; eigenvectors take the width's cube."""
    if "two_sided" in optimizer_name or "rotated" in optimizer_name:
        return (32, 64, 128)
    return (128, 256, 512) if model_name == "SimpleResNet" else (64, 128, 256)


def make(model_name, optimizer_name, width, depth):
    """A model of a size, with the base of its axis."""
    base = {"base_width": widths(model_name, optimizer_name)[0], "base_depth": DEPTHS[0]}
    return MODELS[model_name](width=width, depth=depth, **base, rule=RULE)


def one_batch(model_name, size):
    """``[B, ...]`` inputs and random labels."""
    rng = np.random.default_rng(0)
    if model_name == "GPT":
        return jnp.asarray(rng.integers(0, 16, size=(size, 8))), jnp.asarray(rng.integers(0, 16, size=(size, 8)))
    x = jnp.asarray(rng.normal(size=(size, 8, 8, 3)), jnp.float32)
    return x, jnp.asarray(rng.integers(0, 10, size=size))


def new_batch(key, size):
    """``[B, 8, 8, 3]`` noise and the labels of a linear teacher."""
    x = jax.random.normal(key, (size, 8, 8, 3))
    return x, jnp.argmax(x.reshape(size, -1) @ jax.random.normal(jax.random.key(2), (8 * 8 * 3, 10)), axis=-1)


@functools.cache
def changes(model_name, optimizer_name, width, depth, training=FEW):
    """``[2, seeds]``: the right change, and that of the updates times ``wrong`` powers of m and r."""
    model = make(model_name, optimizer_name, width, depth)
    x, labels = one_batch(model_name, training.batch)
    build, rate, power = OPTIMIZERS[optimizer_name]
    matched = "norm_matched" in optimizer_name or "MuonH" in optimizer_name
    leaves = flatten_info(audited_model(model, x).info)
    initial = dict(zip(leaves, jax.tree.leaves(nn.unbox(model.init(jax.random.key(0), x))["params"]), strict=True))
    # Queries start at zero, which has no norm to match.
    zeros = {path for path in leaves if matched and not jnp.any(initial[path])}
    info = {path: leaf for path, leaf in leaves.items() if leaf.role is Role.HIDDEN and path not in zeros}
    optimizer = optax.with_extra_args_support(build(info))
    wrong = model.width_ratio**power * model.depth_ratio**0.5  # r^-gamma is 1 for one that does not know of it

    def run(key, factor):
        params = nn.unbox(model.init(key, x))["params"]
        structure, flat = jax.tree.structure(params), dict(zip(leaves, jax.tree.leaves(params), strict=True))
        whole = lambda trained: jax.tree.unflatten(structure, [{**flat, **trained}[path] for path in leaves])

        def loss(trained, x, labels):
            logits = model.apply({"params": whole(trained)}, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        def step(i, carry):
            trained, state = carry
            fresh = training.new_batches
            batch = new_batch(jax.random.fold_in(key, i), training.batch) if fresh else (x, labels)
            updates, state = optimizer.update(jax.grad(loss)(trained, *batch), state, trained)
            return jax.tree.map(lambda w, u: w + rate * factor * u, trained, updates), state

        start = {path: flat[path] for path in info}
        trained, _ = jax.lax.fori_loop(0, training.steps, step, (start, optimizer.init(start)))
        moved = last_stream(model, whole(trained), x) - last_stream(model, whole(start), x)
        return jnp.sqrt(jnp.mean(moved**2))

    keys = jax.random.split(jax.random.key(1), SEEDS)
    return np.asarray(jax.jit(jax.vmap(jax.vmap(run, (0, None)), (None, 0)))(keys, jnp.array([1.0, wrong])))


def exponents(model_name, optimizer_name, axis, training=FEW):
    """The fitted exponents with and without the rule's factor, each with its 95 % interval over seeds."""
    wide = widths(model_name, optimizer_name)
    sizes = {
        "width": [(n, DEPTHS[0]) for n in wide],
        "depth": [(wide[0], depth) for depth in DEPTHS],
        "both": list(zip(wide, DEPTHS, strict=True)),
    }[axis]
    ratio = "depth_ratio" if axis == "depth" else "width_ratio"
    ratios = np.array([getattr(make(model_name, optimizer_name, *size), ratio) for size in sizes])
    values = np.log([changes(model_name, optimizer_name, *size, training) for size in sizes])  # [sizes, 2, seeds]
    centered = np.log(ratios) - np.log(ratios).mean()
    slopes = np.einsum("s,swk->wk", centered, values) / (centered**2).sum()  # [2, seeds]
    return [(row.mean(), 2.57 * row.std(ddof=1) / SEEDS**0.5) for row in slopes]  # t of 5 degrees of freedom


def table(models, training, named=()):
    """Rows of optimizers and axes, columns of ``models``."""
    rows = [
        "| optimizer | axis | " + " | ".join(f"{name}: right | {name}: wrong" for name in models) + " |",
        "|" + " ".join(["", *["--- |"] * (2 + 2 * len(models))]),
    ]
    for optimizer in (name for name in OPTIMIZERS if not named or any(word in name for word in named)):
        if optimizer in FEW_STEPS_DO_NOT_SHOW and training is FEW:
            continue
        for axis in AXES:
            cells = [exponents(model, optimizer, axis, training) for model in models]
            printed = [f"{mean:+.2f} ± {spread:.2f}" for pair in cells for mean, spread in pair]
            rows.append("| " + " | ".join([optimizer, axis, *printed]) + " |")
            print(rows[-1], file=sys.stderr, flush=True)
    return "\n".join(rows)


TABLES = {"Geometries": (tuple(MODELS), FEW), "Geometries after 40 steps": (("ResMLP",), MANY)}


if __name__ == "__main__":
    for title, (models, training) in TABLES.items():
        text = table(models, training, [word for word in sys.argv[1:] if word != "--write"])
        print(text)
        if sys.argv[1:] == ["--write"]:
            part = re.compile(rf"(<!-- {title} -->\n).*?(<!-- end -->)", re.DOTALL)
            DOCUMENT.write_text(part.sub(rf"\g<1>{text}\n\g<2>", DOCUMENT.read_text()))
