"""What SECURITY.md says of files: which run code, and which do not."""

import itertools
import sys

import jax
import processes
import pytest
from planted_sweeps import RATES, X, parabola, sweep_of, write
from small_runs import config

from depthmup_flax.config import from_file
from depthmup_flax.storage.sweep_records import SEED

SCRIPT = "<script>alert(1)</script>"
# Audit events of Python when it loads code or pickles, or calls another program or host; and when it compiles code, as
# dataclasses do, too.
LOADS = ("ctypes.dlopen", "os.exec", "os.posix_spawn", "os.system", "pickle.find_class", "socket.connect")
LOADS += ("subprocess.Popen",)
COMPILES = ("compile", "exec")


def prints_audit_events(watched, function, *args):
    """Calls the function twice, as the first call imports; prints which of ``watched`` the second one raises."""
    events = set()
    function(0, *args)
    sys.addaudithook(lambda event, arguments: events.add(event) if event in watched else None)
    function(1, *args)
    print("events:", *sorted(events), ".")
    return 0


def report(number, sweep, out):
    from depthmup_flax.report.sweep_report import make_report

    make_report([sweep], out / str(number))


def restore(number, workdir):
    from depthmup_flax.trainer.engine.from_config import build
    from depthmup_flax.trainer.runs.checkpoint import Checkpointer

    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = build(config()).state_shapes()
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)
    assert Checkpointer(workdir / "checkpoints", keep=1).restore(abstract) is not None


def test_a_config_file_runs_code(tmp_path):
    path = tmp_path / "config.py"
    path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef get_config(): raise ValueError\n")
    with pytest.raises(ValueError):  # noqa: PT011
        from_file(path)
    assert (tmp_path / "ran").exists()


@pytest.mark.slow
def test_a_report_of_a_strangers_records_runs_no_code_and_its_page_holds_none_of_their_markup(tmp_path):
    axes = {"model.depth": (4, 8), X: RATES[::4], SEED: (0, 1)}
    sweep = sweep_of(
        lambda point: parabola(point), axes, title=SCRIPT, model={"width": SCRIPT, "x": "__import__('os')"}
    )
    for record in sweep.records:
        for name in ("device", "commit"):
            object.__setattr__(record, name, SCRIPT)
        record.versions[SCRIPT] = SCRIPT
    directory = write(tmp_path / "sweep", sweep)
    process = processes.Process(tmp_path / "log", prints_audit_events, LOADS + COMPILES, report, directory, tmp_path)
    assert process.wait() == 0, process.text()
    assert "events: ." in process.text()
    page = (tmp_path / "1" / "report.html").read_text()
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 4


@pytest.mark.slow
def test_restoring_a_checkpoint_runs_no_code(tmp_path):
    short = config()
    short.train.update(steps=2, eval_every=1)
    process = processes.Process(tmp_path / "train", processes.train, short, tmp_path)
    assert process.wait() == 0, process.text()
    process = processes.Process(tmp_path / "log", prints_audit_events, LOADS, restore, tmp_path)
    assert process.wait() == 0, process.text()
    assert "events: ." in process.text()
    names = [path.name for path in (tmp_path / "checkpoints").rglob("*")]
    assert not [name for name, suffix in itertools.product(names, (".pkl", ".pickle", ".npy", ".py")) if suffix in name]
