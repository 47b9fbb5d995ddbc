"""The page's table is that of the record, and the recipes that are compared are one rule."""

import importlib.util
import json
import pathlib
import re

import pytest

from reproduction import torch_transfer

ROOT = pathlib.Path(__file__).parents[2]
RECORD = ROOT / "reproduction" / "records" / "torch_transfer.json"


def test_the_page_has_the_table_of_the_record():
    page = (ROOT / "docs" / "pytorch.md").read_text()
    shown = re.search(r"<!-- transfer: .*? -->\n(.*?)\n<!-- end of transfer -->", page, re.DOTALL)[1]
    assert shown == torch_transfer.table(json.loads(RECORD.read_text()))


def test_the_five_lines_and_the_rule_by_hand_have_the_same_losses():
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("torchax") is None:
        pytest.skip("could not import 'torch' and 'torchax'")
    text = "ROMEO:\nShe speaks. O speak again.\n" * 50
    gpt = torch_transfer.example()
    ours, hand, plain = (torch_transfer.losses(gpt, text, arm, 64, 4, 2e-3, 0, 5) for arm in ("ours", "hand", "plain"))
    assert ours == pytest.approx(hand, abs=1e-5)
    assert max(abs(x - y) for x, y in zip(ours, plain, strict=True)) > 1e-2
