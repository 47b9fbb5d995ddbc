"""A result names the packages and the commit that it comes from."""

import importlib.util
import pathlib
import platform
import shutil
import subprocess

import jax

from depthmup_flax.storage import provenance


def test_versions_are_those_of_the_packages_that_are_imported():
    versions = provenance.versions()
    assert versions["python"] == platform.python_version()
    assert versions["jax"] == jax.__version__
    assert versions.keys() == {"python", *provenance.PACKAGES}


def test_the_commit_is_that_of_the_checkout_and_says_whether_files_differ(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    (tmp_path / "storage").mkdir()
    path = pathlib.Path(shutil.copy(provenance.__file__, tmp_path / "storage"))
    spec = importlib.util.spec_from_file_location("copied_provenance", path)
    copied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)
    assert copied.commit() is None  # no repository
    git("init", "--quiet")
    assert copied.commit() is None  # a repository of something else
    git("add", "storage/provenance.py")
    git("commit", "--quiet", "--message=Add it")
    assert copied.commit() == git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "notes.txt").write_text("not tracked")
    assert copied.commit() == git("rev-parse", "--short=12", "HEAD")
    path.write_text(path.read_text() + "\n")
    assert copied.commit() == git("rev-parse", "--short=12", "HEAD") + "-dirty"
