"""The tables of optimizers.md: what `depthmup` does with every transformation of optax, and measured exponents.

python -m reproduction.pages.optimizer_table             # measures them and replaces those of optimizers.md
python -m reproduction.pages.optimizer_table Directions  # one of them
"""

import functools
import inspect
import os
import pathlib
import re
import sys
import time

if __name__ == "__main__":  # as tests/conftest.py has it: these programs compile for longer than they compute
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=1"
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import jax
import numpy as np
import optax
import optax.contrib

import depthmup_flax as dm
from depthmup_flax.rule.info_trees import is_info
from depthmup_flax.rule.parametrization import Geometry
from reproduction.pages.optimizer_slopes import BASE, ETA, RULE, around, info_of, slopes

DOCUMENT = pathlib.Path(__file__).with_name("optimizers.md")
TABLES = ("Directions", "Wrappers", "Refused", "Finished optimizers")

# Arguments of transformations that have required ones, or whose defaults do nothing in four steps; as they are printed.
ARGUMENTS = {
    "adaptive_grad_clip": "0.01",
    "add_decayed_weights": "100.0",
    "add_noise": "1e4, 0.55, key=jax.random.key(0)",
    "apply_every": "2",
    "clip": "0.1",
    "clip_by_block_rms": "0.01",
    "clip_by_global_norm": "1.0",
    "differentially_private_aggregate": "1.0, 1.0, key=jax.random.key(0)",
    "ema": "0.9",
    "monitor": "{'norm': optax.tree.norm}",
    "scale": "0.5",
    "scale_by_backtracking_linesearch": "10",
    "scale_by_factored_rms": "min_dim_size_to_factor=2",
    "scale_by_galore": "4",
    "scale_by_acprop": "eps_root=0.01",
    "scale_by_cocob": "",
    "scale_by_lbfgs": "memory_size=1",
    "scale_by_madgrad": "0.001, momentum=0.0",
    "scale_by_rprop": "1.0",
    "scale_by_schedule": "lambda step: 1 / (1 + step)",
    "scale_by_zoom_linesearch": "10",
    "snapshot": "'norm', optax.tree.norm",
    "trace": "0.9",
    # What wraps others, around Adam.
    "chain": "optax.clip(0.1), optax.scale_by_adam()",
    "conditionally_mask": "optax.scale_by_adam(), lambda step: step % 2 == 0",
    "conditionally_transform": "optax.scale_by_adam(), lambda step: step % 2 == 0",
    "flatten": "optax.scale_by_adam()",
    "freeze": "STEM",
    "inject_hyperparams": "optax.scale_by_adam)(b1=0.8",
    "inject_stateful_hyperparams": "optax.scale_by_adam)(b1=0.8",
    "masked": "optax.scale_by_adam(), STEM",
    "multi_transform": "{True: optax.scale_by_adam(), False: optax.scale_by_lion()}, STEM",
    "named_chain": "('clip', optax.clip(0.1)), ('adam', optax.scale_by_adam())",
    "partition": "{True: optax.scale_by_adam(), False: optax.scale_by_lion()}, STEM",
    "selective_transform": "optax.scale_by_adam(), freeze_mask=STEM",
    "split_real_and_imaginary": "optax.scale_by_adam()",
    "with_extra_args_support": "optax.scale_by_adam()",
    "apply_if_finite": "optax.scale_by_adam(), 3",
    "lookahead": "optax.scale_by_adam(), 2, 0.5",
    "mechanize": "optax.scale_by_adam()",
    "MultiSteps": "optax.scale_by_adam(), 2",
    "sam": "optax.scale_by_adam(), optax.identity()",
    "schedule_free": "optax.scale_by_adam(), 0.1",
    # Finished optimizers.
    "adadelta": "0.1",
    "dpsgd": "0.1, 1.0, 1.0, 0",
    "noisy_sgd": "0.1, key=jax.random.key(0)",
    "signum": "0.1",
}
STEM = {"stem": True, "stem bias": True, "blocks": False, "block biases": False, "readout": False}
OTHERS = {name: not stem for name, stem in STEM.items()}
# Their steps are finished: these undo the learning rate of the measurement.
FINISHED_STEPS = ("scale_by_cocob", "scale_by_madgrad")
# Around `TX`, a finished optimizer of this package, or after it.
AROUND = {
    "MultiSteps": "optax.MultiSteps(TX, 2).gradient_transformation()",
    "apply_every": "optax.MultiSteps(TX, 2).gradient_transformation()",
    "apply_if_finite": "optax.apply_if_finite(TX, 3)",
    "chain": "optax.chain(TX, optax.ema(0.9))",
    "inject_hyperparams": "optax.inject_hyperparams(dm.adamw)(ETA, info, RULE)",
    "inject_stateful_hyperparams": "optax.inject_stateful_hyperparams(dm.adamw)(ETA, info, RULE)",
    "conditionally_mask": "optax.conditionally_mask(TX, lambda step: step % 2 == 0)",
    "freeze": "optax.chain(TX, optax.freeze(STEM))",
    "selective_transform": "optax.selective_transform(TX, freeze_mask=STEM)",
    "split_real_and_imaginary": "optax.contrib.split_real_and_imaginary(TX)",
    "with_extra_args_support": "optax.with_extra_args_support(TX)",
    "keep_params_nonnegative": "optax.chain(TX, optax.keep_params_nonnegative())",
    "lookahead": "optax.lookahead(TX, 2, 0.5)",
    "masked": "optax.chain(optax.masked(TX, STEM), optax.masked(optax.set_to_zero(), OTHERS))",
    "multi_transform": "optax.multi_transform({True: TX, False: dm.sgd(ETA, info, RULE)}, STEM)",
    "named_chain": "optax.named_chain(('optimizer', TX), ('ema', optax.ema(0.9)))",
    "mechanize": "optax.contrib.mechanize(TX)",
    "partition": "optax.partition({True: TX, False: dm.sgd(ETA, info, RULE)}, STEM)",
    "reduce_on_plateau": "optax.chain(TX, optax.contrib.reduce_on_plateau(patience=1))",
    "sam": "optax.contrib.sam(TX, dm.sgd(0.01, info, RULE))",
    "schedule_free": "optax.contrib.schedule_free(TX, ETA)",
    "scale_by_backtracking_linesearch": "optax.chain(TX, optax.scale_by_backtracking_linesearch(10))",
    "scale_by_zoom_linesearch": "optax.chain(TX, optax.scale_by_zoom_linesearch(10))",
}
# Right behind a normalization only.
BEHIND_A_NORMALIZATION = {"scale_by_param_block_rms"}
# In which table a transformation stands; a new one is added here.
NAMES = {
    "Directions": """
        centralize clip clip_by_block_rms ema identity monitor scale scale_by_acprop scale_by_adadelta scale_by_adam
        scale_by_adamax scale_by_adan scale_by_ademamix scale_by_adopt scale_by_amsgrad scale_by_belief
        scale_by_factored_rms scale_by_lion scale_by_muon scale_by_optimistic_gradient scale_by_param_block_rms
        scale_by_radam scale_by_rms scale_by_rprop scale_by_rss scale_by_schedule scale_by_sign
        scale_by_simplified_ademamix scale_by_stddev scale_by_trust_ratio scale_by_yogi set_to_zero snapshot trace
        zero_nans""",
    "Wrappers": """
        apply_every apply_if_finite chain conditionally_mask conditionally_transform flatten freeze inject_hyperparams
        inject_stateful_hyperparams keep_params_nonnegative lookahead masked mechanize multi_transform MultiSteps
        named_chain partition reduce_on_plateau sam scale_by_backtracking_linesearch scale_by_zoom_linesearch
        schedule_free selective_transform split_real_and_imaginary with_extra_args_support""",
    "Refused": """
        adaptive_grad_clip add_decayed_weights add_noise clip_by_global_norm dadapt_adamw
        differentially_private_aggregate hutchinson_estimator_diag_hessian momo momo_adam normalize
        normalize_by_update_norm prodigy scale_by_cocob scale_by_distance_over_gradients scale_by_dog scale_by_dowg
        scale_by_galore scale_by_lbfgs scale_by_madgrad scale_by_novograd scale_by_param_block_norm scale_by_polyak
        scale_by_shape scale_by_sm3 scale_by_sophia""",
}
GEOMETRIES = {
    "scale_by_muon": Geometry.ORTHOGONAL,
    "scale_by_trust_ratio": Geometry.NORM_MATCHED,
    "scale_by_param_block_rms": Geometry.NORM_MATCHED,
}
# Public names of optax without a return type that make no transformation.
NO_TRANSFORMATIONS = {"schedule_free_eval_params"}
# They need more than gradients and parameters, a bounded loss or more than a few steps (mechanize's first are below the
# rounding of the parameters); or they are random.
UNMEASURED = {
    "add_noise", "differentially_private_aggregate", "hutchinson_estimator_diag_hessian",
    "dadapt_adamw", "keep_params_nonnegative", "mechanize", "momo", "momo_adam", "prodigy",
    "scale_by_distance_over_gradients", "scale_by_muon",
    "scale_by_zoom_linesearch",
}  # fmt: skip
# They call functions of the user, which are read like other people's transformations.
READ = {"measure_with_ema", "stateless", "stateless_with_tree_map"}


