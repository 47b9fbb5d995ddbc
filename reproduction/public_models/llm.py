"""Qwen 3 of google-tunix, unchanged, with tied embeddings: losses of 16 x 2, and of 64 x 8 with the rule and without.

pip install google-tunix && python llm.py TEXT_FILE llm.jsonl  # rerunning resumes
"""

import json
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy
from tunix.models.qwen3.model import ModelConfig, Qwen3

import depthmup_flax as dm

BASE, LARGE = (16, 2), (64, 8)  # width, depth
RATES, PLAIN_RATES = dm.powers_of_two(-7, -2), dm.powers_of_two(-9, -2)
STEPS, BATCH, LENGTH, VOCABULARY, SEEDS = 400, 8, 32, 65, range(5)
SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 1.0, STEPS // 10, STEPS)
INPUTS = jnp.arange(LENGTH)[None], None, jnp.tril(jnp.ones((1, LENGTH, LENGTH), bool))  # positions, no cache, mask


def net(size, seed):
    """The package's model of (width, depth)."""
    heads = {"num_heads": size[0] // 8, "num_kv_heads": size[0] // 8, "head_dim": 8}
    sizes = {"embed_dim": size[0], "hidden_dim": 3 * size[0], "num_layers": size[1], "vocab_size": VOCABULARY}
    config = ModelConfig(**sizes, **heads, rope_theta=10_000, norm_eps=1e-6, use_tied_embedding=True)
    return Qwen3(config, rngs=nnx.Rngs(seed))


def trainer(size, adam):
    """Parameters, batches, rate -> the mean loss of the last tenth of the steps."""
    graph = nnx.graphdef(net(size, 0))
    loss = lambda params, text: cross_entropy(nnx.merge(graph, params)(text[:, :-1], *INPUTS)[0], text[:, 1:]).mean()

    def train(params, batches, rate):
        optimizer = adam(lambda step: rate * SCHEDULE(step))

        def step(state, batch):
            value, gradients = jax.value_and_grad(loss)(state[0], batch)
            updates, moments = optimizer.update(gradients, state[1], state[0])
            return (optax.apply_updates(state[0], updates), moments), value

        return jax.lax.scan(step, (params, optimizer.init(params)), batches)[1][-STEPS // 10 :].mean()

    return jax.jit(train)


def main(text_file, records):
    """Trains what the records lack; a line is run, seed, rate, loss, processor seconds."""
    text = np.unique(np.fromfile(text_file, np.uint8), return_inverse=True)[1]
    windows = np.lib.stride_tricks.sliding_window_view(text, LENGTH + 1)[::LENGTH]
    audit = dm.audit(net(LARGE, 0), net(BASE, 0), (windows[:1, :-1], *INPUTS), output=0)
    print(audit)
    rule = lambda rate: dm.adamw(rate, audit)
    runs = {"base": (BASE, optax.adam, RATES), "rule": (LARGE, rule, RATES), "plain": (LARGE, optax.adam, PLAIN_RATES)}
    trainers = {name: trainer(size, adam) for name, (size, adam, _) in runs.items()}
    pathlib.Path(records).touch()
    done = [json.loads(line)[:3] for line in pathlib.Path(records).read_text().splitlines()]
    for seed in SEEDS:
        batches = np.random.default_rng(seed).permutation(windows)[: STEPS * BATCH].reshape(STEPS, BATCH, -1)
        for name, (size, _, rates) in runs.items():
            model = net(size, seed)
            start = dm.rescale_init(model, net(BASE, seed), audit) if name == "rule" else nnx.state(model)
            for rate in rates:
                if [name, seed, rate] not in done:
                    clock = time.process_time()
                    loss = float(trainers[name](start, batches, rate))
                    with open(records, "a") as file:
                        print(json.dumps([name, seed, rate, loss, time.process_time() - clock]), file=file)


if __name__ == "__main__":
    main(*sys.argv[1:])
