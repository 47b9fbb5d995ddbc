"""Text for language models: tokenizers, windows of tokens, random shifts on the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.data.augmentation import check_augmentation
from depthmup_flax.data.dataset import Dataset
from depthmup_flax.util.errors import InputError
from depthmup_flax.util.types import Batch

TOKENIZERS = ("char", "byte")


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Text <-> tokens, which are integers from 0."""

    characters: str | None = None  # sorted; token i is the i-th. None: tokens are bytes of UTF-8

    @classmethod
    def of_characters(cls, text: str) -> tuple[np.ndarray, Tokenizer]:
        """The tokens of ``text`` [N], and the tokenizer of its characters."""
        tokenizer = cls("".join(map(chr, np.unique(_code_points(text)).tolist())))
        return tokenizer.encode(text), tokenizer

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return 256 if self.characters is None else len(self.characters)

    @property
    def newline(self) -> int:
        """The token of the newline, the default prompt; 0 if it is absent."""
        return 10 if self.characters is None else max(0, self.characters.find("\n"))

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
        bad = tokens[(tokens < 0) | (tokens >= self.vocab_size)]
        if bad.size:
            raise InputError(f"token {bad[0]} is outside the vocabulary: use 0..{self.vocab_size - 1}.")
        if self.characters is None:
            return tokens.astype(np.uint8).tobytes().decode(errors="replace")
        return "".join(self.characters[token] for token in tokens.tolist())


@dataclasses.dataclass(frozen=True)
class TextDataset(Dataset):
    """A text for next-token prediction; see ``sources.text_file.windows`` for its examples."""

    context: int  # tokens that a model sees
    tokenizer: Tokenizer

    input_kind: ClassVar[str] = "tokens"
    unit: ClassVar[str] = "tokens"

    def prepare(self, augmentation: str, key: jax.Array | None, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Tokens ``[B, context]`` and the token after each, ``[B, context]``, both int32."""
        check_augmentation(augmentation, "text")
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
        """See ``Dataset.describe``."""
        return f"examples of {self.context} tokens, vocabulary {self.num_classes}"


def shift(key: jax.Array, tokens: jax.Array, context: int) -> jax.Array:
    """``context + 1`` tokens of each window [B, 2 context], from a random offset in ``[0, context)``: [B, context + 1].

    Example i uses the i-th key of ``jax.random.split(key, B)``.
    """

    def shift_one(key: jax.Array, window: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(window, (jax.random.randint(key, (), 0, context),), (context + 1,))

    return jax.vmap(shift_one)(jax.random.split(key, len(tokens)), tokens)


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
