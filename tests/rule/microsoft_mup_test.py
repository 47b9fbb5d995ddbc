"""The ``mup`` preset against microsoft/mup: factors, initial values, outputs and training of the same two networks."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import depthmup_flax as dm

torch = pytest.importorskip("torch")
mup = pytest.importorskip("mup")
from torch.nn import functional  # noqa: E402

pytestmark = pytest.mark.slow  # importing torch

RULE = dm.get_parametrization("mup")
BASE, WIDTH, DELTA = 16, 64, 32
HEADS, CLASSES, INPUTS, VOCABULARY, LENGTH = 2, 5, 12, 11, 6


class Mlp(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.stem, self.hidden = torch.nn.Linear(INPUTS, n), torch.nn.Linear(n, 2 * n)
        self.norm, self.readout = torch.nn.LayerNorm(2 * n), mup.MuReadout(2 * n, CLASSES)

    def forward(self, x):
        return self.readout(functional.relu(self.norm(self.hidden(functional.relu(self.stem(x))))))


class Transformer(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        linear, norm = torch.nn.Linear, torch.nn.LayerNorm
        self.tokens, self.positions = torch.nn.Embedding(VOCABULARY, n), torch.nn.Embedding(LENGTH, n)
        self.norm_1, self.q, self.k, self.v, self.out = norm(n), *(linear(n, n) for _ in range(4))
        self.norm_2, self.up, self.down = norm(n), linear(n, 4 * n), linear(4 * n, n)
        self.norm, self.readout = norm(n), mup.MuReadout(n, VOCABULARY, bias=False)
        self.scale = (BASE // HEADS) ** 0.5 / (n // HEADS)  # their 1/d, and 1/sqrt(d) at the base

    def forward(self, x):
        h = self.tokens(x) + self.positions.weight
        z, heads = self.norm_1(h), lambda y: y.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        q, k, v = heads(self.q(z)), heads(self.k(z)), heads(self.v(z))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        h = h + self.out(mixed.transpose(1, 2).flatten(-2))
        h = h + self.down(functional.gelu(self.up(self.norm_2(h))))
        return self.readout(self.norm(h))


def linear(params, name, x):
    return x @ params[f"{name}.weight"] + params[f"{name}.bias"]


def layer_norm(params, name, x):
    return jax.nn.standardize(x, epsilon=1e-5) * params[f"{name}.weight"] + params[f"{name}.bias"]


def mlp(params, x):
    h = linear(params, "hidden", jax.nn.relu(linear(params, "stem", x)))
    h = jax.nn.relu(layer_norm(params, "norm", h))
    m = h.shape[-1] / (2 * BASE)
    return h @ params["readout.weight"] * RULE.readout_multiplier(m) + params["readout.bias"]


def transformer(params, x):
    h = params["tokens.weight"][x] + params["positions.weight"]
    n = h.shape[-1]
    z, heads = layer_norm(params, "norm_1", h), lambda y: y.reshape(*y.shape[:-1], HEADS, -1)
    q, k, v = (heads(linear(params, name, z)) for name in "qkv")
    scale = RULE.attention_scale(n // HEADS, BASE // HEADS)
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True, scale=scale)
    h = h + linear(params, "out", mixed.reshape(h.shape))
    z = jax.nn.gelu(linear(params, "up", layer_norm(params, "norm_2", h)), approximate=False)
    h = h + linear(params, "down", z)
    return layer_norm(params, "norm", h) @ params["readout.weight"] * RULE.readout_multiplier(n / BASE)


class Pair:
    """A network in PyTorch with its base shapes set, and the same function and parameters in JAX."""

    def __init__(self, network, function, inputs, targets):
        torch.manual_seed(0)
        base, delta, self.theirs = network(BASE), network(DELTA), network(WIDTH)
        self.base, self.fresh = self.converted(base), self.converted(self.theirs)
        mup.set_base_shapes(self.theirs, base, delta=delta)
        self.function, self.inputs, self.targets = function, inputs, targets
        self.audit = dm.audit((function, self.fresh), (function, self.base), inputs, axes="width")

    @staticmethod
    def converted(network):
        """Path -> array in JAX's layout: kernels are [in, out]."""
        tables = {f"{name}.weight" for name, m in network.named_modules() if isinstance(m, torch.nn.Embedding)}
        arrays = {name: p.detach().numpy().copy() for name, p in network.named_parameters()}
        return {name: jnp.asarray(x.T if x.ndim == 2 and name not in tables else x) for name, x in arrays.items()}

    def their_loss(self):
        outputs = self.theirs(torch.tensor(self.inputs))
        return functional.cross_entropy(outputs.flatten(0, -2), torch.tensor(self.targets).flatten())

    def our_loss(self, params):
        outputs = self.function(params, self.inputs)
        return optax.softmax_cross_entropy_with_integer_labels(outputs, self.targets).mean()

    def their_groups(self, optimizer):
        """Path -> the parameter group in which their optimizer has it."""
        names = {id(p): name for name, p in self.theirs.named_parameters()}
        return {names[id(p)]: group for group in optimizer.param_groups for p in group["params"]}


@pytest.fixture(params=["mlp", "transformer"])
def pair(request):
    rng = np.random.default_rng(0)
    if request.param == "mlp":
        inputs = rng.normal(size=(40, INPUTS)).astype(np.float32)
        return Pair(Mlp, mlp, inputs, rng.integers(0, CLASSES, 40))
    tokens = rng.integers(0, VOCABULARY, (7, LENGTH + 1))
    return Pair(Transformer, transformer, tokens[:, :-1], tokens[:, 1:])


def test_the_audit_passes_and_the_learning_rates_and_decays_are_theirs(pair):
    assert pair.audit.ok, pair.audit
    for make, degree in ((mup.MuAdamW, 0), (mup.MuSGD, 1)):
        groups = pair.their_groups(make(pair.theirs.parameters(), lr=1.0, weight_decay=0.25))
        ours = {name: RULE.lr_multiplier(leaf, degree) for name, leaf in pair.audit.info.items()}
        assert ours == pytest.approx({name: group["lr"] for name, group in groups.items()})
        # They decay by lr * weight_decay, and scale both; ours is the same at every size.
        assert {group["lr"] * group["weight_decay"] for group in groups.values()} == {0.25}


def test_initial_weights_are_theirs(pair):
    """From the same draws. Their biases, which PyTorch draws with 1/sqrt(fan_in), grow as those of Flax, zeros, do."""
    ours = dm.rescale_init(pair.fresh, pair.base, pair.audit.info, RULE)
    theirs = pair.converted(pair.theirs)
    for name in (name for name in theirs if not name.endswith("bias")):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_training_gives_their_losses(pair, name):
    params = pair.converted(pair.theirs)
    if name == "adam":
        theirs = mup.MuAdam(pair.theirs.parameters(), lr=0.01)
        ours = dm.adamw(0.01, pair.audit.info, RULE)
    else:
        theirs = mup.MuSGD(pair.theirs.parameters(), lr=0.05, momentum=0.9)
        ours = dm.sgd(0.05, pair.audit.info, RULE, momentum=0.9)
    state, gradient, losses = ours.init(params), jax.jit(jax.value_and_grad(pair.our_loss)), []
    for _ in range(8):
        loss = pair.their_loss()
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        our_loss, gradients = gradient(params)
        updates, state = ours.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        losses.append((float(our_loss), float(loss.detach())))
    np.testing.assert_allclose(*np.transpose(losses), rtol=1e-5)
    assert losses[-1][0] < 0.9 * losses[0][0]
