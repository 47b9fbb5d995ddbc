"""``depthmup doctor``: says what is missing, and neither hangs nor fails itself."""

import importlib.metadata
import json

import pytest
from packaging.requirements import Requirement
from processes import run_command

from depthmup_flax.commands import doctor

HEALTHY = """print('{"devices": ["cpu", "cpu"]}'); print('{"digits": 1500}')"""


def diagnosis(monkeypatch, capsys, probe):
    monkeypatch.setattr(doctor, "_PROBE", probe)
    code = doctor.main(["doctor"])
    return code, capsys.readouterr().out


def test_all_well_is_the_last_line_and_exit_code_0(monkeypatch, capsys):
    code, text = diagnosis(monkeypatch, capsys, HEALTHY)
    assert code == 0
    assert text.splitlines()[-1] == "All that depthmup train --config=digits needs is here."
    assert f"jax {importlib.metadata.version('jax')}," in " ".join(text.split())
    assert "2 x cpu" in text
    assert "CPU cores" in text
    assert "free on the disk" in text


@pytest.mark.parametrize(
    ("probe", "sentence"),
    [
        ("raise RuntimeError('no driver')", "JAX finds no device: RuntimeError: no driver"),
        ("import os; os._exit(9)", "JAX finds no device: the process ended with code 9"),
        ("import time; time.sleep(60)", "JAX finds no device: no answer in 1 s"),
        ("""print('{"devices error": "E: x", "digits": 1}')""", "JAX finds no device: E: x"),
        ("""print('{"devices": [], "digits error": "E: y"}')""", "the digits data set cannot be read: E: y"),
    ],
)
def test_a_device_or_data_that_fail_are_a_line_and_exit_code_2(probe, sentence, monkeypatch, capsys):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if "sleep" in probe:
        monkeypatch.setattr(doctor, "_TIMEOUT_S", 1.0)
    code, text = diagnosis(monkeypatch, capsys, probe)
    assert code == 2
    assert f"! {sentence}" in text


def test_a_version_outside_the_bounds_of_the_package_is_named_and_exit_code_2(monkeypatch, capsys):
    requires = importlib.metadata.Distribution.requires.fget
    changed = lambda self: [text.replace("jax<0.13", "jax<0.1") for text in requires(self)]
    monkeypatch.setattr(importlib.metadata.Distribution, "requires", property(changed))
    code, text = diagnosis(monkeypatch, capsys, HEALTHY)
    assert code == 2
    assert f"! jax is {importlib.metadata.version('jax')}, but <0.1,>=0.8 is needed" in text


def test_an_error_in_a_section_is_a_line(monkeypatch, capsys):
    def fails():
        yield "first"
        raise OSError("no /proc")

    monkeypatch.setattr(doctor, "_machine", fails)
    code, text = diagnosis(monkeypatch, capsys, HEALTHY)
    assert code == 0
    assert "Machine\n  first\n  cannot be determined: OSError: no /proc\n" in text


@pytest.mark.parametrize(
    ("requirement", "wrong"),
    [
        ("numpy", ""),
        ("numpy>=999", "but >=999 is needed"),
        ("no-such-package>=1", "no-such-package is not installed"),
        ("depthmup-flax[report]", ""),
        ("depthmup-flax[cuda12]", "jax-cuda12-plugin"),  # by way of jax[cuda12]
    ],
)
def test_missing_packages_are_found_also_behind_extras(requirement, wrong):
    found = doctor.missing(Requirement(requirement))
    assert (wrong in found) if wrong else not found


def test_the_extras_that_are_explained_exist():
    assert set(doctor._EXTRAS) <= set(importlib.metadata.metadata("depthmup-flax").get_all("Provides-Extra"))


def test_prepared_sets_are_listed_and_those_that_need_tensorflow_are_marked(tmp_path, monkeypatch, capsys):
    for name, file_format in (("cifar10/3.0.2", "array_record"), ("mnist/3.0.1", "tfrecord")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "dataset_info.json").write_text(json.dumps({"fileFormat": file_format}))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    text = " ".join(diagnosis(monkeypatch, capsys, HEALTHY)[1].split())
    assert f"TFDS sets in {tmp_path}: cifar10/3.0.2, mnist/3.0.1 (not as array_record: prepare it again)" in text


def test_the_probe_finds_the_devices_and_the_digits(capsys):
    doctor.probe()
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [list(answer) for answer in found] == [["devices"], ["digits"]]
    assert found[0]["devices"]
    assert found[1]["digits"] == 1500


@pytest.mark.slow
def test_the_command_finds_that_the_tests_machine_is_well():
    done = run_command("-m", "depthmup_flax", "doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("All that depthmup train --config=digits needs is here.\n")
