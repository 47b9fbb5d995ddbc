"""The language-model path: tokens, windows, shifts, training a GPT on a text, and sampling from it."""

import functools
import math
import os
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from interruption import interrupted_before

from depthmup_flax import data
from depthmup_flax.data import text
from depthmup_flax.errors import InputError
from depthmup_flax.training.config import default_config
from depthmup_flax.training.experiment import build
from depthmup_flax.training.loop import train_and_evaluate
from depthmup_flax.training.sampling import generate
from depthmup_flax.training.step import EvalMetrics, init_state, make_eval_step, make_train_step

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

REAL = os.environ.get("DEPTHMUP_DATA", "")


def config(**fields):
    return types.SimpleNamespace(**{**data.DATA_DEFAULTS, **fields})


def load(path, **fields):
    return data.load(config(name=f"text:{path}", **fields))


def error(call, *args, **kwargs) -> str:
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def file(tmp_path):
    """1000 characters, no two neighboring windows of which are alike."""
    path = tmp_path / "text.txt"
    path.write_text("".join(np.random.default_rng(0).choice(list("abcd e\n"), 1000)))
    return path


def held_out(path):
    return path.read_text()[900:]


# Tokens


@pytest.mark.parametrize("words", ["to be\nor not", "Grüße, 你好 🙂\r\n\x00"])
def test_text_survives_encoding_and_decoding(words):
    for tokenizer in (text.Tokenizer(), text.Tokenizer("".join(sorted(set(words))))):
        tokens = tokenizer.encode(words)
        assert tokens.dtype == np.uint8
        assert tokens.max() < tokenizer.vocab_size
        assert tokenizer.decode(tokens) == words


def test_the_char_vocabulary_is_the_sorted_set_of_the_files_characters(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("cab\r\nü🙂\n".encode() * 40)
    dataset = load(path, context=4)
    assert dataset.tokenizer.characters == "\n\rabcü🙂"
    assert dataset.num_classes == dataset.tokenizer.vocab_size == 7
    assert dataset.tokenizer.decode(dataset.train.read(np.array([0]))["tokens"][0]) == "cab\r\nü🙂\n"


def test_a_vocabulary_beyond_256_takes_two_bytes_a_token(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(map(chr, range(0x4E00, 0x4E00 + 400))))
    dataset = load(path, context=4)
    assert dataset.train.arrays()["tokens"].dtype == np.uint16
    inputs, labels = dataset.prepare("none", None, dataset.train.read(np.array([80])))
    assert inputs.dtype == labels.dtype == jnp.int32
    np.testing.assert_array_equal(inputs, [[320, 321, 322, 323]])


def test_bytes_make_256_tokens_of_any_file_and_decode_with_replacement(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(256)))
    dataset = load(path, context=4, tokenizer="byte")
    assert dataset.num_classes == 256
    np.testing.assert_array_equal(dataset.train.read(np.array([0]))["tokens"], [np.arange(8)])
    assert dataset.tokenizer.decode([0xFF, 65]) == "�A"


def test_tokens_and_characters_outside_the_vocabulary_are_named():
    tokenizer = text.Tokenizer("ace")
    assert "'z' at position 2" in error(tokenizer.encode, "acz")
    assert "'b' at position 0" in error(tokenizer.encode, "b")
    for token in (3, -1):
        assert f"token {token} is outside the vocabulary; use 0..2" in error(tokenizer.decode, [0, token])


# Windows


@pytest.mark.parametrize("augmentation", ["none", "shift"])
def test_label_t_is_input_t_plus_1(file, augmentation):
    dataset = load(file, context=16)
    for split in (dataset.train, dataset.test):
        inputs, labels = dataset.prepare("none", None, split.arrays())
        assert inputs.shape == labels.shape == (len(split), 16)
        np.testing.assert_array_equal(inputs[:, 1:], labels[:, :-1])
    inputs, labels = dataset.prepare(augmentation, jax.random.key(0), dataset.train.arrays())
    np.testing.assert_array_equal(inputs[:, 1:], labels[:, :-1])
    assert (inputs.shape[1:], inputs.dtype) == (dataset.input_spec.shape[1:], dataset.input_spec.dtype)


