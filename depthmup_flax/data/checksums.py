"""Checksums of examples, by which a resumed run knows its data again.

They find accidental changes, so CRC-32 serves, at several GB/s. Arrays in memory are read whole, up to `_WHOLE` bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping

import numpy as np

_WHOLE = 4 * 2**30  # of larger arrays, which may be mapped from a disk, examples that are spaced evenly are read
_CHUNK = 4096  # examples copied at a time if they are not contiguous


def spaced(count: int, most: int) -> np.ndarray:
    """At most ``most`` of the numbers below ``count``, spaced evenly: int64."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def of_arrays(fields: Mapping[str, np.ndarray]) -> str:
    """Eight hexadecimal digits of named arrays [N, ...]: of names, dtypes, shapes and contents."""
    value = 0
    for name, array in sorted(fields.items()):
        value = zlib.crc32(f"{name} {array.dtype} {array.shape} ".encode(), value)
        most = len(array) if array.nbytes <= _WHOLE else max(1, _WHOLE * len(array) // array.nbytes)
        chosen = spaced(len(array), most)
        for start in range(0, len(chosen), _CHUNK):
            part = chosen[start : start + _CHUNK]
            rows = array[part[0] : part[-1] + 1] if most == len(array) else array[part]
            value = zlib.crc32(np.ascontiguousarray(rows).view(np.uint8).data, value)
    return f"{value:08x}"


def of_texts(texts: Iterable[str]) -> str:
    """Eight hexadecimal digits of texts in order, which may be paths that are not UTF-8."""
    return f"{zlib.crc32(chr(0).join(texts).encode(errors='surrogateescape')):08x}"
