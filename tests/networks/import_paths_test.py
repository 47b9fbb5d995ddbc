import sys

import numpy as np
import pytest

from depthmup_flax.networks.import_paths import _without_comments, digests, is_import_path, register, resolve
from depthmup_flax.util.errors import InputError, UserCodeError

SOURCE = """
class Net:
    small = 3

def load():
    return 1
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package in the current directory, which is not on the path."""
    (tmp_path / "their_package").mkdir()
    (tmp_path / "their_package" / "__init__.py").write_text("from their_package.net import Net")
    (tmp_path / "their_package" / "net.py").write_text(SOURCE)
    (tmp_path / "their_package" / "broken.py").write_text("1 / 0")
    (tmp_path / "their_package" / "lacking.py").write_text("import no_such_package")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield tmp_path
    for module in [name for name in sys.modules if name.startswith("their_package")]:
        del sys.modules[module]


@pytest.mark.parametrize("name", ["a:b", "my_package.net:Net", "my_package.net:Net.small", "session:Net@12345678"])
def test_names_of_user_code_are_told_from_ours(name):
    assert is_import_path(name)


@pytest.mark.parametrize("name", ["mlp", "", "a.b", "a:", ":b", "a b:c", "a:b:c", "gs://bucket", None, "1a:b"])
def test_other_names_are_no_import_paths(name):
    assert not is_import_path(name)


def test_an_import_path_resolves_from_the_current_directory(package):
    assert resolve("their_package.net:Net.small", "config.model.name") == 3
    assert resolve("their_package.net:load", "config.data.name")() == 1


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("their_package.net:Nte", "no Nte"),
        ("their_package.nte:Net", "no module their_package.nte"),
        ("nothing_like_it.net:Net", "directory"),
        ("Net", "import path"),
    ],
)
def test_a_wrong_name_is_one_sentence_with_the_field(package, name, remedy):
    with pytest.raises(InputError, match=rf"config\.model\.name is '{name}'.*{remedy}"):
        resolve(name, "config.model.name")


@pytest.mark.parametrize(("module", "cause"), [("broken", ZeroDivisionError), ("lacking", ModuleNotFoundError)])
def test_an_error_in_their_module_keeps_its_traceback(package, module, cause):
    with pytest.raises(UserCodeError, match=f"their_package.{module}") as raised:
        resolve(f"their_package.{module}:Net", "config.model.name")
    assert isinstance(raised.value.__cause__, cause)


def test_the_digest_of_an_import_path_is_of_its_file_and_of_the_file_that_defines_the_object(package):
    digest = digests(["their_package:Net"])
    assert set(digest) == {"their_package", "their_package.net"}
    assert all(len(value) == 16 for value in digest.values())


def test_a_digest_is_that_of_the_code_without_its_comments():
    digest = lambda source: _without_comments(source.encode())
    assert digest(SOURCE) == digest("# a comment\n" + SOURCE.replace("small = 3", "small = (3)  # three"))
    assert digest(SOURCE) != digest(SOURCE.replace("3", "4"))


def _scaled(factor):
    def scale(x):
        return factor * x

    return scale


def test_a_registered_object_is_found_by_its_name():
    name = register(_scaled, "model")
    assert name.startswith("session:_scaled@")
    assert len(name.rpartition("@")[2]) == 8
    assert resolve(name, "config.model.name") is _scaled
    (key,) = digests([name])
    assert key == "_scaled"


def test_equal_code_has_one_name_and_what_it_closes_over_counts():
    assert register(_scaled(2), "loss") == register(_scaled(2), "loss") != register(_scaled(3), "loss")


def test_data_of_equal_numbers_has_one_name():
    data = lambda n: ((np.arange(n), np.ones(3)), None)
    assert register(data(4), "data") == register(data(4), "data") != register(data(5), "data")
    assert register(data(4), "data").startswith("session:data@")


def _cell(source):
    """What a notebook's cell defines: classes and functions without a file."""
    names = {"__name__": "cell"}
    exec(source, names)
    return names


def test_an_edited_class_in_a_cell_changes_the_name_of_what_builds_it():
    cell = "class Net:\n  def __call__(self, x):\n    return {} * x\nbuild = lambda width: Net()"
    one, same, other = (register(_cell(cell.format(k))["build"], "model") for k in (2, 2, 3))
    assert one == same != other


def test_a_name_of_another_process_is_refused():
    with pytest.raises(InputError, match=r"config\.loss is 'session:gone@00000000'.*file"):
        resolve("session:gone@00000000", "config.loss")
