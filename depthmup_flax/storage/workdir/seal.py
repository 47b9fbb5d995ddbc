"""Small JSON files and lines with a checksum, so that a flipped bit is an error and not another number."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

_SEAL = re.compile(r', "crc32": "([0-9a-f]{8})"\}\s*$')


def sealed(text: str) -> str:
    """The text of a JSON object with one more field at its end, the CRC-32 of what precedes it."""
    whole = text.rstrip()
    body = whole.removesuffix("}").rstrip()
    return f'{body}, "crc32": "{zlib.crc32(body.encode()):08x}"}}{text[len(whole) :]}'


def unsealed(text: str) -> Any:
    """The JSON value of what `sealed` returned, or of a text without a checksum, as earlier versions wrote.

    Raises:
      ValueError: the text has changed since, or is not JSON.
    """
    value, seal = json.loads(text), _SEAL.search(text)
    if seal is None:
        return value
    if zlib.crc32(text[: seal.start()].encode()) != int(seal[1], 16):
        raise ValueError("its content is not that of its crc32; if you edited it, remove that field")
    del value["crc32"]
    return value
