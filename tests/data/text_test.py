"""Texts: tokens, windows, shifts, and texts that are refused."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from data_sets import error, real_data
from data_sets import load as load_set

from depthmup_flax import data
from depthmup_flax.data import text


def load(path, **fields):
    return load_set(f"text:{path}", **fields)


@pytest.fixture
def file(tmp_path):
    """1000 characters, no two neighboring windows of which are alike."""
    path = tmp_path / "text.txt"
    path.write_text("".join(np.random.default_rng(0).choice(list("abcd e\n"), 1000)))
    return path


def held_out(path):
    return path.read_text()[900:]


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


def test_characters_outside_the_vocabulary_are_named():
    tokenizer = text.Tokenizer("ace")
    assert "'z' at position 2" in error(tokenizer.encode, "acz")
    assert "'b' at position 0" in error(tokenizer.encode, "b")


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
    assert message.startswith("data.context is 5: it needs 10 tokens for training and 6 for testing")
    assert "has 45 and 5" in message
    path.write_text("abc")
    assert error(load, path, context=1).endswith("a longer text.")


def test_shifts_reach_every_offset_below_the_context_and_depend_on_their_own_key_only():
    windows = jnp.tile(jnp.arange(10, dtype=jnp.uint8), (400, 1))
    shifted = text.shift(jax.random.key(0), windows, 5)
    assert (shifted.shape, shifted.dtype) == ((400, 6), jnp.uint8)
    np.testing.assert_array_equal(shifted - shifted[:, :1], jnp.tile(jnp.arange(6), (400, 1)))
    assert set(np.asarray(shifted[:, 0]).tolist()) == set(range(5))
    np.testing.assert_array_equal(text.shift(jax.random.key(0), windows.at[1:].add(9), 5)[0], shifted[0])


def test_a_streamed_text_gives_the_batches_of_one_in_memory(file):
    memory, stream = (load(file, context=16, placement=placement) for placement in ("device", "stream"))
    assert (memory.placement, stream.placement) == ("device", "stream")
    batches = data.train_stream(stream.train, seed=5, batch_size=8)
    for step in range(3):
        expected = memory.train.read(data.batch_indices(5, step, len(memory.train), 8))
        np.testing.assert_array_equal(next(batches)["tokens"], expected["tokens"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("context", 0),
        ("context", 2.5),
        ("context", 400),
        ("tokenizer", "bpe"),
        ("augment", "cifar"),
        ("test_examples", 99),
    ],
)
def test_a_wrong_field_of_a_text_is_named(file, field, value):
    assert error(load, file, **{field: value}).startswith(f"data.{field} is {value!r}")


def test_files_that_are_absent_empty_or_not_utf8_are_named(tmp_path):
    path = tmp_path / "text.txt"
    assert f"data.name is 'text:{path}': there is no file '{path}'" in error(load, path)
    assert "there is no file" in error(load, tmp_path)
    path.write_bytes(b"")
    assert "longer text" in error(load, path)
    path.write_bytes(b"abc\xff" * 500)
    assert "byte 3 is not UTF-8" in error(load, path)
    assert load(path, tokenizer="byte").num_classes == 256


def test_real_text_has_65_characters_and_its_windows_read_as_shakespeare():
    dataset = load(real_data("text/tinyshakespeare.txt"))
    assert (dataset.num_classes, len(dataset.train), len(dataset.test)) == (65, 15684, 1742)
    first = dataset.tokenizer.decode(dataset.train.read(np.array([0]))["tokens"][0])
    assert first.startswith("First Citizen:\nBefore we proceed")


def test_the_mark_at_the_start_of_a_text_is_no_character(tmp_path):
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / encoding).write_text("the quick brown fox " * 40, encoding=encoding)
    marked, plain = (load(tmp_path / name, context=8) for name in ("utf-8-sig", "utf-8"))
    assert marked.tokenizer == plain.tokenizer
    assert marked.checksums == plain.checksums


@pytest.fixture
def of_words(tmp_path):
    """A tokenizer file whose tokens are the words "a" and "bb" and anything else."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "bb": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_a_text_is_cut_by_a_tokenizer_of_the_library(of_words, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a bb bb c " * 100)
    dataset = load(path, context=4, tokenizer=str(of_words))
    assert dataset.num_classes == 3
    np.testing.assert_array_equal(dataset.train.read(np.array([0]))["tokens"], [[0, 1, 1, 2] * 2])
    with_bytes = (len("a bb bb ? ") * 10 - 1) / 40  # of the last tenth
    assert dataset.further({"loss": 1.0})["bits_per_byte"] == pytest.approx(1 / np.log(2) / with_bytes)


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_files_of_tokens_are_mapped_and_not_read_whole(dtype, of_words, tmp_path):
    tokens = np.random.default_rng(0).integers(0, 3, 1000).astype(dtype)
    tokens[:900].tofile(tmp_path / "train.bin")
    tokens[900:].tofile(tmp_path / "val.bin")
    meta = {"vocab_size": 64, "dtype": dtype}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    dataset = load_set(f"tokens:{tmp_path}", context=8)
    np.testing.assert_array_equal(dataset.train.read(np.array([3]))["tokens"], [tokens[24:40]])
    (2 - tokens[:900]).tofile(tmp_path / "train.bin")
    np.testing.assert_array_equal(dataset.train.read(np.array([3]))["tokens"], [2 - tokens[24:40]])
    np.testing.assert_array_equal(dataset.test.read(np.array([0]))["tokens"], [tokens[900:909]])
    assert dataset.num_classes == 64
    assert dataset.further({"loss": 1.0}) == {}  # the bytes of a token are unknown
    (tmp_path / "meta.json").write_text(json.dumps({**meta, "tokenizer": of_words.name}))
    dataset = load_set(f"tokens:{tmp_path}", context=8, validation_fraction=0.1)
    assert dataset.tokenizer.encode("bb a").tolist() == [1, 0]
    np.testing.assert_array_equal(dataset.test.read(np.array([0]))["tokens"], [2 - tokens[810:819]])


@pytest.mark.parametrize("meta", ["{", "[]", '{"vocab_size": "many"}', '{"vocab_size": 5, "dtype": "float32"}', None])
def test_a_directory_of_tokens_that_is_not_described_is_refused(meta, tmp_path):
    for name in ("train.bin", "val.bin"):
        np.zeros(100, np.uint16).tofile(tmp_path / name)
    if meta is not None:
        (tmp_path / "meta.json").write_text(meta)
    assert "meta.json" in error(load_set, f"tokens:{tmp_path}", context=8)


def test_bits_per_byte_of_characters_count_their_bytes(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("aü" * 500)
    assert load(path, context=4).further({"loss": np.log(2)})["bits_per_byte"] == pytest.approx(1 / 1.5)
