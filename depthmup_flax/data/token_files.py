"""Files of tokens: nanoGPT's ``train.bin``, llm.c's with a header, NumPy's ``.npy``; mapped, and refused by content.

Integers of another size or byte order are integers, too: read as such, a run of them completes. So the whole file is
looked at once.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from depthmup_flax.util.errors import InputError

DTYPES = ("uint8", "uint16", "uint32", "int32", "int64")
_HEADER = 256 * 4  # bytes: llm.c's files begin with 256 int32: a number for the kind, a version, the number of tokens
_LLM_C: Mapping[int, str] = {20240520: "uint16", 20240801: "uint32"}
# The first bytes of files that hold no tokens -> what they are.
_OTHERS: Mapping[bytes, str] = {
    b"\x1f\x8b": "compressed by gzip",
    b"PK\x03\x04": "a zip archive, as .npz and .pt are",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
}
_TEXT = 4096  # bytes at the start that tell a text
_PART = 2**24  # tokens looked at at a time
_SAMPLE = 2**20  # tokens by which another type is tried


class Meta(NamedTuple):
    """What ``meta.json`` says."""

    vocab_size: int
    dtype: str = "uint16"
    tokenizer: str = ""  # a file of the library tokenizers


def read_meta(file: str) -> Meta:
    """The content of ``meta.json``."""
    try:
        with open(file, encoding="utf-8") as opened:
            stored = json.load(opened)
        meta = Meta(stored["vocab_size"], stored.get("dtype", "uint16"), stored.get("tokenizer", ""))
        if not isinstance(meta.vocab_size, int) or meta.vocab_size < 1 or meta.dtype not in DTYPES:
            raise ValueError(f"{meta.vocab_size}, {meta.dtype}")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        example = '{"vocab_size": 50257, "dtype": "uint16"}'
        raise InputError(
            f"{file} is not such as {example}, with a dtype of {', '.join(DTYPES)} ({error!r}): write it again."
        ) from error
    return meta


def open_tokens(file: str, meta: Meta) -> np.ndarray:
    """The tokens of a file [N], mapped; `InputError` with file, position and value where they can be none."""
    tokens = _mapped(file, meta.dtype)
    if not len(tokens):
        raise InputError(f"{file} has no tokens: write them again.")
    halves = [False, False]  # whether an even, and an odd, position has more than the upper half of a wider integer
    most = (meta.vocab_size - 1) >> (8 * tokens.itemsize)  # what that upper half can be
    for start in range(0, len(tokens), _PART):
        part = tokens[start : start + _PART]
        if int(part.max()) >= meta.vocab_size or int(part.min()) < 0:
            at = int(np.flatnonzero((part >= meta.vocab_size) | (part < 0))[0])
            raise InputError(
                f"{file}: token {start + at} is {part[at]}, and meta.json has vocab_size {meta.vocab_size}: "
                f"{_remedy(file, tokens, meta)}"
            )
        halves = [halves[k] or bool((part[k::2] > most).any()) for k in (0, 1)]
    if halves == [True, False] and len(tokens) > 2:
        raise InputError(
            f"{file}: every second token, as token 1, is {'0' if most == 0 else f'at most {most}'}: these are wider "
            f"integers than {tokens.dtype}. {_remedy(file, tokens, meta)}"
        )
    return tokens


def _mapped(file: str, dtype: str) -> np.ndarray:
    """The tokens by what the file's first bytes say, else by ``dtype``."""
    size = os.path.getsize(file)
    with open(file, "rb") as opened:
        first = opened.read(_TEXT)
    if first.startswith(b"\x93NUMPY"):
        return _of_numpy(file)
    kind = next((kind for start, kind in _OTHERS.items() if first.startswith(start)), None)
    if kind is None and len(first) > 16 and _is_text(first):
        kind = "a text: use data.name='text:FILE'"
    if kind is not None:
        raise InputError(f"{file} has no tokens; it is {kind}. Write integers, as with NumPy's tofile.")
    numbers = np.frombuffer(first[:12], "<i4") if size >= _HEADER else np.zeros(3, np.int32)
    offset = 0
    if int(numbers[0]) in _LLM_C:
        dtype, offset = _LLM_C[int(numbers[0])], _HEADER
        held = (size - _HEADER) // np.dtype(dtype).itemsize
        if int(numbers[2]) != held:
            raise InputError(f"{file}: its header says {numbers[2]} tokens, and it has {held}. Write it again.")
    item = np.dtype(dtype).itemsize
    if size % item:
        raise InputError(f"{file} has {size} bytes, which is no number of tokens of {item} bytes ({dtype}): see dtype.")
    if size == offset:
        return np.zeros(0, dtype)
    return np.memmap(file, f"<{np.dtype(dtype).str[1:]}" if item > 1 else dtype, "r", offset)


def _is_text(first: bytes) -> bool:
    """Whether the first bytes of a file are UTF-8 without control characters; the last character may be cut."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(first)
    except UnicodeDecodeError:
        return False
    return all(character in "\t\n\r" or (character >= " " and character != "\x7f") for character in text)


def _of_numpy(file: str) -> np.ndarray:
    """One axis of integers, as `numpy.save` writes them."""
    try:
        tokens = np.load(file, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise InputError(f"{file} is an array that NumPy cannot read ({error}): write it again.") from error
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise InputError(f"{file} is an array {tokens.dtype}{list(tokens.shape)}: save one axis of integers.")
    return tokens.astype(tokens.dtype.newbyteorder("="), copy=False)  # JAX has no other byte order


def _remedy(file: str, tokens: np.ndarray, meta: Meta) -> str:
    """The type under which all numbers at the start are tokens, and look like such, if one is known."""
    if isinstance(tokens, np.memmap) and tokens.offset == 0:
        whole = tokens.view(np.uint8)
        for dtype in ("<u2", "<u4", "<i8", ">u2", ">u4", ">i8"):
            item = np.dtype(dtype).itemsize
            other = whole[: min(len(whole), _SAMPLE * item) // item * item].view(dtype)
            fits = len(whole) % item == 0 and other.min(initial=0) >= 0 and other.max(initial=0) < meta.vocab_size
            if fits and dtype != tokens.dtype.str and (other[1::2].any() or not other[::2].any()):
                if dtype.startswith(">"):
                    return "its bytes are in the order of big-endian machines; write them in the other one."
                return f'as {np.dtype(dtype).name} they are tokens: "dtype": "{np.dtype(dtype).name}" in meta.json.'
    return "correct vocab_size or dtype there, or write the file again."
