"""Files of tokens are read, or refused with file, position and value: never read as other numbers."""

import json

import numpy as np
import pytest

from depthmup_flax.data import load
from depthmup_flax.data.dataset import DataConfig
from depthmup_flax.data.token_files import read_meta
from depthmup_flax.util.errors import InputError

VOCAB = 50257
SMALL, LARGE = 97, 128256
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, VOCAB, 4000)


def header(count, magic, version=1):
    numbers = np.zeros(256, "<i4")
    numbers[:3] = magic, version, count
    return numbers.tobytes()


def npy(array, tmp_path):
    np.save(tmp_path / "array.npy", array)
    return (tmp_path / "array.npy").read_bytes()


def read(tmp_path, content, vocab=VOCAB, which="train.bin", **meta):
    good = TOKENS % vocab
    for name in ("train.bin", "val.bin"):
        (tmp_path / name).write_bytes(content if name == which else good.astype(meta.get("dtype", "uint16")).tobytes())
    (tmp_path / "meta.json").write_text(json.dumps({"vocab_size": vocab, **meta}))
    dataset = load(DataConfig(name=f"tokens:{tmp_path}", context=8))
    split = dataset.train if which == "train.bin" else dataset.test
    return np.concatenate([split.read(np.array([k]))["tokens"][0][:8] for k in range(len(split))])


@pytest.mark.parametrize("vocab", [SMALL, VOCAB, LARGE])
@pytest.mark.parametrize("which", ["train.bin", "val.bin"])
class TestReadable:
    @pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32", "int64"])
    def test_integers_of_the_named_type(self, tmp_path, vocab, which, dtype):
        tokens = TOKENS % vocab
        found = read(tmp_path, tokens.astype(dtype).tobytes(), vocab, which, dtype=dtype)
        np.testing.assert_array_equal(found, tokens[: len(found)])

    @pytest.mark.parametrize(("magic", "dtype"), [(20240520, "<u2"), (20240801, "<u4")])
    def test_a_header_of_llm_c(self, tmp_path, vocab, which, magic, dtype):
        tokens = TOKENS % vocab
        found = read(tmp_path, header(len(tokens), magic) + tokens.astype(dtype).tobytes(), vocab, which)
        np.testing.assert_array_equal(found, tokens[: len(found)])

    @pytest.mark.parametrize("dtype", ["<u2", "<u4", ">u2", "<i8"])
    def test_an_array_of_numpy(self, tmp_path, vocab, which, dtype):
        tokens = TOKENS % vocab
        found = read(tmp_path, npy(tokens.astype(dtype), tmp_path), vocab, which)
        np.testing.assert_array_equal(found, tokens[: len(found)])


# Written as -> read as.
OTHERS = [
    ("<u2", "uint32"),
    ("<u4", "uint16"),
    ("<i8", "uint16"),
    ("<i8", "uint32"),
    ("<i8", "int32"),
    (">u2", "uint16"),
    (">u4", "uint32"),
    (">u4", "uint16"),
    ("<f4", "uint16"),
    ("<f4", "uint32"),
    ("<f8", "uint32"),
]


@pytest.mark.parametrize("vocab", [SMALL, VOCAB])
@pytest.mark.parametrize(("written", "as_type"), OTHERS)
@pytest.mark.parametrize("which", ["train.bin", "val.bin"])
def test_other_integers_are_refused_with_the_file(tmp_path, vocab, written, as_type, which):
    with pytest.raises(InputError, match=which):
        read(tmp_path, (TOKENS % vocab).astype(written).tobytes(), vocab, which, dtype=as_type)


@pytest.mark.parametrize(("written", "named"), [("<u4", "uint32"), ("<i8", "int64"), ("<u2", "uint16")])
def test_the_sentence_names_the_type_that_fits(tmp_path, written, named):
    as_type = "uint16" if named != "uint16" else "uint32"
    with pytest.raises(InputError, match=f'"dtype": "{named}"'):
        read(tmp_path, TOKENS.astype(written).tobytes(), dtype=as_type)


def test_a_token_above_the_vocabulary_is_named_with_its_position(tmp_path):
    tokens = TOKENS % 900
    tokens[3210] = 1000
    with pytest.raises(InputError, match=r"train\.bin: token 3210 is 1000"):
        read(tmp_path, tokens.astype("<u2").tobytes(), 1000)


def refused(tmp_path):
    tokens = TOKENS.astype("<u2").tobytes()
    yield from {
        "empty": b"",
        "odd": tokens + b"\0",
        "gzip": b"\x1f\x8b" + tokens,
        "zip": b"PK\x03\x04" + tokens,
        "parquet": b"PAR1" + tokens,
        "text": b"To be, or not to be, that is the question. " * 100,
        "text in UTF-8": "Für Élise, a pièce, for piano. ".encode() * 200,
        "header of another length": header(17, 20240520) + tokens,
        "header alone": header(0, 20240520),
        "two axes": npy(np.zeros((100, 40), np.uint16), tmp_path),
        "floats": npy(np.zeros(4000, np.float32), tmp_path),
        "objects": npy(np.array([None] * 50, object), tmp_path),
        "negative": npy(-TOKENS, tmp_path),
    }.items()


def test_what_holds_no_tokens_is_refused(tmp_path):
    for _, content in refused(tmp_path):
        with pytest.raises(InputError, match=r"train\.bin"):
            read(tmp_path, content)


def test_tokens_are_in_the_byte_order_of_the_machine(tmp_path):
    assert read(tmp_path, npy(TOKENS.astype(">u2"), tmp_path)).dtype.isnative


@pytest.mark.parametrize("vocab", [VOCAB + 0.5, str(VOCAB), 0])
def test_a_size_of_the_vocabulary_that_is_no_whole_number_is_refused(tmp_path, vocab):
    (tmp_path / "meta.json").write_text(json.dumps({"vocab_size": vocab}))
    with pytest.raises(InputError, match="vocab_size"):
        read_meta(str(tmp_path / "meta.json"))


def test_a_token_is_looked_at_beyond_the_first_part(tmp_path, monkeypatch):
    monkeypatch.setattr("depthmup_flax.data.token_files._PART", 64)
    tokens = TOKENS % 900
    tokens[-1] = 1000
    with pytest.raises(InputError, match="token 3999 is 1000"):
        read(tmp_path, tokens.astype("<u2").tobytes(), 1000)
    tokens[-1] = 0
    assert len(read(tmp_path, tokens.astype("<u2").tobytes(), 1000)) > 0
