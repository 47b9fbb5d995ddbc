"""What `in_branch` must match, and must not."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from shapes import infer

from depthmup_flax import (
    Axes,
    InputError,
    Role,
    get_parametrization,
    infer_info,
)
from depthmup_flax.rule.info_trees import flatten_info

RULE = get_parametrization("depth_mup")


class Unnamed(nn.Module):
    """A residual network whose modules Flax numbers."""

    width: int
    tokens: bool = False

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width)(x)
        h = h + nn.Embed(5, self.width)(jnp.arange(1)) if self.tokens else h
        for _ in range(3):
            h = h + nn.Dense(self.width)(nn.LayerNorm()(h))
        return nn.Dense(10, name="head")(nn.LayerNorm()(h))


def infer_unnamed(in_branch, tokens=False, readout="head", **kwargs):
    both = [jax.eval_shape(Unnamed(n, tokens).init, jax.random.key(0), jnp.ones((1, 6)))["params"] for n in (16, 8)]
    if readout == "Dense_4":  # the head without its name, too
        both = [{**{k: v for k, v in params.items() if k != "head"}, "Dense_4": params["head"]} for params in both]
    return infer_info(*both, in_branch=in_branch, depth_ratio=2.0, readout=readout, **kwargs)


@pytest.mark.parametrize(
    ("in_branch", "kwargs", "message"),
    [
        ("Dense_*", {"readout": "Dense_4"}, "matches 'Dense_4/kernel' of shape (16, 10), which leaves no readout"),
        ("Dense_*", {}, "matches 'Dense_0/kernel' of shape (6, 16), which looks like the model's stem"),
        ("Dense_*", {"tokens": True}, "'Dense_0/kernel' of shape (6, 16), which looks like the model's stem"),
        (["Dense_[123]", "LayerNorm_*"], {}, "matches 4 modules LayerNorm_*, one more than 3 in 3 layers, so "),
        (lambda path: "Dense" in path, {}, "name the blocks in the model (name='block_0', ...) and write "),
    ],
)  # fmt: skip
def test_a_stem_a_readout_or_a_final_norm_in_branches_is_refused(in_branch, kwargs, message):
    with pytest.raises(InputError) as error:
        infer_unnamed(in_branch, **kwargs)
    assert message in str(error.value)


def test_numbered_layers_that_are_the_branches_alone_are_right():
    info = flatten_info(infer_unnamed(["Dense_[123]", "LayerNorm_[012]"]))
    assert {path.split("/")[0] for path, leaf in info.items() if leaf.in_branch} == {
        "Dense_1", "Dense_2", "Dense_3", "LayerNorm_0", "LayerNorm_1", "LayerNorm_2",
    }  # fmt: skip


def test_a_model_without_a_stem_says_so_of_what_looks_like_one():
    leaves = {"blocks/mix/kernel": ((3, 3, 1, 16), (3, 3, 1, 8)), "blocks/w": ((16, 16), (8, 8))}
    with pytest.raises(InputError, match=re.escape("Axes((None, None, 'fixed_in', 'width_out'), in_branch=True, ")):
        infer(leaves, in_branch="blocks", depth_ratio=2.0)
    axes = Axes((None, None, "fixed_in", "width_out"), in_branch=True, depth_ratio=2.0)
    leaf = infer(leaves, in_branch="blocks", depth_ratio=2.0, overrides={"blocks/mix/kernel": axes})
    assert leaf["blocks/mix/kernel"].in_branch
    # Layers that have one each are no stem, nor is one besides a stem.
    two = {f"blocks/{i}/{path[7:]}": shape for path, shape in leaves.items() for i in (0, 1)}
    assert infer(two, in_branch="blocks", depth_ratio=2.0)["blocks/1/mix/kernel"].in_branch
    stem = {"stem/kernel": ((3, 16), (3, 8))}
    assert infer({**leaves, **stem}, in_branch="blocks", depth_ratio=2.0)["blocks/mix/kernel"].in_branch


def test_low_rank_weights_inside_branches_are_right():
    leaves = {"emb": ((50, 16), (50, 8)), "blocks/w": ((16, 16), (8, 8)), "blocks/down": ((16, 2), (8, 2))}
    leaves["blocks/up/kernel"] = ((2, 16), (2, 8))
    info = infer(leaves, in_branch="blocks", depth_ratio=2.0, readout=("head", "blocks/down"))
    assert [info[path].role for path in ("blocks/down", "blocks/up/kernel")] == [Role.OUTPUT, Role.INPUT]


@pytest.mark.parametrize(
    ("in_branch", "message"),
    [
        ("layers/1", "matches 'layers/1/kernel' but not 'layers/0/kernel' of an equal block: match all blocks, such "),
        (lambda path: path[:8] in ("layers/0", "layers/2"), "matches 'layers/0/kernel' but not 'layers/1/kernel' of "),
        ("layers/*/kernel", "in_branch matches 'layers/0/kernel' but not 'layers/0/bias' of the same layer: "),
    ],
)  # fmt: skip
def test_branches_that_are_named_in_part_are_refused(in_branch, message):
    layers = {
        f"layers/{i}/{name}": shape
        for i in range(4)
        for name, shape in {"kernel": ((16, 16), (8, 8)), "bias": ((16,), (8,))}.items()
    }
    with pytest.raises(InputError) as error:
        infer(layers, in_branch=in_branch, depth_ratio=2.0)
    assert message in str(error.value)
    axes = {"layers/3/kernel": (None, "width_in", "width_out"), "layers/3/bias": (None, "width_out")}
    outside = {path: Axes(names[1:], in_branch=False) for path, names in axes.items()}
    info = infer(layers, in_branch="layers/[012]", depth_ratio=2.0, overrides=outside)
    assert not info["layers/3/kernel"].in_branch
