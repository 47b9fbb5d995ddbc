"""Text for language models: the tokens of a file, or files of tokens, cut into windows; random shifts on the device."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.data.dataset import ArraySplit, DataConfig, Dataset, chosen, placement
from depthmup_flax.data.token_files import open_tokens, read_meta
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.imports import require
from depthmup_flax.util.types import Batch

_MEASURED = 10**6  # tokens whose bytes are counted


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Text <-> tokens, which are integers from 0."""

    characters: str | None = None  # sorted; token i is the i-th. None: tokens are bytes of UTF-8
    file: str = ""  # of the library tokenizers, in place of both
    unknown: int = 0  # above 0, the number of tokens, of which nothing else is known

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        if self.unknown or self.file:
            return self.unknown or self._library.get_vocab_size()
        return 256 if self.characters is None else len(self.characters)

    @property
    def _library(self) -> Any:
        if self.unknown:
            raise InputError('these tokens have no tokenizer: name one in meta.json, "tokenizer": "tokenizer.json".')
        return _from_file(self.file)

    def encode(self, text: str) -> np.ndarray:
        """The tokens of ``text``: [N], of the smallest unsigned type; InputError for a character without a token."""
        if self.file or self.unknown:
            return np.array(self._library.encode(text).ids, np.min_scalar_type(self.vocab_size - 1))
        if self.characters is None:
            return np.frombuffer(text.encode(), np.uint8)
        vocabulary, codes = _code_points(self.characters), _code_points(text)
        tokens = np.searchsorted(vocabulary, codes)
        unknown = np.flatnonzero(vocabulary[np.minimum(tokens, len(vocabulary) - 1)] != codes)
        if unknown.size:
            where = int(unknown[0])
            raise InputError(f"the text has {text[where]!r} at position {where}, which has no token. Remove it.")
        return tokens.astype(np.min_scalar_type(self.vocab_size - 1))

    def decode(self, tokens: np.ndarray | Sequence[int]) -> str:
        """The text of ``tokens`` [N]; bytes that are not UTF-8 become the replacement character."""
        tokens = np.asarray(tokens)
        if self.file or self.unknown:
            return self._library.decode(tokens.tolist(), skip_special_tokens=False)
        if self.characters is None:
            return tokens.astype(np.uint8).tobytes().decode(errors="replace")
        return "".join(self.characters[token] for token in tokens.tolist())


