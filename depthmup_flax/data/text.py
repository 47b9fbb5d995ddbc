"""Text for language models: a file's tokens, cut into windows, and random shifts on the device."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.data.dataset import ArraySplit, DataConfig, Dataset, NotHere, chosen, placement
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Batch

TOKENIZERS = ("char", "byte")


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Text <-> tokens, which are integers from 0."""

    characters: str | None = None  # sorted; token i is the i-th. None: tokens are bytes of UTF-8

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return 256 if self.characters is None else len(self.characters)

    def encode(self, text: str) -> np.ndarray:
        """The tokens of ``text``: [N], of the smallest unsigned type; InputError for a character without a token."""
        if self.characters is None:
            return np.frombuffer(text.encode(), np.uint8)
        vocabulary, codes = _code_points(self.characters), _code_points(text)
        tokens = np.searchsorted(vocabulary, codes)
        unknown = np.flatnonzero(vocabulary[np.minimum(tokens, len(vocabulary) - 1)] != codes)
        if unknown.size:
            where = int(unknown[0])
            raise InputError(
                f"the text has {text[where]!r} at position {where}, which is not among the {self.vocab_size} "
                "characters of the vocabulary. Remove it."
            )
        return tokens.astype(np.min_scalar_type(self.vocab_size - 1))

    def decode(self, tokens: np.ndarray | Sequence[int]) -> str:
        """The text of ``tokens`` [N]; bytes that are not UTF-8 become the replacement character."""
        tokens = np.asarray(tokens)
        if self.characters is None:
            return tokens.astype(np.uint8).tobytes().decode(errors="replace")
        return "".join(self.characters[token] for token in tokens.tolist())


@dataclasses.dataclass(frozen=True)
class TextDataset(Dataset):
    """A text for next-token prediction; see `windows` for its examples."""

    context: int  # tokens that a model sees
    tokenizer: Tokenizer

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


def load_text(path: str, config: DataConfig) -> TextDataset:
    """A text file: UTF-8, or with tokenizer "byte" any file."""
    field, file = f"data.name is 'text:{path}'", os.path.expanduser(path)
    if not os.path.isfile(file):
        raise NotHere(f"{field}: there is no file {file!r}. Give the path of a text file.")
    with open(file, "rb") as opened:
        content = opened.read()
    if config.tokenizer == "byte":
        tokens, tokenizer = np.frombuffer(content, np.uint8), Tokenizer()
    else:
        try:
            text = content.decode("utf-8-sig")  # without the mark that some editors put at the start
        except UnicodeDecodeError as error:
            raise InputError(
                f"{field}: byte {error.start} of that file is not UTF-8. Convert it, or set data.tokenizer=byte."
            ) from error
        tokenizer = Tokenizer("".join(map(chr, np.unique(_code_points(text)).tolist())))
        tokens = tokenizer.encode(text)
    parts = windows(tokens, config.context, config.name, config.validation_fraction)
    if config.validation_fraction:  # whose examples are the last part
        config = dataclasses.replace(config, validation_fraction=0.0, test_examples=0)
    train, test = chosen(config, (ArraySplit({"tokens": part}) for part in parts))
    where = placement(config, train.fields["tokens"].nbytes)
    return TextDataset(config.name, train, test, tokenizer.vocab_size, where, config.context, tokenizer)


def windows(tokens: np.ndarray, context: int, name: str, validation: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Views of ``tokens`` [N]: training examples [A, 2 context], test examples [B, context + 1].

    The first nine tenths of the tokens are for training. ``validation`` > 0 holds out that share of them, the last, in
    place of the last tenth of all; random windows would overlap with training windows. Windows start at multiples of
    ``context`` in each part; an incomplete last window is dropped. ``text.shift`` moves the model's input inside a
    training window. Every test token but the first is predicted once. `InputError` if the text is too short for one
    window of each kind.
    """
    cut = len(tokens) * 9 // 10
    if validation:
        tokens, cut = tokens[:cut], cut - round(validation * cut)
    held_out = len(tokens) - cut
    if cut < 2 * context or held_out < context + 1:
        raise InputError(
            f"data.context is {context}: it needs {2 * context} tokens for training and {context + 1} for testing, and "
            f"{name!r} has {cut} and {held_out}. Use a smaller one, or a longer text."
        )
    train, test = (
        np.lib.stride_tricks.sliding_window_view(part, length)[::context]
        for part, length in ((tokens[:cut], 2 * context), (tokens[cut:], context + 1))
    )
    return train, test


def shift(key: jax.Array, tokens: jax.Array, context: int) -> jax.Array:
    """``context + 1`` tokens of each window [B, 2 context], from a random offset in ``[0, context)``: [B, context + 1].

    Example i uses the i-th key of ``jax.random.split(key, B)``.
    """

    def shift_one(key: jax.Array, window: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(window, (jax.random.randint(key, (), 0, context),), (context + 1,))

    return jax.vmap(shift_one)(jax.random.split(key, len(tokens)), tokens)


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
