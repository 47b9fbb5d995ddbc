"""Images that a user gives to a trained network: arrays, and files that are decoded as in evaluation."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from depthmup_flax.data.dataset import DataConfig
from depthmup_flax.data.decoding import BadExample, Encoded, decode, in_threads, pixels, printable_path
from depthmup_flax.data.sources.folder import SUFFIXES
from depthmup_flax.util.errors import InputError, shown


def checked(images: object, shape: tuple[int, int, int]) -> np.ndarray:
    """Images ``[B, *shape]`` in 0..255: uint8 as given, or float32 from floats in 0..1; else `InputError`."""
    array = np.asarray(images)
    if array.dtype.kind in "USO":
        raise InputError(f"images is {shown(images)}: use an array of images, such as run.read_images(['image.png']).")
    if array.ndim != 4 or array.shape[1:] != shape:
        wanted = f"[B, {', '.join(map(str, shape))}]"
        hint = "Add the axis B, images[None]" if array.shape == shape else "Resize them, or read files"
        raise InputError(f"images have shape {list(array.shape)}: the network reads {wanted}. {hint}.")
    top = {"i": 255, "u": 255, "f": 1}.get(array.dtype.kind)
    values = array.astype(np.float32) if top == 1 else array
    low, high = (float(values.min()), float(values.max())) if top and array.size else (0.0, 0.0)
    if top is None or not (low >= 0 and high <= top):  # also for NaN
        given = f" from {low:g} to {high:g}" if top else ""
        raise InputError(f"images are {array.dtype}{given}: give integers in 0..255, or floats in 0..1.")
    return values * np.float32(255) if top == 1 else values.astype(np.uint8)


def read_images(paths: Sequence[pathlib.Path], shape: tuple[int, int, int], config: DataConfig) -> np.ndarray:
    """Image files as uint8 ``[B, *shape]``, decoded, resized and cropped as in the evaluation of ``config``.

    If ``config`` does not resize, the shorter side is resized and the center square cropped.

    Raises:
      InputError: a file cannot be read, or has another size and ``shape`` is not a square.
    """
    height, width, channels = shape
    if not config.image_size and height == width:
        config = dataclasses.replace(config, image_size=height)

    def read(path: pathlib.Path) -> np.ndarray:
        name = printable_path(os.fspath(path))
        if not path.is_file():
            raise InputError(f"there is no file {name!r}: name image files.")
        try:
            image = decode(Encoded(name, os.fspath(path), 0), channels, config)
        except BadExample as error:
            raise InputError(f"{name} cannot be read as an image ({error.reason}): name another file.") from error
        if image.shape != shape:
            raise InputError(f"{name} is {pixels(image.shape)}: the network reads {pixels(shape)}. Resize the image.")
        return image

    images = in_threads(read, paths, config.read_threads)
    return np.stack(images) if images else np.zeros((0, *shape), np.uint8)


def image_files(arguments: Sequence[str]) -> list[pathlib.Path]:
    """The files that a user names, and all images below directories, sorted by path; `InputError` if there is none."""
    files: list[pathlib.Path] = []
    for argument in arguments:
        path = pathlib.Path(argument).expanduser()
        if path.is_dir():
            images = sorted(p for p in path.rglob("*") if p.suffix.lower()[1:] in SUFFIXES and p.is_file())
            if not images:
                raise InputError(f"{argument!r} has no image files. Name a directory with {', '.join(SUFFIXES)}.")
            files += images
        elif path.is_file():
            files.append(path)
        else:
            raise InputError(f"there is no file {argument!r}. Name image files, or directories of them.")
    return files
