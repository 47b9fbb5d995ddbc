"""Images per second that the input pipeline reads, decodes and crops, on one core and on several.

    python -m benchmarks.input [--size=224] [--images=DIR] [--cores=1,2] [--repeats=5] [--out=input.json]

Reads the training images of ``DIR`` (a folder as in ``data.name=folder:DIR``). By default it generates images of
ImageNet's usual size: 500x375 crops of the two photographs of scikit-learn, as JPEG of quality 95 without chroma
subsampling, 107 kB on average (ImageNet: 110 kB). The same files are read as a folder and as a TFDS set (array_record).
Each measurement runs in a process that is bound to its cores before it starts any thread; repeats are interleaved.
Files are in the page cache: disks and networks are not measured.
"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from depthmup_flax import data
from depthmup_flax.data.image_files import crop_draws, random_box, resize_box

MADE_IMAGES = 512
MADE_SIZE = (500, 375)
JPEG = {"quality": 95, "subsampling": 0}
BATCH = 128
WARM_BATCHES = 4


def made_images(count: int) -> Iterator[bytes]:
    """JPEG files of crops of the two photographs of scikit-learn."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    for i in range(count):
        photograph, rng = photographs[i % 2], np.random.default_rng(i)
        left, top = (int(rng.integers(0, have - cut + 1)) for have, cut in zip(photograph.size, MADE_SIZE, strict=True))
        file = io.BytesIO()
        photograph.crop((left, top, left + MADE_SIZE[0], top + MADE_SIZE[1])).save(file, "JPEG", **JPEG)
        yield file.getvalue()


def make_folder(root: pathlib.Path, count: int = MADE_IMAGES) -> str:
    """Writes generated images as training files, and two as test files; returns the folder's path."""
    for i, content in enumerate(made_images(count)):
        for split in ("train", "test")[: 2 if i < 2 else 1]:
            path = root / split / f"class{i % 2}" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return str(root)


def make_tfds(files: list[tuple[str, int]], directory: pathlib.Path) -> None:
    """Writes the (path, label) pairs as the TFDS set ``photographs``, without TensorFlow."""
    import tensorflow_datasets as tfds

    classes = 1 + max(label for _, label in files)

    def examples(chosen: list[tuple[str, int]]) -> Iterator[tuple[int, dict[str, Any]]]:
        for i, (path, label) in enumerate(chosen):
            yield i, {"image": path, "label": label}

    features = tfds.features.FeaturesDict(
        {"image": tfds.features.Image(shape=(None, None, 3)), "label": tfds.features.ClassLabel(num_classes=classes)}
    )
    body = {
        "VERSION": tfds.core.Version("1.0.0"),
        "name": "photographs",
        "__module__": __name__,
        "_info": lambda self: tfds.core.DatasetInfo(
            builder=self, features=features, supervised_keys=("image", "label")
        ),
        "_split_generators": lambda self, manager: {"train": examples(files), "test": examples(files[:2])},
        "_generate_examples": lambda self: iter(()),
    }
    with tfds.core.registered.skip_registration():
        builder = type("photographs", (tfds.core.GeneratorBasedBuilder,), body)
    with contextlib.redirect_stdout(sys.stderr):
        builder(data_dir=directory, file_format="array_record").download_and_prepare()


def config(name: str, size: int, **fields: Any) -> Any:
    """``config.data`` of a stream of random resized crops."""
    settings = {"name": name, "image_size": size, "augment": "resized_crop", **fields}
    return types.SimpleNamespace(**{**data.DATA_DEFAULTS, **settings})


def measure(name: str, size: int, seconds: float, fields: dict[str, str]) -> dict[str, float]:
    """Speed of ``train_stream`` on the cores that this process is bound to. ``fields`` are those of ``config.data``."""
    started = time.perf_counter()
    dataset = data.load(config(name, size, **fields))
    opened = time.perf_counter() - started
    batch = min(BATCH, len(dataset.train))
    stream = data.train_stream(dataset.train, 0, batch)
    for _ in range(WARM_BATCHES):
        next(stream)
    wall, cpu, images = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - wall < seconds:
        images += len(next(stream)["label"])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"images_per_s": images / wall, "images_per_core_s": images / cpu, "open_s": opened}