def test_test_windows_predict_the_held_out_text_once_and_training_windows_none_of_it(file):
    dataset = load(file, context=16)
    inputs, labels = dataset.prepare("shift", None, dataset.test.arrays())
    assert dataset.tokenizer.decode(np.ravel(inputs)) == held_out(file)[:96]
    assert dataset.tokenizer.decode(np.ravel(labels)) == held_out(file)[1:97]
    windows = dataset.train.arrays()["tokens"]
    assert windows.shape == (900 // 16 - 1, 32)
    for i, window in enumerate(windows):
        assert dataset.tokenizer.decode(window) == file.read_text()[:900][16 * i : 16 * i + 32]


def test_a_text_of_exactly_one_window_of_each_kind_is_enough(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abcdefghij" * 5)  # 45 and 5 tokens
    dataset = load(path, context=4)
    assert len(dataset.test) == 1
    assert len(load(path, context=4, train_examples=3).train) == 3
    message = error(load, path, context=5)
    assert "data.context is 5, which needs 10 tokens for training and 6 for testing" in message
    assert "has 50, 45 and 5 of them; lower data.context to at most 4" in message
    path.write_text("abc")
    assert error(load, path, context=1).endswith("; use a longer text.")


def test_shifts_reach_every_offset_below_the_context():
    windows = jnp.tile(jnp.arange(10, dtype=jnp.uint8), (400, 1))
    shifted = text.shift(jax.random.key(0), windows, 5)
    assert (shifted.shape, shifted.dtype) == ((400, 6), jnp.uint8)
    np.testing.assert_array_equal(shifted - shifted[:, :1], jnp.tile(jnp.arange(6), (400, 1)))
    assert set(np.asarray(shifted[:, 0]).tolist()) == set(range(5))


def test_the_shift_of_an_example_depends_on_its_own_key_only():
    rng = np.random.default_rng(0)
    windows, others = (jnp.asarray(rng.integers(0, 256, (8, 64)), jnp.uint8) for _ in range(2))
    key = jax.random.key(3)
    mixed = others.at[2].set(windows[2])
    np.testing.assert_array_equal(text.shift(key, mixed, 32)[2], text.shift(key, windows, 32)[2])
    assert (text.shift(jax.random.key(4), windows, 32) != text.shift(key, windows, 32)).any()


def test_a_streamed_text_gives_the_batches_of_one_in_memory(file):
    memory, stream = (load(file, context=16, placement=placement) for placement in ("device", "stream"))
    assert (memory.placement, stream.placement) == ("device", "stream")
    assert load(file, context=16, device_limit_mib=0).placement == "stream"
    batches = data.train_stream(stream.train, seed=5, batch_size=8)
    for step in range(3):
        expected = memory.train.read(data.batch_indices(5, step, len(memory.train), 8))
        np.testing.assert_array_equal(next(batches)["tokens"], expected["tokens"])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"context": 0}, "data.context is 0; use a whole number of at least 1"),
        ({"context": 2.5}, "data.context is 2.5; use a whole number"),
        ({"tokenizer": "bpe"}, "data.tokenizer is 'bpe'; use one of char, byte"),
        ({"augment": "cifar"}, "data.augment is 'cifar'; use none or shift for text"),
        ({"image_size": 32}, "data.image_size is 32, but text has no pixels; use 0"),
        ({"placement": "gpu"}, "data.placement is 'gpu'"),
        ({"test_examples": 99}, "data.test_examples is 99, but there are 1"),
        ({"context": 400}, "lower data.context to at most 99"),
    ],
)
def test_bad_fields_of_a_text_are_named_with_the_remedy(file, fields, says):
    assert says in error(load, file, **fields)


