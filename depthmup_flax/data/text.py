"""Text for language models: tokens, windows of them, random shifts on the device."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from depthmup_flax.data.dataset import Dataset
from depthmup_flax.errors import InputError

TOKENIZERS = ("char", "byte")
TEXT_AUGMENTATIONS = ("none", "shift")


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Text <-> tokens, which are integers from 0.

    Attributes:
      characters: token i stands for the i-th of them, which are sorted and distinct; ``None``: tokens are the bytes of
        UTF-8.
    """

    characters: str | None = None

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return 256 if self.characters is None else len(self.characters)

    @property
    def newline(self) -> int:
        """The token of a line's end, or 0 where there is none: a text can start after it."""
        return 10 if self.characters is None else max(0, self.characters.find("\n"))

    def encode(self, text: str) -> np.ndarray:
        """The tokens of ``text``: [N], of the smallest unsigned type; InputError for a character without a token."""
        if self.characters is None:
            return np.frombuffer(text.encode(), np.uint8)
        known, codes = _code_points(self.characters), _code_points(text)
        tokens = np.searchsorted(known, codes)
        unknown = np.flatnonzero(known[np.minimum(tokens, len(known) - 1)] != codes)
        if unknown.size:
            where = int(unknown[0])
            raise InputError(
                f"the text has {text[where]!r} at position {where}, which is not among the {self.vocab_size} "
                "characters of the vocabulary; remove it."
            )
        return tokens.astype(np.min_scalar_type(self.vocab_size - 1))

    def decode(self, tokens: np.ndarray | Sequence[int]) -> str:
        """The text of ``tokens`` [N]; bytes that are not UTF-8 give the replacement character."""
        tokens = np.asarray(tokens)
        bad = tokens[(tokens < 0) | (tokens >= self.vocab_size)]
        if bad.size:
            raise InputError(f"token {bad[0]} is outside the vocabulary; use 0..{self.vocab_size - 1}.")
        if self.characters is None:
            return tokens.astype(np.uint8).tobytes().decode(errors="replace")
        return "".join(self.characters[token] for token in tokens.tolist())


@dataclasses.dataclass(frozen=True)
class TextDataset(Dataset):
    """A text to be continued token by token; see `Dataset` for the first attributes, ``windows`` for its examples.

    Attributes:
      context: tokens that a model sees.
      tokenizer: from tokens to text.
    """

    context: int
    tokenizer: Tokenizer

    input_kind: ClassVar[str] = "tokens"
    unit: ClassVar[str] = "tokens"

    def prepare(
        self, augmentation: str, key: jax.Array | None, batch: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Tokens ``[B, context]`` and what follows each, ``[B, context]``, both int32."""
        check_text_augmentation(augmentation)
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


def check_text_augmentation(name: str) -> None:
    """InputError unless ``name`` is an augmentation of text."""
    if name not in TEXT_AUGMENTATIONS:
        raise InputError(f"data.augment is {name!r}; use {' or '.join(TEXT_AUGMENTATIONS)} for text.")


def read_tokens(path: str, tokenizer: str) -> tuple[np.ndarray, Tokenizer]:
    """The tokens [N] of a file, uint8 or wider where the vocabulary needs it, and its tokenizer.

    Args:
      path: of the file; "char" needs UTF-8 and gives the vocabulary of all its characters, sorted.
      tokenizer: "char" or "byte".

    Raises:
      InputError: the file cannot be read, is empty, or is not UTF-8.
    """
    field = f"data.name is 'text:{path}'"
    file = os.path.expanduser(path)
    if not os.path.isfile(file):
        raise InputError(f"{field}, but there is no file {file!r}; give the path of a text file.")
    try:
        with open(file, "rb") as opened:
            content = opened.read()
    except OSError as error:
        raise InputError(f"{field}, which cannot be read ({error.strerror}); give another file.") from error
    if not content:
        raise InputError(f"{field}, but that file is empty; give a file with text.")
    if tokenizer == "byte":
        return np.frombuffer(content, np.uint8), Tokenizer()
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{field}, but byte {error.start} of that file is not UTF-8; convert it, or use data.tokenizer = 'byte'."
        ) from error
    found = Tokenizer("".join(map(chr, np.unique(_code_points(text)).tolist())))
    return found.encode(text), found


def windows(tokens: np.ndarray, context: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The training and test examples of a text; views, no copies.

    The first nine tenths of the tokens are for training, the rest for testing. Windows start at multiples of
    ``context`` in either part. One for training holds ``2 context`` tokens, so that ``shift`` can move what the model
    sees by any offset below ``context``; one for testing holds ``context + 1``, the last of which is only a label and
    the next window's first input. So every test token but the first is predicted once; fewer than ``context`` that
    are left at the end are dropped.

    Args:
      tokens: [N].
      context: tokens that a model sees.
      name: ``data.name``, for messages.

    Returns:
      [train examples, 2 context] and [test examples, context + 1].

    Raises:
      InputError: there is not one window of each kind.
    """
    cut = len(tokens) * 9 // 10
    held_out = len(tokens) - cut
    if cut < 2 * context or held_out < context + 1:
        largest = min(cut // 2, held_out - 1)
        remedy = f"lower data.context to at most {largest} or use a longer text" if largest > 0 else "use a longer text"
        raise InputError(
            f"data.context is {context}, which needs {2 * context} tokens for training and {context + 1} for testing, "
            f"but {name!r} has {len(tokens)}, {cut} and {held_out} of them; {remedy}."
        )
    return _windows(tokens[:cut], 2 * context, context), _windows(tokens[cut:], context + 1, context)


def shift(key: jax.Array, tokens: jax.Array, context: int) -> jax.Array:
    """``context + 1`` tokens of each window, from a random offset in ``[0, context)``.

    Args:
      key: a PRNG key; example i uses the i-th of ``jax.random.split(key, B)``.
      tokens: [B, 2 context].
      context: tokens that a model sees.

    Returns:
      [B, context + 1], of the same type.
    """

    def one(key: jax.Array, window: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(window, (jax.random.randint(key, (), 0, context),), (context + 1,))

    return jax.vmap(one)(jax.random.split(key, len(tokens)), tokens)


def _windows(tokens: np.ndarray, length: int, stride: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(tokens, length)[::stride]


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
