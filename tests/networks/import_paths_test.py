import sys
import types

import pytest

from depthmup_flax.networks.import_paths import is_import_path, project_code, register, resolve
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


EVERY_KIND = '''
"""Doc."""
import numpy as np
class Net(Base, metaclass=M):
    """Doc."""
    width: int = 3
    def f(self, x: int, *a: int, k: str = "a", **kw: Any) -> int:
        """Doc."""
        y = [f"{x!r:>{w}} and {k} {'q'}" "tail", b"bytes", 1e-3, 2j, ..., {**kw, "a": 1}, None]
        with open(x) as a, open(y): pass
        match x:
            case {"a": [1, *_]} if x: return lambda z=1: z
            case _: pass
        try: pass
        except* ValueError as e: raise
        async def g(): return [i async for i in x if (n := i)]
        return y[1:2, ...] @ x
'''


def digest_of(path, name, text):
    (path / "their_package" / f"{name}.py").write_text(text)
    module = types.ModuleType(f"their_package.{name}")
    module.__file__ = str(path / "their_package" / f"{name}.py")
    module.__spec__ = object()  # another one than of an earlier module of this name
    sys.modules[module.__name__] = module
    return project_code()[module.__name__]


def test_the_digest_of_a_file_is_the_same_in_all_versions_of_python(package):
    assert digest_of(package, "one", EVERY_KIND) == "ast2:9005191c6342d8bf"  # in 3.11, 3.12 and 3.13


EDITS = {  # of `EVERY_KIND` -> whether it is another program
    '"""Doc."""': ('"""Another."""', False),
    "x: int": ("x", False),
    "-> int": ("", False),
    "import numpy as np": ("import numpy as np  # used", False),
    "width: int": ("width: float", True),  # a field of a dataclass
    "1e-3": ("1e-4", True),
    'b"bytes"': ('"bytes"', True),
    "and {k}": ("or {k}", True),
    "@ x": ("* x", True),
    "None]": ("]", True),
}


@pytest.mark.parametrize("part", EDITS)
def test_what_is_only_for_people_does_not_enter_the_digest_of_a_file(package, part):
    edited, differs = EDITS[part]
    first, second = (
        digest_of(package, f"m{i}", text) for i, text in enumerate([EVERY_KIND, EVERY_KIND.replace(part, edited)])
    )
    assert (first != second) == differs


@pytest.mark.parametrize("name", ["a:b", "my_package.net:Net", "my_package.net:Net.small", "session:Net#12345678"])
def test_names_of_user_code_are_told_from_ours(name):
    assert is_import_path(name)


@pytest.mark.parametrize("name", ["mlp", "a:", ":b", "a b:c", "a:b:c", "gs://bucket", None])
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


def _scaled(factor):
    def scale(x):
        return factor * x

    return scale


def test_objects_of_one_name_are_told_apart_and_a_name_of_an_earlier_process_means_the_last_one():
    two, three = _scaled(2), _scaled(3)
    names = [register(scale, "loss") for scale in (two, three)]
    assert [resolve(name, "config.loss") for name in names] == [two, three]
    assert {str(InputError(name)) for name in names} == {"session:_scaled.<locals>.scale"}
    assert resolve("session:_scaled.<locals>.scale#00000000", "config.loss") is three
    assert register(lambda: 1, "data").startswith("session:data#")
    with pytest.raises(InputError, match=r"config\.loss is 'session:gone'.*file"):
        resolve("session:gone#00000000", "config.loss")
