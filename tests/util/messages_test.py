"""Progress is plain lines where no program has said how it logs."""

import subprocess
import sys

import pytest

OWN = "logging.basicConfig(format='MINE %(message)s', stream=sys.stdout)"


@pytest.mark.parametrize(
    ("before", "shown"),
    [("", "hello\n"), ("logging.warning('of another library')", "hello\n"), (OWN, "MINE hello\n")],
    ids=["nothing", "an implicit handler", "a handler of one's own"],
)
def test_lines_are_plain_unless_the_program_has_a_handler_of_its_own(before, shown):
    code = (
        f"import logging, sys\n{before}\n"
        "from depthmup_flax.util.messages import PACKAGE, show_lines\n"
        "show_lines()\nshow_lines()\n"
        "PACKAGE.getChild('search').info('hello')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == shown
    assert "hello" not in done.stderr
