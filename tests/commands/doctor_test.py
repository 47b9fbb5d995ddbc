"""``depthmup doctor``: says what is missing, and neither hangs nor fails itself."""

import importlib.metadata

import pytest

from depthmup_flax.commands import doctor

HEALTHY = "print('cpu, cpu'); print('cpu, cpu')"


def diagnosis(monkeypatch, capsys, probe=HEALTHY):
    monkeypatch.setattr(doctor, "_PROBE", probe)
    code = doctor.main(None)
    return code, capsys.readouterr().out


def test_all_well_is_the_last_line_and_exit_code_0(monkeypatch, capsys):
    code, text = diagnosis(monkeypatch, capsys)
    assert code == 0
    assert text.splitlines()[-1] == "All that depthmup train --config=digits needs is here."
    assert f"jax {importlib.metadata.version('jax')}," in " ".join(text.split())
    assert "2 x cpu" in text


@pytest.mark.parametrize(
    ("probe", "sentence"),
    [
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("import os; os._exit(9)", "exit code 9"),
        ("import time; time.sleep(60)", "no answer in 1 s"),
    ],
)
def test_a_device_that_fails_or_hangs_is_a_line_and_exit_code_2(probe, sentence, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_TIMEOUT_S", 1.0 if "sleep" in probe else 60.0)
    code, text = diagnosis(monkeypatch, capsys, probe)
    assert code == 2
    assert f"! JAX finds no device: {sentence}" in text


def test_a_version_outside_the_bounds_of_the_package_is_named_and_exit_code_2(monkeypatch, capsys):
    requires = importlib.metadata.Distribution.requires.fget
    changed = lambda self: [text.replace("jax<0.13", "jax<0.1") for text in requires(self)]
    monkeypatch.setattr(importlib.metadata.Distribution, "requires", property(changed))
    code, text = diagnosis(monkeypatch, capsys)
    assert code == 2
    assert f"! jax is {importlib.metadata.version('jax')}" in text


def test_missing_packages_are_found_also_behind_extras():
    distribution = importlib.metadata.distribution("depthmup-flax")
    assert doctor.missing(distribution, "report") == []
    assert any("jax-cuda12-plugin" in one for one in doctor.missing(distribution, "cuda12"))  # by way of jax[cuda12]
