"""A text file: its tokens, cut into windows."""

import dataclasses
import os

import numpy as np

from depthmup_flax.data.dataset import ArraySplit, DataConfig
from depthmup_flax.data.sources.source import NotHere, Source, limited, placement
from depthmup_flax.data.text import TextDataset, Tokenizer
from depthmup_flax.util.errors import InputError


def _load(path: str, config: DataConfig) -> TextDataset:
    tokens, tokenizer = _read_tokens(path, config.tokenizer)
    parts = windows(tokens, config.context, config.name, config.validation_fraction)
    if config.validation_fraction:  # which counts the held-out examples
        config = dataclasses.replace(config, test_examples=0)
    train, test = limited(config, (ArraySplit({"tokens": part}) for part in parts))
    where = placement(config, train.fields["tokens"].nbytes)
    return TextDataset(config.name, train, test, tokenizer.vocab_size, where, config.context, tokenizer)


TEXT = Source("text:<file>", _load, "text", ("context", "tokenizer"))


def _read_tokens(path: str, tokenizer: str) -> tuple[np.ndarray, Tokenizer]:
    """The tokens [N] of a file, of the smallest unsigned type, and its tokenizer; "char" requires UTF-8."""
    field = f"data.name is 'text:{path}'"
    file = os.path.expanduser(path)
    if not os.path.isfile(file):
        problem = f"{file!r} is no file" if os.path.exists(file) else f"there is no file {file!r}"
        raise NotHere(f"{field}: {problem}. Give the path of a text file.")
    try:
        with open(file, "rb") as opened:
            content = opened.read()
    except OSError as error:
        raise InputError(f"{field}: that file cannot be read ({error.strerror}). Make it readable.") from error
    if not content:
        raise InputError(f"{field}: that file is empty. Give a file with text.")
    if tokenizer == "byte":
        return np.frombuffer(content, np.uint8), Tokenizer()
    try:
        text = content.decode("utf-8-sig")  # without the mark that some editors put at the start
        if "\0" in text:
            raise InputError(
                f"{field}: that file has NUL characters, as UTF-16 and binary files do. Convert it to UTF-8, or set "
                "data.tokenizer=byte."
            )
        return Tokenizer.of_characters(text)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{field}: byte {error.start} of that file is not UTF-8. Convert it, or set data.tokenizer=byte."
        ) from error


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
        largest = min(cut // 2, held_out - 1)
        raise InputError(
            f"data.context is {context}: it needs {2 * context} tokens for training and {context + 1} for testing, and "
            f"{name!r} has {cut} and {held_out}. "
            + (f"Use at most {largest}, or a longer text." if largest > 0 else "Use a longer text.")
        )
    train, test = (
        np.lib.stride_tricks.sliding_window_view(part, length)[::context]
        for part, length in ((tokens[:cut], 2 * context), (tokens[cut:], context + 1))
    )
    return train, test