def test_files_that_are_absent_empty_or_not_utf8_are_named(tmp_path):
    path = tmp_path / "text.txt"
    assert f"data.name is 'text:{path}', but there is no file '{path}'" in error(load, path)
    assert "there is no file" in error(load, tmp_path)
    path.write_bytes(b"")
    assert "that file is empty" in error(load, path)
    path.write_bytes(b"abc\xff" * 500)
    assert "byte 3 of that file is not UTF-8; convert it, or use data.tokenizer = 'byte'" in error(load, path)
    assert load(path, tokenizer="byte").num_classes == 256


# Training

PATTERN = "the rain in spain stays mainly in the plain.\n"


@pytest.fixture
def pattern(tmp_path):
    path = tmp_path / "pattern.txt"
    path.write_text(PATTERN * 200)
    return path


def tiny(path, **sections):
    config = default_config("gpt")
    config.model.update(width=32, depth=2, num_heads=2, dropout=0.1)
    config.data.update(name=f"text:{path}", context=24, augment="shift")
    config.train.update(batch_size=16, steps=12, eval_every=4, log_every=3)
    for section, fields in sections.items():
        config[section].update(fields)
    return config


def test_a_gpt_learns_a_repeated_line_and_writes_a_sample_of_it(pattern, tmp_path, capsys):
    result = train_and_evaluate(
        tiny(pattern, optimizer={"learning_rate": 5e-3}, train={"steps": 150, "eval_every": 150, "log_every": 50}),
        tmp_path / "run",
    )
    assert result["status"] == "completed"
    assert result["test_loss"] < 0.2 * math.log(len(set(PATTERN)))
    assert result["test_accuracy"] > 0.9
    sample = (tmp_path / "run" / "sample.txt").read_text()
    assert len(sample) == 301
    assert "spain" in sample
    printed = capsys.readouterr().out
    assert f"examples of 24 tokens, vocabulary {len(set(PATTERN))}, on the device" in printed
    assert " tokens/s" in printed
    assert sample.strip().splitlines()[0] in printed
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "tokens_per_s" in metrics
    assert "images" not in printed + metrics


def test_control_characters_of_a_sample_stay_in_its_file(pattern, tmp_path, monkeypatch, capsys):
    tokens = np.array([27, 91, 65, 10, 66])
    monkeypatch.setattr("depthmup_flax.training.sampling.generate", lambda *args, **kwargs: tokens)
    train_and_evaluate(tiny(pattern, data={"tokenizer": "byte"}, train={"steps": 1}), tmp_path / "run")
    assert (tmp_path / "run" / "sample.txt").read_text() == "\x1b[A\nB\n"
    assert "sample\n  �[A\n  B\n" in capsys.readouterr().out


def last_state(directory):
    path = directory.absolute() / "checkpoints" / "12" / "state"
    return ocp.StandardCheckpointer().restore(path)


@pytest.mark.parametrize("placement", ["device", "stream"])
def test_a_resumed_text_run_is_bit_identical_with_dropout_and_shifts(pattern, placement, tmp_path):
    config = tiny(pattern, data={"placement": placement})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = train_and_evaluate(config, whole)
    with interrupted_before(6):
        train_and_evaluate(config, parts)
    assert not (parts / "sample.txt").exists()
    result = train_and_evaluate(config, parts)
    assert result["train_loss"] == expected["train_loss"]
    jax.tree.map(np.testing.assert_array_equal, last_state(whole), last_state(parts))
    assert (whole / "sample.txt").read_text() == (parts / "sample.txt").read_text()


def test_overwriting_a_text_run_deletes_its_sample(pattern, tmp_path):
    train_and_evaluate(tiny(pattern), tmp_path / "run")
    train_and_evaluate(tiny(pattern), tmp_path / "run", overwrite=True)
    assert (tmp_path / "run" / "sample.txt").exists()
    diverged = tiny(pattern, optimizer={"name": "sgd", "learning_rate": 1e12})
    assert train_and_evaluate(diverged, tmp_path / "run", overwrite=True)["status"] == "diverged"
    assert not (tmp_path / "run" / "sample.txt").exists()


