"""Networks of infinite width trained by entrywise optimizers: against the theory of SGD, and our own Adam."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from depthmup_flax.auditing.config_audit import audited_model
from depthmup_flax.rule.optimizer import adamw
from depthmup_flax.util.errors import InputError
from reproduction.limits import finite_networks as networks
from reproduction.theory import entrywise_training, nonlinear_training

pytestmark = pytest.mark.usefixtures("float64")

X = np.random.default_rng(0).normal(size=(3, 5))
Y = np.array([1.0, -1.0, 0.5])
EVERY_LAYER = ("stem", "blocks", "readout")


def training(direction, *, steps=4, depth=2, samples=512, **kwargs):
    return entrywise_training(X, Y, direction, steps=steps, depth=depth, samples=samples, **kwargs)


@pytest.mark.slow
def test_without_a_nonlinear_update_it_is_the_theory_of_sgd_to_rounding():
    """What training adds are matrices here, and kernels of passes there."""
    fields = {
        "activation": "relu", "steps": 4, "depth": 2, "learning_rate": 0.4, "gamma0": 0.8, "branch_multiplier": 0.9,
        "trained": ("blocks", "readout"), "populations": 2, "samples": 256, "pre_nonlin": False,
    }  # fmt: skip
    sgd = nonlinear_training(X, Y, **fields)
    entrywise = entrywise_training(X, Y, optax.identity(), **fields)
    for name in ("outputs", "losses", "features", "gradients"):
        np.testing.assert_allclose(getattr(entrywise.mean, name), getattr(sgd.mean, name), atol=1e-12)
    assert sgd.mean.losses[-1] < 0.9 * sgd.mean.losses[0]


@pytest.mark.slow
def test_our_networks_trained_by_adam_approach_its_theory_alone_as_one_over_width():
    """`ResMLP`'s default form and `adamw`, all layers; the other theory has an epsilon of the gradients' size."""
    fields = {"activation": "relu", "learning_rate": 0.1, "gamma0": 0.7, "trained": EVERY_LAYER}
    own = training(optax.scale_by_adam(), populations=32, **fields)
    other = training(optax.scale_by_adam(eps=0.3), populations=4, **fields)
    batches = [jnp.repeat(jnp.asarray(values)[None], 4, axis=0) for values in (X, Y)]
    errors, to_other = {}, {}
    for width in (64, 256):
        model = networks.network("relu", width, 2, pre_nonlin=False, mean_subtraction=True, gamma0=0.7)
        optimizer = adamw(0.1, audited_model(model, X).info, model.rule)
        outputs = networks.trajectories(
            model, optimizer, *batches, lambda p, model=model: networks.forward(model, p, jnp.asarray(X))[0],
            jax.random.split(jax.random.key(width), 2**13 // width), lanes=32,
        )  # fmt: skip
        errors[width] = float(jnp.mean((outputs - own.mean.outputs) ** 2))
        to_other[width] = float(jnp.mean((outputs.mean(0) - other.mean.outputs) ** 2))
    power = lambda of_width: np.log(of_width[256] / of_width[64]) / np.log(4)
    assert abs(power(errors) + 1) < 0.2, errors
    assert power(to_other) > -0.3, to_other


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"samples": 50}, "samples is 50: use an even number of at least 156, 3 for each of 52 Gaussian variables"),
        ({"trained": ["block"]}, "trained is"),
        ({"activation": "swish"}, "activation is 'swish'"),
        ({"steps": 0}, "steps is 0"),
    ],
)
def test_bad_input_is_one_sentence(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        training(optax.scale_by_adam(), **{"activation": "relu", **fields})