@functools.cache
def makes(function):
    """Whether a function of ``optax`` makes a transformation."""
    returns = inspect.signature(function).return_annotation
    local = function.__module__.startswith(("optax._src.factorized", "optax.transforms", "optax.contrib"))
    return "GradientTransformation" in str(returns) or (returns is inspect.Signature.empty and local)


def transformations():
    """Name -> maker of every transformation of ``optax`` and ``optax.contrib``."""
    found = {
        name: getattr(module, name)
        for module in (optax, optax.contrib)
        for name in dir(module)
        if inspect.isfunction(getattr(module, name)) and not name.startswith("_")
    }
    return {name: f for name, f in found.items() if makes(f) and name not in NO_TRANSFORMATIONS} | {
        "MultiSteps": optax.MultiSteps
    }


def code(name):
    """What a user writes, ``optax.trace(0.9)``; finished optimizers get a learning rate of 0.1."""
    arguments = ARGUMENTS.get(name)
    if arguments is None:
        signature = inspect.signature(transformations()[name]).parameters
        required = [p for p, value in signature.items() if value.default is inspect.Parameter.empty]
        arguments = "0.1" if "learning_rate" in signature else ""
        assert not [p for p in required if p != "learning_rate"], f"ARGUMENTS of optimizer_table.py lacks {name}"
    module = "optax" if name in vars(optax) else "optax.contrib"
    written = f"{module}.{name}({arguments})"
    return f"optax.chain(optax.scale_by_rms(), {written})" if name in BEHIND_A_NORMALIZATION else written