class Probe(nn.Module):
    """Logits that do not depend on the input, under dropout."""

    vocab_size: int = 5

    @nn.compact
    def __call__(self, tokens, *, train=False):
        logits = self.param("logits", nn.initializers.normal(), (self.vocab_size,))
        ones = jnp.ones((*tokens.shape, self.vocab_size))
        return logits * nn.Dropout(0.5, deterministic=not train)(ones)


def probe_losses(steps, seed):
    step = make_train_step(
        Probe(), optax.sgd(0.0), prepare=lambda key, batch: (batch["x"], batch["x"]), seed=seed, log_every=1,
        average_from=0,
    )  # fmt: skip
    state = init_state(Probe(), optax.sgd(0.0), 0, jax.ShapeDtypeStruct((1, 8), jnp.int32))
    batch = {"x": jnp.zeros((4, 8), jnp.int32)}
    losses = []
    for _ in range(steps):
        state = step(state, batch)
        losses.append(float(state.last_loss))
    return losses


def test_dropout_differs_from_step_to_step_and_seed_to_seed_and_repeats():
    assert len(set(probe_losses(3, seed=0))) == 3
    assert probe_losses(3, seed=0) == probe_losses(3, seed=0)
    assert probe_losses(1, seed=0) != probe_losses(1, seed=1)


def test_the_key_of_dropout_is_none_that_augmentation_uses():
    seen = {}

    class Spy(nn.Module):
        @nn.compact
        def __call__(self, x, *, train=False):
            if train:
                seen["dropout"] = self.scope.rngs["dropout"].rng
            return nn.Dense(3)(x)

    def prepare(key, batch):
        seen["augmentation"] = key
        return batch["x"], batch["y"]

    step = make_train_step(Spy(), optax.sgd(0.1), prepare=prepare, seed=0, log_every=1, average_from=0)
    state = init_state(Spy(), optax.sgd(0.1), 0, jax.ShapeDtypeStruct((1, 2), jnp.float32))
    with jax.disable_jit():
        step(state, {"x": jnp.ones((4, 2)), "y": jnp.zeros(4, jnp.int32)})
    steps = [jax.random.fold_in(jax.random.key(0), t) for t in range(64)]
    per_example = [key for step_key in steps for key in jax.random.split(step_key, 4)]
    used = {jax.random.key_data(key).tobytes() for key in [*steps, *per_example]}
    assert jax.random.key_data(seen["augmentation"]).tobytes() in used
    assert jax.random.key_data(seen["dropout"]).tobytes() not in used


def test_the_test_loss_is_the_mean_over_all_tokens_whatever_the_batch_size(file):
    dataset = load(file, context=16)
    model = Probe(vocab_size=dataset.num_classes)
    variables = model.init(jax.random.key(0), jnp.zeros((1, 16), jnp.int32))
    step = make_eval_step(model, prepare=functools.partial(dataset.prepare, "shift"))
    inputs, labels = dataset.prepare("none", None, dataset.test.arrays())
    logits = model.apply(variables, inputs)
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    for batch_size in (1, 4, 6):
        total = EvalMetrics.empty()
        for batch in data.eval_batches(dataset.test, batch_size):
            total = total.merge(step(variables["params"], {}, batch))
        values = total.compute()
        assert float(values["loss"]) == pytest.approx(float(expected), rel=1e-5)
        assert float(values["accuracy"]) == pytest.approx(float((logits.argmax(-1) == labels).mean()), rel=1e-5)


def test_a_model_that_does_not_read_the_data_is_refused(file):
    gpt = default_config("gpt")
    message = error(build, gpt)
    assert "model.name is 'gpt', which reads tokens, but data.name is 'digits', which holds images" in message
    assert "'vit'" in message
    mlp = default_config()
    mlp.data.name = f"text:{file}"
    message = error(build, mlp)
    assert "model.name is 'res_mlp', which reads images, but data.name is 'text:" in message
    assert "which holds tokens: use model.name = 'gpt', or other data." in message


