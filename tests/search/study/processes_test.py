"""A Study in another process: the same source resumes its records, and a changed one says so."""

import pytest
from processes import run_command

SCRIPT = """
import sys
import flax.linen as nn
import numpy as np
import depthmup_flax as dm

class Net(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width)(x)
        for _ in range(self.depth):
            h = h + (2 / self.depth) ** 0.5 * nn.Dense(self.width)(nn.relu(h))
        return nn.Dense(2)(h * FACTOR / self.width)

x = np.linspace(-1, 1, 40, dtype=np.float32).reshape(20, 2)
study = dm.Study(
    lambda width, depth: Net(width, depth),
    ((x[:15], x[:15]), (x[15:], x[15:])),
    loss=lambda outputs, targets: ((outputs - targets) ** 2).mean(),
    base=(4, 2), steps=4, batch_size=5, workdir=sys.argv[1],
)
new = []
best = study.tune(learning_rate=(0.1, 0.2), seeds=1, extend=0, on_record=new.append)
print(len(new), best["learning_rate"])
"""


def last_words(process):
    return process.stdout.splitlines()[-1].split()


@pytest.mark.slow
def test_the_same_source_resumes_in_another_process_and_changed_source_says_so(tmp_path):
    def run(factor):
        script = tmp_path / "study.py"
        script.write_text(SCRIPT.replace("FACTOR", str(factor)))
        return run_command(script, tmp_path / "runs")

    first, second, changed = run(4), run(4), run(8)
    assert last_words(first)[0] == "2", first.stderr
    assert last_words(second) == ["0", last_words(first)[1]], second.stderr
    assert changed.returncode == 1
    assert "computes something else now" in changed.stderr
