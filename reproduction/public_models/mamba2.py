"""Mamba-2 of mamba2-jax, unchanged, with tied embeddings: losses of 16 x 2, and of 64 x 8 with the rule and without.

pip install mamba2-jax && python mamba2.py TEXT_FILE mamba2.jsonl  # rerunning resumes
"""

import json
import pathlib
import sys
import time

import jax
import numpy as np
import optax
from flax import nnx
from mamba2_jax.modeling import Mamba2Config, Mamba2ForCausalLM
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy

import depthmup_flax as dm

BASE, LARGE = (16, 2), (64, 8)  # width, depth
RATES, PLAIN_RATES = dm.powers_of_two(-7, -3), dm.powers_of_two(-9, -3)
STEPS, BATCH, LENGTH, VOCABULARY, SEEDS = 200, 8, 32, 65, range(5)
SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 1.0, STEPS // 10, STEPS)


def net(size, seed):
    """The package's model of (width, depth)."""
    sizes = {"hidden_size": size[0], "num_hidden_layers": size[1], "vocab_size": VOCABULARY}
    config = Mamba2Config(**sizes, head_dim=8, state_size=16, chunk_size=LENGTH)
    return Mamba2ForCausalLM(config, rngs=nnx.Rngs(seed))


def trainer(size, adam):
    """Parameters, batches, rate -> the mean loss of the last tenth of the steps."""
    graph = nnx.graphdef(net(size, 0))
    loss = lambda params, text: cross_entropy(nnx.merge(graph, params)(text[:, :-1])["logits"], text[:, 1:]).mean()

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
    audit = dm.audit(net(LARGE, 0), net(BASE, 0), windows[:1, :-1], output="logits")
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
