"""What a workload adds to its task."""

import re

import jax
import pytest

from depthmup_flax.config import default_config
from depthmup_flax.trainer.engine.from_config import abstract_batch, build


@pytest.mark.parametrize(("field", "written"), [("", "HIGHEST"), ("tensorfloat32", "HIGH"), ("bfloat16", "DEFAULT")])
def test_products_of_our_networks_are_exact_unless_a_precision_is_asked_for(field, written):
    config = default_config()
    config.model.update(width=16, depth=2)
    config.train.matmul_precision = field
    experiment = build(config)
    arguments = experiment.state_shapes(), abstract_batch(config, experiment.dataset)
    jaxpr = str(jax.make_jaxpr(experiment.workload.step({}))(*arguments))
    assert set(re.findall(r"precision=(.*)", jaxpr)) == {f"(Precision.{written}, Precision.{written})"}