def evaluate(text, **names):
    """The value of what a user writes."""
    return eval(
        text, {"dm": dm, "ETA": ETA, "RULE": RULE, "STEM": STEM, "OTHERS": OTHERS, "jax": jax, "optax": optax, **names}
    )


@functools.cache
def refusal(name):
    """The sentence with which `depthmup` refuses a transformation; "" for one that it takes."""
    info, rng = info_of(BASE), np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype("float32"), info, is_leaf=is_info)
    try:
        dm.depthmup(evaluate(code(name)), info, RULE, ETA).init(params)
    except dm.InputError as error:
        return str(error)
    return ""


def table_of(name):
    """In which of `TABLES` a transformation stands; `KeyError` for one that is new."""
    for title, names in NAMES.items():
        if name in names.split():
            return title
    arguments = inspect.signature(transformations()[name]).parameters
    if {"learning_rate", "max_learning_rate"} & arguments.keys():
        return "Finished optimizers"
    raise KeyError(name)


def inside(name):
    """`slopes` of the rule around a transformation, whether or not the rule covers it."""
    made = evaluate(code(name))
    made = optax.chain(made, optax.scale(-1 / ETA)) if name in FINISHED_STEPS else made
    return slopes(around(made, GEOMETRIES.get(name, Geometry.SIGN)))


