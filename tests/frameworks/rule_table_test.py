"""The exported table, and its reader of docs/pytorch.md, which accepts no other model, base, rule or version."""

import json
import pathlib
import re
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depthmup_flax as dm
from depthmup_flax.commands import app
from depthmup_flax.rule.info_trees import flatten_info

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "pytorch.md"


class Net(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="stem")(x)
        for i in range(self.depth):
            h = h + nn.Dense(self.width, name=f"block_{i}")(nn.relu(h))
        return nn.Dense(3, name="head")(h)


X = jnp.ones((2, 5))
AUDIT = dm.audit(Net(32, 4), Net(8, 2), X)


def shapes_of(width, depth):
    params = jax.eval_shape(Net(width, depth).init, jax.random.key(0), X)["params"]
    return {f"{module}/{name}": leaf.shape for module, leaves in params.items() for name, leaf in leaves.items()}


SHAPES, BASE = shapes_of(32, 4), shapes_of(8, 2)


@pytest.fixture(scope="module")
def read_factors():
    code = re.search(r"<!-- reader -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    names = {}
    exec(code, names)
    return names["read_factors"]


def written(tmp_path, table):
    path = tmp_path / "rule.json"
    path.write_text(json.dumps(table))
    return path


def test_rows_have_the_numbers_of_the_rule(tmp_path, read_factors):
    rows = read_factors(written(tmp_path, dm.export(AUDIT)), SHAPES, BASE, "depth_mup", "adam")
    assert rows.keys() == SHAPES.keys()
    m, r = 4, 2
    kernel = rows["block_3/kernel"]  # carries r^-1/2
    assert kernel["init_ratio"] == pytest.approx(m**-0.5)
    assert kernel["carried"] == pytest.approx(r**-0.5)
    assert kernel["adam"]["rate"] == pytest.approx(1 / m * r**-0.5 * r**-0.5)
    assert kernel["adam"]["rate"] * kernel["adam"]["decay"] == pytest.approx(1)
    assert kernel["adam"]["epsilon"] == pytest.approx(1 / (m * r**0.5 * r**-0.5))
    assert kernel["sgd"]["rate"] == pytest.approx(kernel["adam"]["rate"] * m)
    head = rows["head/kernel"]  # carries 1/m
    assert (head["init_ratio"], head["carried"], head["adam"]["rate"]) == pytest.approx((1, 1 / m, 1 / m))
    assert rows["stem/kernel"]["adam"]["rate"] == 1
    assert rows["stem/bias"]["adam"]["decay"] == 0


def test_each_parameter_has_one_row_also_where_layers_differ():
    infos = flatten_info(AUDIT)
    infos["block_2/kernel"] = dm.ParamInfo(dm.Role.INPUT, (32, 32))
    table = dm.export(infos)
    assert sum(row["matches"] for row in table["rows"]) == table["parameters"] == len(SHAPES)
    for name in SHAPES:
        assert sum(bool(re.search(row["pattern"], name)) for row in table["rows"]) == 1
    assert not any(re.search(row["pattern"], "block_9/kernel") for row in table["rows"])


def renamed(old, new):
    return {new if name == old else name: shape for name, shape in SHAPES.items()}


def without(*names):
    return {name: shape for name, shape in SHAPES.items() if name not in names}


MODELS = {
    "a renamed parameter": renamed("head/kernel", "out/kernel"),
    "two that changed names": renamed("stem/kernel", "head/kernel0"),
    "a missing parameter": without("head/bias"),
    "a frozen parameter that is not given": without("stem/kernel"),
    "an extra parameter": SHAPES | {"norm/scale": (32,)},
    "a tied weight that is named twice": SHAPES | {"decoder/kernel": (32, 3)},
    "a tied weight without a name": without("head/kernel"),
    "fewer layers": shapes_of(32, 3),
    "more layers": shapes_of(32, 5),
    "another width": shapes_of(64, 4),
    "the base": BASE,
    "a transposed weight": SHAPES | {"stem/kernel": (32, 5)},
    "another rank": SHAPES | {"head/bias": (3, 1)},
    "names behind a wrapper": {f"module/{name}": shape for name, shape in SHAPES.items()},
    "names with dots": {name.replace("/", "."): shape for name, shape in SHAPES.items()},
}


@pytest.mark.parametrize("model", MODELS)
def test_the_reader_refuses_another_model(tmp_path, read_factors, model):
    with pytest.raises(ValueError, match="export it again"):
        read_factors(written(tmp_path, dm.export(AUDIT)), MODELS[model], BASE, "depth_mup", "adam")


@pytest.mark.parametrize("base", [shapes_of(16, 2), shapes_of(8, 4), SHAPES, {}])
def test_the_reader_refuses_another_base(tmp_path, read_factors, base):
    with pytest.raises(ValueError, match="base_digest"):
        read_factors(written(tmp_path, dm.export(AUDIT)), SHAPES, base, "depth_mup", "adam")


def test_the_reader_refuses_another_rule_version_optimizer_and_an_edited_table(tmp_path, read_factors):
    def read(table, rule="depth_mup", optimizer="adam"):
        return read_factors(written(tmp_path, table), SHAPES, BASE, rule, optimizer)

    table = dm.export(AUDIT)
    block_only = dm.export(AUDIT, dm.get_parametrization("block_only"))
    wrong = [
        (table, "completep", "adam"),
        (dm.export(AUDIT, dm.get_parametrization("depth_mup", alpha=0.6)), "depth_mup", "adam"),
        (table | {"version": 2}, "depth_mup", "adam"),
        (block_only, "block_only", "sgd"),
        (table, "depth_mup", "lion"),
        (table | {"rows": table["rows"][1:]}, "depth_mup", "adam"),
        (table | {"rows": [*table["rows"], table["rows"][0]]}, "depth_mup", "adam"),
    ]
    for case in wrong:
        with pytest.raises(ValueError, match="export it again"):
            read(*case)
    assert read(block_only, "block_only")


def test_an_audit_that_is_not_ok_is_not_exported():
    audit = dm.audit(Net(32, 4), Net(8, 2), X, carry=False)
    with pytest.raises(dm.InputError, match="missing"):
        dm.export(audit)


def test_the_name_of_a_rule_is_refused_with_what_to_pass():
    with pytest.raises(dm.InputError, match=r"get_parametrization\('completep'\)"):
        dm.export(AUDIT, "completep")


def run_export(*words):
    module, parser = app.module_and_parser("export")
    module.main(parser.parsed(words))


def test_the_command_writes_the_table(tmp_path, monkeypatch):
    (tmp_path / "model_to_export.py").write_text(
        "import flax.linen as nn\n\nclass Net(nn.Module):\n    width: int\n    depth: int\n\n    @nn.compact\n"
        "    def __call__(self, x):\n        h = nn.Dense(self.width)(x)\n        for _ in range(self.depth):\n"
        "            h = h + nn.Dense(self.width)(nn.relu(h))\n        return nn.Dense(3)(h)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["model_to_export.py:Net", "--width=32", "--depth=4", "--base_width=8", "--input=2x5"]
    run_export(*words, "--base_depth=2")
    table = json.loads((tmp_path / "rule.json").read_text())
    np.testing.assert_allclose(
        sorted(row["adam"]["rate"] for row in table["rows"]),
        sorted(row["adam"]["rate"] for row in dm.export(AUDIT)["rows"]),
    )
    with pytest.raises(dm.InputError, match="base_depth"):
        run_export(*words)
    with pytest.raises(dm.InputError, match="takes no heads"):
        run_export(*words, "--base_depth=2", '--fields={"heads": 2}')
    with pytest.raises(dm.InputError, match="needs depth"):
        run_export(words[0], "--base_width=8", "--width=32", "--input=2x5")
    words = [*words[1:], "--base_depth=2", "--output=new/rule.json"]
    for file in ("./model_to_export.py", str(tmp_path / "model_to_export.py")):
        run_export(f"{file}:Net", *words)
        assert json.loads((tmp_path / "new/rule.json").read_text()) == table
    with pytest.raises(dm.InputError, match="not below"):
        run_export("../model_to_export.py:Net", *words)
    with pytest.raises(dm.InputError, match="--fields"):
        run_export("model_to_export.py:Net", *words, "--fields=[1]")


def test_the_command_names_its_own_flag_where_a_network_returns_several_arrays(tmp_path, monkeypatch):
    (tmp_path / "model_of_two.py").write_text(
        "import flax.linen as nn\n\nclass Net(nn.Module):\n    width: int\n\n    @nn.compact\n"
        "    def __call__(self, x):\n        h = nn.relu(nn.Dense(self.width)(x))\n        return nn.Dense(3)(h), h\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["model_of_two.py:Net", "--width=32", "--base_width=8", "--input=2x5"]
    with pytest.raises(dm.InputError, match="--result=") as caught:
        run_export(*words)
    assert "output" not in str(caught.value)
    with pytest.raises(dm.InputError, match="result is 'logits'"):
        run_export(*words, "--result=logits")
    run_export(*words, "--result=0")
    assert json.loads((tmp_path / "rule.json").read_text())["parameters"] == 4


def test_the_audit_of_a_flax_model_imports_no_torch():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['torchax'] = None\n"
        "import flax.linen as nn, jax.numpy as jnp, depthmup_flax as dm\n"
        "x = jnp.ones((2, 3)); info = dm.audit(nn.Dense(2), nn.Dense(2), x).info\n"
        "dm.adamw(1e-3, info); dm.export(info)\n"
        "import depthmup_flax.frameworks.torch_groups, depthmup_flax.networks.torch_modules\n"
        "try:\n    dm.rescale_init_(None, None, info)\nexcept dm.InputError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch" in done.stdout