@dataclasses.dataclass(frozen=True)
class TextDataset(Dataset):
    """A text for next-token prediction; see `windows` for its examples."""

    context: int  # tokens that a model sees
    tokenizer: Tokenizer
    bytes_per_token: float = 0.0  # of the evaluated text; 0: unknown

    input_kind: ClassVar[str] = "tokens"
    unit: ClassVar[str] = "tokens"

    def prepare(self, augmentation: str, key: jax.Array | None, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Tokens ``[B, context]`` and the token after each, ``[B, context]``, both int32."""
        tokens = batch["tokens"]
        if augmentation == "shift" and key is not None:
            tokens = shift(key, tokens, self.context)
        tokens = tokens[:, : self.context + 1].astype(jnp.int32)
        return tokens[:, :-1], tokens[:, 1:]

    @property
    def input_spec(self) -> jax.ShapeDtypeStruct:
        """int32 ``[1, context]``."""
        return jax.ShapeDtypeStruct((1, self.context), jnp.int32)

    @property
    def units_per_example(self) -> int:
        """Tokens that are predicted."""
        return self.context

    def describe(self) -> str:
        return f"examples of {self.context} tokens, vocabulary {self.num_classes}"

    def further(self, means: Mapping[str, float]) -> dict[str, float]:
        """``bits_per_byte`` of the evaluation's ``loss``, by which tokenizers compare."""
        if not self.bytes_per_token or "loss" not in means:
            return {}
        return {"bits_per_byte": means["loss"] / math.log(2) / self.bytes_per_token}


def load_text(path: str, config: DataConfig) -> TextDataset:
    """A text file: UTF-8, or with tokenizer "byte" any file; a tokenizer may be a file of the library tokenizers."""
    field, file = f"data.name is 'text:{path}'", os.path.expanduser(path)
    if not os.path.isfile(file):
        raise InputError(f"{field}: there is no file {file!r}. Give the path of a text file.")
    with open(file, "rb") as opened:
        content = opened.read()
    if config.tokenizer == "byte":
        tokens, tokenizer = np.frombuffer(content, np.uint8), Tokenizer()
    else:
        try:
            text = content.decode("utf-8-sig")  # without the mark that some editors put at the start
        except UnicodeDecodeError as error:
            raise InputError(f"{field}: byte {error.start} is not UTF-8: use data.tokenizer=byte.") from error
        characters = "".join(map(chr, np.unique(_code_points(text)).tolist()))
        tokenizer = Tokenizer(characters) if config.tokenizer == "char" else Tokenizer(file=config.tokenizer)
        tokens = tokenizer.encode(text)
    cut = len(tokens) * 9 // 10
    return _dataset(config, tokens[:cut], tokens[cut:], tokenizer)


def load_tokens(path: str, config: DataConfig) -> TextDataset:
    """Files of tokens, as nanoGPT writes them, which are read as they are needed.

    The directory has ``train.bin`` and ``val.bin``, integers of two bytes, or of ``"dtype"`` in ``meta.json``, which
    names ``"vocab_size"``, and may name ``"tokenizer"``, a file of the library tokenizers beside it. Headers of llm.c
    and NumPy are known (`token_files`).
    """
    directory = os.path.expanduser(path)
    files = {name: os.path.join(directory, name) for name in ("train.bin", "val.bin", "meta.json")}
    if absent := [name for name, file in files.items() if not os.path.isfile(file)]:
        needs = ', such as {"vocab_size": 50257}' if absent[0] == "meta.json" else ""
        raise InputError(f"data.name is 'tokens:{path}': {absent[0]} is not in {directory!r}. Write it{needs}.")
    meta = read_meta(files["meta.json"])
    train, held_out = (open_tokens(files[name], meta) for name in ("train.bin", "val.bin"))
    if meta.tokenizer:
        tokenizer = Tokenizer(file=os.path.join(directory, meta.tokenizer))
    else:
        tokenizer = Tokenizer(unknown=meta.vocab_size)
    return dataclasses.replace(_dataset(config, train, held_out, tokenizer), num_classes=meta.vocab_size)


def _dataset(config: DataConfig, tokens: np.ndarray, held_out: np.ndarray, tokenizer: Tokenizer) -> TextDataset:
    if config.validation_fraction:  # whose examples are the last part; random windows would overlap with others
        cut = len(tokens) - round(config.validation_fraction * len(tokens))
        tokens, held_out = tokens[:cut], tokens[cut:]
        config = dataclasses.replace(config, validation_fraction=0.0, test_examples=0)
    parts = windows(tokens, held_out, config.context, config.name)
    train, test = chosen(config, (ArraySplit({"tokens": part}) for part in parts))
    where = placement(config, train.fields["tokens"].nbytes)
    known = held_out[:_MEASURED] if not tokenizer.unknown else held_out[:0]
    of_token = len(tokenizer.decode(known).encode()) / len(known) if len(known) else 0.0
    return TextDataset(config.name, train, test, tokenizer.vocab_size, where, config.context, tokenizer, of_token)


def windows(tokens: np.ndarray, held_out: np.ndarray, context: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Views of the tokens [N] of both parts: training examples [A, 2 context], test examples [B, context + 1].

    Windows start at multiples of ``context`` in each part, also within a document; an incomplete last window is
    dropped. ``text.shift`` moves the model's input inside a training window. Every test token but the first is
    predicted once. `InputError` if the text is too short for one window of each kind.
    """
    if len(tokens) < 2 * context or len(held_out) < context + 1:
        raise InputError(
            f"data.context is {context}: it needs {2 * context} tokens for training and {context + 1} for testing, and "
            f"{name!r} has {len(tokens)} and {len(held_out)}. Use a smaller one, or a longer text."
        )
    train, test = (
        np.lib.stride_tricks.sliding_window_view(part, length)[::context]
        for part, length in ((tokens, 2 * context), (held_out, context + 1))
    )
    return train, test


@functools.cache
def _from_file(file: str) -> Any:
    """A tokenizer of the library tokenizers."""
    if not os.path.isfile(file):
        raise InputError(f"data.tokenizer is {file!r}: use char, byte, or a tokenizer.json of the library tokenizers.")
    return require("tokenizers", f"data.tokenizer={file!r}").Tokenizer.from_file(file)


def shift(key: jax.Array, tokens: jax.Array, context: int) -> jax.Array:
    """``context + 1`` tokens of each window [B, 2 context], from a random offset in ``[0, context)``: [B, context + 1].

    Example i uses the i-th key of ``jax.random.split(key, B)``.
    """
    offsets = jax.vmap(lambda key: jax.random.randint(key, (), 0, context))(jax.random.split(key, len(tokens)))
    return jax.vmap(lambda window, at: jax.lax.dynamic_slice(window, (at,), (context + 1,)))(tokens, offsets)


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
