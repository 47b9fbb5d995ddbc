"""The names at the top of the package: all there, each imported at its first use."""

import ast
import pathlib
import pkgutil
import types

import pytest

import depthmup_flax as dm


def test_every_public_name_is_there_and_is_listed():
    assert set(dm.__all__) <= set(dir(dm))
    assert all(getattr(dm, name) is not None for name in dm.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dm.nothing


def test_type_checkers_and_editors_see_the_same_names_as_python():
    """They read the imports below ``TYPE_CHECKING``, which no program runs."""
    tree = ast.parse(pathlib.Path(dm.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.name for node in block.body for alias in node.names}
    assert seen == set(dm.__all__)
    for node in block.body:
        for alias in node.names:
            value = getattr(dm, alias.name)
            if not isinstance(value, types.ModuleType):
                assert value is getattr(__import__(node.module, fromlist=[alias.name]), alias.name)


def test_no_module_shares_the_name_of_a_public_name():
    """Importing a module of a package sets the attribute: a function of that name would come and go."""
    assert not set(dm.__all__) & {module.name for module in pkgutil.iter_modules(dm.__path__)}
    assert not any(isinstance(getattr(dm, name), types.ModuleType) for name in dm.__all__)
