"""`TrainedRun.save_safetensors`: a reader with the file alone computes the network's outputs."""

import dataclasses
import json
import shutil
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import depthmup_flax as dm
from depthmup_flax.data import load

safetensors = pytest.importorskip("safetensors")
from safetensors.numpy import load_file  # noqa: E402

RULE = dm.get_parametrization("completep", branch_multiplier=0.7, gamma0=2.0)


def description(path):
    with safetensors.safe_open(path, "numpy") as file:
        return json.loads(file.metadata()["depthmup_flax"])


@pytest.fixture
def larger_than_its_base(undisturbed, tmp_path):
    """The run as if its base had half the width and a quarter of the depth."""
    path = shutil.copytree(undisturbed, tmp_path / "run")
    stored = json.loads((path / "config.json").read_text())
    stored["model"].update(base_width=8, base_depth=1)
    (path / "config.json").write_text(json.dumps(stored))
    return dm.load_run(path)


def residual_mlp(arrays, described, images):
    """The logits of `ResMLP` in NumPy, in double precision."""
    factors, data = described["multipliers"], described["data"]
    arrays = {name: array.astype(np.float64) for name, array in arrays.items()}
    x = (images / 255 - data["mean"]) / data["std"]
    h = x.reshape(len(x), -1) @ arrays["stem/kernel"]
    for kernel in arrays["blocks/branch/dense_0/kernel"]:
        z = np.maximum(h @ kernel, 0)
        h = h + factors["branch"] * (z - z.mean(-1, keepdims=True))
    return h @ arrays["readout/kernel"] * factors["readout"] * factors["output"]


def test_the_file_alone_gives_the_outputs_of_the_run(larger_than_its_base, tmp_path):
    run, path = larger_than_its_base, tmp_path / "net.safetensors"
    run.save_safetensors(path)
    arrays, described = load_file(path), description(path)
    assert described["multipliers"] == {"branch": 0.5, "readout": 0.5, "output": 1.0}
    images = load(run.config.data).test.arrays()["image"]
    np.testing.assert_allclose(residual_mlp(arrays, described, images), run.predict(images), atol=1e-5)


def test_the_file_says_which_run_and_step_it_is_of(undisturbed, tmp_path):
    run, path = dm.load_run(undisturbed, which=180), tmp_path / "net.safetensors"
    run.save_safetensors(str(path))
    described, arrays = description(path), load_file(path)
    assert (described["config_hash"], described["step"]) == (run.result["config_hash"], 180)
    assert described["config"]["model"]["width"] == 16
    for name, array in flatten_dict(run.params, sep="/").items():
        np.testing.assert_array_equal(arrays.pop(name), array)
    assert not arrays


def layer_norm(x, norm):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * norm["scale"] + norm["bias"]


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gpt(arrays, factors, tokens, heads, tied):
    """The logits of `GPT` in NumPy, in double precision."""
    arrays = {name: array.astype(np.float64) for name, array in arrays.items()}
    h = arrays["stem/embedding"][tokens] + arrays["positions"]
    of_block = {name.removeprefix("transformer/blocks/"): array for name, array in arrays.items() if "/blocks/" in name}
    split = lambda x: x.reshape(*x.shape[:-1], heads, -1).swapaxes(1, 2)
    for i in range(len(of_block["mlp/up/kernel"])):
        block = {name: array[i] for name, array in of_block.items()}
        norm = lambda name: {part: block[f"{name}/layer/{part}"] for part in ("scale", "bias")}  # noqa: B023
        x = layer_norm(h, norm("attention_norm"))
        q, k, v = (split(x @ block[f"attention/{name}/kernel"]) for name in ("query", "key", "value"))
        scores = np.where(np.tri(len(h[0])), q @ k.swapaxes(-1, -2) * factors["attention"], -np.inf)
        mixed = (softmax(scores) @ v).swapaxes(1, 2).reshape(h.shape)
        h = h + factors["branch"] * (mixed @ block["attention/out/kernel"])
        x = layer_norm(h, norm("mlp_norm"))
        h = h + factors["branch"] * (gelu(x @ block["mlp/up/kernel"]) @ block["mlp/down/kernel"])
    h = layer_norm(h, {part: arrays[f"transformer/norm/layer/{part}"] for part in ("scale", "bias")})
    kernel = arrays["stem/embedding"].T if tied else arrays["readout/kernel"]
    return h @ kernel * factors["readout"] * factors["output"]


@pytest.mark.parametrize("tied", [False, True])
def test_a_transformers_file_has_the_scale_of_attention_and_of_a_tied_readout(undisturbed, tmp_path, tied):
    model = dm.GPT(11, width=16, depth=2, base_width=8, base_depth=1, num_heads=2, rule=RULE, tied=tied)
    tokens = np.random.default_rng(0).integers(0, 11, (2, 6))
    params = nn.unbox(model.init(jax.random.key(0), tokens))["params"]
    params = jax.tree.map(lambda x: x + 0.3 * np.cos(np.arange(x.size)).reshape(x.shape), params)  # queries start at 0
    run = dataclasses.replace(dm.load_run(undisturbed), model=model, params=params)
    path = tmp_path / "net.safetensors"
    run.save_safetensors(path)
    logits = gpt(load_file(path), description(path)["multipliers"], tokens, 2, tied)
    np.testing.assert_allclose(logits, model.apply({"params": params}, tokens), rtol=1e-4, atol=1e-5)


def test_multipliers_are_the_formulas_of_the_papers():
    resnet = dm.SimpleResNet(10, width=64, depth=21, base_width=16, base_depth=3)  # r counts the three poolings
    assert resnet.multipliers == pytest.approx({"branch": (24 / 6) ** -0.5, "readout": 1 / 4, "output": 1})
    heads = dm.ViT(10, width=64, depth=8, base_width=16, base_depth=2, num_heads=4, rule=RULE)
    attention = 4**0.5 / 16  # sqrt(d_base) / d
    assert heads.multipliers == pytest.approx(
        {"branch": 0.7 / 4, "readout": 1 / 4, "output": 1 / 2, "attention": attention}
    )


def test_a_network_of_ones_own_has_its_arrays_in_their_types_and_no_multipliers(undisturbed, tmp_path):
    params = [(jnp.ones((2, 3), jnp.bfloat16).T, {"scale": np.float32(2)})]
    collections = {"batch_stats": {"mean": jnp.zeros(3)}}
    run = dataclasses.replace(dm.load_run(undisturbed), model=object(), params=params, collections=collections)
    path = tmp_path / "net.safetensors"
    run.save_safetensors(path)
    arrays = load_file(path)
    assert {name: (x.dtype, x.shape) for name, x in arrays.items()} == {
        "0/0": (ml_dtypes.bfloat16, (3, 2)),
        "0/1/scale": (np.float32, ()),
        "batch_stats/mean": (np.float32, (3,)),
    }
    assert "multipliers" not in description(path)


def test_without_the_package_one_sentence_says_what_to_install(undisturbed, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(dm.InputError, match=r"depthmup-flax\[safetensors\]"):
        dm.load_run(undisturbed).save_safetensors(tmp_path / "net.safetensors")
