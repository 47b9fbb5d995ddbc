"""Stops Pillow's decoding of a JPEG after the last row that is needed."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

_FORMATS = ("JPEG", "MPO")  # of Pillow; MPO is a JPEG followed by others, of which the first counts
_START, _END = b"\xff\xd8", b"\xff\xd9"  # of the image
_SEQUENTIAL = (0xC0, 0xC1)  # frame headers: baseline and extended, Huffman-coded
_TABLES_AND_NOTES = (0xC4, 0xDB, *range(0xE0, 0xF0), 0xFE)
_SCAN = 0xDA  # its header


def stop_after(image: Image.Image, rows: int, scale: int = 1) -> None:
    """Leaves black what is below ``rows`` rows of an image that is not decoded yet, if it is a sequential JPEG.

    ``rows`` counts rows of the image when decoded at 1/``scale`` of its size, as ``image.draft`` has set it.

    The file in memory is made to declare a smaller height. libjpeg decodes rows from top to bottom, skips what follows
    up to the next marker, and goes on from there, as it does after the last row. So the errors are those of decoding
    all of it, and the pixels too, except those of the last two rows if colors are subsampled.

    Other files are decoded whole: those that are progressive, arithmetic-coded or have several scans; those with
    restart intervals, for which libjpeg forgives damage inside a scan that it refuses after it; and those without an
    end marker at their end, so that a file that is cut off is an error whatever the rows.
    """
    file = getattr(image, "fp", None)
    if image.format not in _FORMATS or not isinstance(file, io.BytesIO):
        return
    content = file.getvalue()
    # In one piece: given pieces, Pillow does not look for errors after the piece in which the last row ends.
    image.decodermaxblock = len(content)  # type: ignore[attr-defined]
    at, tiles = _height_at(content), image.tile  # type: ignore[attr-defined]
    if at is None or rows >= image.height or len(tiles) != 1:
        return
    file.seek(at)
    file.write((rows * scale).to_bytes(2, "big"))
    ((codec, _, offset, arguments),) = tiles
    image.tile = [(codec, (0, 0, image.width, rows), offset, arguments)]  # type: ignore[attr-defined]


def _height_at(content: bytes) -> int | None:
    """The position of the two bytes that declare the height; ``None`` if the file is to be decoded whole."""
    if not (content.startswith(_START) and content.endswith(_END)):
        return None
    at, height_at = len(_START), None
    while at + len(_END) < len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if marker == _SCAN:
            one_scan = height_at is not None and content[at + 4] == content[height_at + 4]  # it has all the components
            return height_at if one_scan else None
        if marker in _SEQUENTIAL:
            height_at = at + 5
        elif marker not in _TABLES_AND_NOTES:
            return None
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return None
