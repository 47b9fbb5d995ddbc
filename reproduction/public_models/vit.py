"""A ViT of equimo (Equinox), unchanged, on CIFAR-10: losses of 16 x 2, and of 64 x 8 with the rule and without.

pip install equimo tensorflow-datasets && python vit.py vit.jsonl  # rerunning resumes
"""

import json
import pathlib
import sys
import time

import equinox as eqx
import jax
import numpy as np
import optax
import tensorflow_datasets as tfds
from equimo.models.vit import VisionTransformer
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy

import depthmup_flax as dm

BASE, LARGE = (16, 2), (64, 8)  # width, depth
RATES, PLAIN_RATES = dm.powers_of_two(-8, -4), dm.powers_of_two(-10, -4)
STEPS, BATCH, SEEDS = 200, 16, range(5)
SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 1.0, STEPS // 10, STEPS)


def net(size, seed):
    """The package's model of (width, depth)."""
    sizes = {"img_size": 32, "in_channels": 3, "patch_size": 8, "num_classes": 10}
    heads = size[0] // 8
    return VisionTransformer(dim=size[0], depths=[size[1]], num_heads=heads, **sizes, key=jax.random.key(seed))


def trainer(size, adam):
    """Parameters, batches, rate -> the mean loss of the last tenth of the steps."""
    static = eqx.partition(net(size, 0), eqx.is_inexact_array)[1]

    def loss(params, batch):
        model = eqx.combine(params, static)
        logits = jax.vmap(lambda image: model(image, jax.random.key(0)))(batch["image"])
        return cross_entropy(logits, batch["label"]).mean()

    def train(params, batches, rate):
        optimizer = adam(lambda step: rate * SCHEDULE(step))

        def step(state, batch):
            value, gradients = jax.value_and_grad(loss)(state[0], batch)
            updates, moments = optimizer.update(gradients, state[1], state[0])
            return (optax.apply_updates(state[0], updates), moments), value

        return jax.lax.scan(step, (params, optimizer.init(params)), batches)[1][-STEPS // 10 :].mean()

    return jax.jit(train)


def main(records):
    """Trains what the records lack; a line is run, seed, rate, loss, processor seconds."""
    images = {"image": [], "label": []}
    for one in tfds.data_source("cifar10", split="train[:10%]"):
        images["image"].append((one["image"].transpose(2, 0, 1) / 127.5 - 1).astype(np.float32))
        images["label"].append(one["label"])
    audit = dm.audit(net(LARGE, 0), net(BASE, 0), np.stack(images["image"][:1]))
    print(audit)
    rule = lambda rate: dm.adamw(rate, audit)
    runs = {"base": (BASE, optax.adam, RATES), "rule": (LARGE, rule, RATES), "plain": (LARGE, optax.adam, PLAIN_RATES)}
    trainers = {name: trainer(size, adam) for name, (size, adam, _) in runs.items()}
    pathlib.Path(records).touch()
    done = [json.loads(line)[:3] for line in pathlib.Path(records).read_text().splitlines()]
    for seed in SEEDS:
        order = np.random.default_rng(seed).permutation(5000)[: STEPS * BATCH].reshape(STEPS, BATCH)
        batches = {name: np.stack(values)[order] for name, values in images.items()}
        for name, (size, _, rates) in runs.items():
            start, small = (eqx.filter(net(of, seed), eqx.is_inexact_array) for of in (size, BASE))
            if name == "rule":
                start = dm.rescale_init(start, small, audit)
            for rate in rates:
                if [name, seed, rate] not in done:
                    clock = time.process_time()
                    loss = float(trainers[name](start, batches, rate))
                    with open(records, "a") as file:
                        print(json.dumps([name, seed, rate, loss, time.process_time() - clock]), file=file)


if __name__ == "__main__":
    main(*sys.argv[1:])