def in_new_process(cores: int, *arguments: Any) -> dict[str, float]:
    """``measure(*arguments)`` in a new process on ``cores`` cores."""
    program = (
        "import os, sys, json\n"
        f"os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{cores}])\n"
        "from benchmarks.input import measure\n"
        f"print(json.dumps(measure(*{arguments!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def variants(files: list[str], size: int, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds per image and thread of ways to read a random crop of a JPEG; the last is ours.

    ``python_only`` is ours on a JPEG of 8x8 pixels. Nearly all of its time is Python code, which holds the
    interpreter's lock, so it bounds the speed-up by more cores.
    """
    from PIL import Image

    contents = [pathlib.Path(path).read_bytes() for path in files]
    draws = crop_draws(0, 0, len(contents)).tolist()
    bilinear = Image.Resampling.BILINEAR

    def opened(i: int) -> tuple[Any, Any]:
        image = Image.open(io.BytesIO(contents[i]))
        return image, random_box(draws[i], *image.size)

    def convert_crop_resize(i: int) -> Any:
        image, box = opened(i)
        return image.convert("RGB").crop(box).resize((size, size), bilinear)

    def crop_resize(i: int) -> Any:
        image, box = opened(i)
        return image.crop(box).resize((size, size), bilinear)

    def box_reducing_gap(i: int) -> Any:
        image, box = opened(i)
        return image.resize((size, size), bilinear, box=box, reducing_gap=2.0)

    def box(i: int) -> Any:
        image, box = opened(i)
        return image.resize((size, size), bilinear, box=box)

    def ours(i: int) -> Any:
        image, box = opened(i)
        return resize_box(image, "RGB", size, box)

    def decode_only(i: int) -> Any:
        return opened(i)[0].load()

    speck = io.BytesIO()
    Image.new("RGB", (8, 8)).save(speck, "JPEG")

    def python_only(i: int) -> Any:
        image = Image.open(io.BytesIO(speck.getvalue()))
        return np.asarray(resize_box(image, "RGB", 8, random_box(draws[i], *image.size)))

    ways = (python_only, decode_only, convert_crop_resize, crop_resize, box_reducing_gap, box, ours)
    times: dict[str, list[float]] = {way.__name__: [] for way in ways}
    for _ in range(repeats):
        for way in ways:
            times[way.__name__].append(_milliseconds(way, len(contents)))
    return {name: _summary(values) for name, values in times.items()}


def _milliseconds(way: Callable[[int], Any], count: int) -> float:
    started = time.thread_time()
    for i in range(count):
        way(i)
    return (time.thread_time() - started) / count * 1e3


def _summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def main() -> None:
    """Measures and prints JSON and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=224, help="data.image_size")
    parser.add_argument("--images", default="", help="folder of images; default: generated images")
    parser.add_argument("--cores", default="1,2", help="comma-separated numbers of cores")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="duration of one measurement")
    parser.add_argument("--out", default="", help="file to write the JSON to")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        result = run(flags, pathlib.Path(scratch))
    text = json.dumps(result, indent=1)
    print(text)
    if flags.out:
        pathlib.Path(flags.out).write_text(text + "\n")
    print_table(result)


def run(flags: argparse.Namespace, scratch: pathlib.Path) -> dict[str, Any]:
    """All measurements."""
    from depthmup_flax.data.images import list_folder

    folder = flags.images or make_folder(scratch / "folder")
    files = list_folder(folder)[0]
    make_tfds(files, scratch / "tfds")
    cases = [
        (source, name, fields, cores)
        for cores in map(int, flags.cores.split(","))
        for source, name, fields in (
            ("folder", f"folder:{folder}", {}),
            ("tfds", "tfds:photographs", {"data_dir": str(scratch / "tfds")}),
        )
    ]
    measured: dict[tuple[str, int], list[dict[str, float]]] = {(source, cores): [] for source, _, _, cores in cases}
    for _ in range(flags.repeats):
        for source, name, fields, cores in cases:
            measured[source, cores].append(in_new_process(cores, name, flags.size, flags.seconds, fields))
    return {
        "size": flags.size,
        "images": len(files),
        "mean_file_kb": sum(os.path.getsize(path) for path, _ in files) / len(files) / 1e3,
        "repeats": flags.repeats,
        "streams": [
            {"source": source, "cores": cores, **{key: _summary([one[key] for one in runs]) for key in runs[0]}}
            for (source, cores), runs in measured.items()
        ],
        "ms_per_image": variants([path for path, _ in files[:128]], flags.size, flags.repeats),
    }


def print_table(result: dict[str, Any]) -> None:
    """Prints the results as Markdown tables."""
    print("\n| source | cores | images/s | per second of a core | opening, s |\n|---|---|---|---|---|")
    for row in result["streams"]:
        speed, share, opening = (_cell(row[key]) for key in ("images_per_s", "images_per_core_s", "open_s"))
        print(f"| {row['source']} | {row['cores']} | {speed} | {share} | {opening} |")
    print("\n| way, one thread | ms per image |\n|---|---|")
    for name, values in result["ms_per_image"].items():
        print(f"| {name} | {_cell(values)} |")


def _cell(values: dict[str, float]) -> str:
    return f"{values['median']:.3g} ({values['lowest']:.3g} to {values['highest']:.3g})"


if __name__ == "__main__":
    main()
