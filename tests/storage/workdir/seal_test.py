"""A flipped bit in a small file is an error, and never another number."""

import json
import random

import pytest
from planted_sweeps import RATES, X, parabola, sweep_of, write

from depthmup_flax import InputError
from depthmup_flax.storage.records.table import read_record_file
from depthmup_flax.storage.workdir.files import read_json
from depthmup_flax.storage.workdir.seal import sealed, unsealed

VALUE = {"mean": [0.25, 0.5], "name": "a, b}", "nested": {"crc32": "", "x": None}, "rate": 1e-3}


def flipped(content, rng):
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("end", ["", "\n"])
def test_what_was_sealed_is_read_again_and_is_json_for_others(indent, end):
    text = sealed(json.dumps(VALUE, indent=indent) + end)
    assert unsealed(text) == VALUE
    assert {name: value for name, value in json.loads(text).items() if name != "crc32"} == VALUE
    assert text.endswith("}" + end)
    assert unsealed(json.dumps(VALUE)) == VALUE  # of an earlier version


def test_no_bit_of_a_file_can_flip_into_another_value(tmp_path):
    path, rng = tmp_path / "data.json", random.Random(0)
    path.write_text(sealed(json.dumps(VALUE, indent=2) + "\n"))
    content = path.read_bytes()
    refused = 0
    for _ in range(200):
        path.write_bytes(flipped(content, rng))
        try:
            value = read_json(path, "restore it")
        except InputError:
            refused += 1
        else:  # the flip is in the name of the checksum, or in white space
            assert {name: item for name, item in value.items() if name in VALUE} == VALUE
    assert refused > 150


def test_no_bit_of_the_records_can_flip_into_another_number(tmp_path):
    write(tmp_path / "sweep", sweep_of(lambda point: parabola(point, noise=0.1), {X: RATES[:3], "seed": range(2)}))
    path, rng = tmp_path / "sweep" / "records.jsonl", random.Random(1)
    content, (expected, _) = path.read_bytes(), read_record_file(path)
    for _ in range(200):
        path.write_bytes(flipped(content, rng))
        try:
            records, _ = read_record_file(path)
        except InputError:
            continue
        assert all(record in expected for record in records)
