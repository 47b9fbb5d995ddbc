"""The docstring's example runs as written, on recorded sizes; that of docs/your_model.md trains."""

import textwrap

import pytest
from recorded_checks import recorded

from depthmup_flax import check

EXAMPLE = textwrap.dedent(check.__doc__.split("::\n", 1)[1])


@pytest.mark.slow
def test_the_example_of_the_module_runs_and_passes(capsys):
    scope = {"__name__": "example"}
    with recorded("example"):
        exec(compile(EXAMPLE, "coord_check.__doc__", "exec"), scope)
    assert scope["report"].ok
    assert str(scope["report"]) in capsys.readouterr().out