@pytest.mark.skipif(not REAL, reason="DEPTHMUP_DATA names no directory of prepared sets")
def test_real_text_has_65_characters_and_its_windows_read_as_shakespeare():
    path = f"{REAL}/text/tinyshakespeare.txt"
    if not os.path.exists(path):
        pytest.skip("there is no text/tinyshakespeare.txt")
    dataset = load(path)
    assert (dataset.num_classes, len(dataset.train), len(dataset.test)) == (65, 15684, 1742)
    first = dataset.tokenizer.decode(dataset.train.read(np.array([0]))["tokens"][0])
    assert first.startswith("First Citizen:\nBefore we proceed")


# Sampling


class Counter(nn.Module):
    """The next token is surely the last one plus the first one that the model sees, modulo 7."""

    @nn.compact
    def __call__(self, tokens, *, train=False):
        assert tokens.dtype == jnp.int32
        return 1e4 * jax.nn.one_hot((tokens + tokens[:, :1]) % 7, 7)


def by_hand(prompt, length, context):
    tokens = list(prompt)
    for _ in range(length):
        seen = tokens[-context:]
        tokens.append((seen[-1] + seen[0]) % 7)
    return tokens[len(prompt) :]


@pytest.mark.parametrize("prompt", [[3], [1, 2], [4, 5, 6, 1], [4, 5, 6, 1, 2, 3]])
@pytest.mark.parametrize("context", [1, 4])
def test_a_sample_is_that_of_a_loop_over_the_last_tokens_written_by_hand(prompt, context):
    tokens = generate(Counter(), {}, prompt, 12, key=jax.random.key(0), context=context)
    assert (tokens.shape, tokens.dtype) == ((12,), np.int32)
    np.testing.assert_array_equal(tokens, by_hand(prompt, 12, context))


def test_a_sample_of_a_gpt_does_not_depend_on_what_pads_its_buffer(file):
    from depthmup_flax import create_model, get_parametrization

    model = create_model(
        "gpt", num_classes=7, parametrization=get_parametrization("depth_mup"), width=16, depth=2, num_heads=2
    )
    variables = nn.unbox(model.init(jax.random.key(1), jnp.zeros((1, 8), jnp.int32)))
    tokens, prompt = [], [1, 2, 3]
    for key in jax.random.split(jax.random.key(0), 12):
        seen = jnp.array([[*prompt, *tokens][-8:]], jnp.int32)
        tokens.append(int(jax.random.categorical(key, model.apply(variables, seen)[0, -1] / 0.5)))
    ours = generate(model, variables, prompt, 12, key=jax.random.key(0), context=8, temperature=0.5)
    np.testing.assert_array_equal(ours, tokens)


def test_frequencies_of_a_sample_are_the_softmax_at_its_temperature():
    model = Probe()
    variables = {"params": {"logits": jnp.array([0.0, 0.5, 1.0, 1.5, 2.0])}}
    for temperature in (0.5, 1.0):
        tokens = generate(model, variables, [0], 4000, key=jax.random.key(0), context=2, temperature=temperature)
        expected = jax.nn.softmax(variables["params"]["logits"] / temperature)
        # Five standard deviations of a frequency.
        np.testing.assert_allclose(np.bincount(tokens, minlength=5) / 4000, expected, atol=5 * 0.5 / 4000**0.5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"length": 0}, "length is 0: use a whole number of at least 1"),
        ({"length": 2.0}, "length is 2.0"),
        ({"context": 0}, "context is 0"),
        ({"temperature": 0.0}, "temperature is 0.0: use a number above 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"prompt": []}, "prompt has shape (0,)"),
        ({"prompt": [[1]]}, "prompt has shape (1, 1)"),
        ({"prompt": [0.5]}, "type float64: give at least one token"),
        ({"prompt": [1, 7]}, "prompt has the token 7: use 0..6"),
        ({"prompt": [-1]}, "prompt has the token -1"),
    ],
)
def test_a_sample_that_cannot_be_drawn_is_refused_in_one_sentence(changes, says):
    arguments = {"prompt": [1], "length": 3, "key": jax.random.key(0), "context": 4, **changes}
    assert says in error(generate, Counter(), {}, **arguments)