def outside(name):
    """`slopes` of a wrapper around a finished optimizer of this package."""
    adapted = {"lookahead": synced, "sam": without_extra_arguments}.get(name, lambda optimizer: optimizer)
    adam = lambda info: dm.depthmup(optax.scale_by_adam(), info, RULE, ETA)
    return slopes(lambda info: adapted(evaluate(AROUND[name], TX=adam(info), info=info)))


def without_extra_arguments(optimizer):
    """An optimizer whose update takes none."""
    update = lambda updates, state, params: optimizer.update(updates, state, params)
    return optax.GradientTransformation(optimizer.init, update)


def synced(lookahead):
    """A transformation of the fast parameters; their slow copies are in its state."""

    def init(params):
        return lookahead.init(optax.LookaheadParams.init_synced(params)), params

    def update(updates, state, params):
        both, state = lookahead.update(updates, state[0], optax.LookaheadParams(params, slow := state[1]))
        return both.fast, (state, optax.apply_updates(slow, both.slow))

    return optax.GradientTransformation(init, update)


def printed(measured):
    """Cells: over width, of the part that is worst alone; over depth, the same."""
    cells = []
    for axis in ("width", "depth"):
        parts = {name: slope for name, slope in measured[axis].items() if name != "all" and slope is not None}
        worst = max(parts, key=lambda name: abs(parts[name]))
        cells += [f"{measured[axis]['all']:+.2f}", f"{parts[worst]:+.2f} ({worst})"]
    return cells


def row(name, table):
    """The cells of a transformation."""
    sentence = refusal(name)
    advice = sentence.split(": ", 1)[-1]
    written = f"`{code(name)}`"
    if table == "Directions":
        if name in UNMEASURED:
            return [written, "-", "-", "-", "-"]
        return [written, *(["no change", "-", "-", "-"] if name == "set_to_zero" else printed(inside(name)))]
    if table == "Wrappers":
        around_it = f"`{AROUND[name]}`" if name in AROUND else "-"
        numbers = printed(outside(name))[::2] if name in AROUND.keys() - UNMEASURED else ["-", "-"]
        within = ["refused", "-", "-"] if sentence else ["right", *printed(inside(name))[::2]]
        return [f"`{name}`", *within, around_it, *numbers]
    if table == "Refused":
        return [written, *(printed(inside(name)) if name not in UNMEASURED else 4 * ["-"]), advice]
    assert sentence, f"{name} is taken"
    return [written, direction_of(name)]


def direction_of(name):
    """What to pass in place of a finished optimizer, as the page says: written by hand."""
    rows = dict(row for row in in_document()["Finished optimizers"])
    return rows[f"`{code(name)}`"]


HEADS = {
    "Directions": ("direction", "width", "worst part", "depth", "worst part"),
    "Wrappers": ("wrapper", "inside", "width", "depth", "outside", "width", "depth"),
    "Refused": ("transformation", "width", "worst part", "depth", "worst part", "why, and what to write"),
    "Finished optimizers": ("optimizer", "pass instead"),
}


def tables():
    """Title -> names of the transformations in it."""
    names = sorted(transformations().keys() - READ, key=str.lower)
    return {title: [name for name in names if table_of(name) == title] for title in TABLES}


def markdown(title, names):
    """A table of the page."""
    rows = [HEADS[title], ["---"] * len(HEADS[title]), *(row(name, title) for name in names)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def in_document():
    """Title -> rows of cells without the head, as optimizers.md has them."""
    cells = lambda line: line.removeprefix("| ").removesuffix(" |").split(" | ")
    found = re.findall(r"^<!-- (.+?) -->\n(.*?)<!-- end -->$", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    return {title: [cells(line) for line in text.splitlines()[2:]] for title, text in found if title in TABLES}


def main():
    """Measures the tables and writes them."""
    for title, names in tables().items():
        if sys.argv[1:] and title not in sys.argv[1:]:
            continue
        started, rows = time.perf_counter(), markdown(title, names)
        start, end = f"<!-- {title} -->\n", "<!-- end -->"
        before, found, after = DOCUMENT.read_text().partition(start)
        assert found, f"{DOCUMENT} has no {start}"
        DOCUMENT.write_text(before + start + rows + "\n" + end + after.partition(end)[2])
        print(f"{title}: {len(names)} rows in {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
