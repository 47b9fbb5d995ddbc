"""References to names: of the package to where the site documents them, of other projects to their documentation.

A type hint names a class by the module that defines it, and a docstring by its short name. The site documents a public
name once, under the path that users import it from. ``references.toml`` has the names of other projects: a build needs
no network. Names of the package that the site does not document become code; unknown names of others are warnings.
"""

from __future__ import annotations

import pathlib
import re
import tomllib
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from depthmup_flax.rule.parametrization import PRESETS

PACKAGE = "depthmup_flax"
# Fields that Linen adds to every module.
_LINEN_FIELDS = re.compile(r", parent: .*?, name: [^,)]*(?: = None)?(?=\))")
# Values whose representation is no code: Sphinx would not read the signature, and show all types with their modules.
_CLASS, _OTHER_VALUE = re.compile(r"<class '(?:\w+\.)*(\w+)'>"), re.compile(r"<factory>|<function .*?>>?(?=[,)])")


def addresses(path: pathlib.Path) -> dict[str, str]:
    """Name -> address, from a TOML file of projects: each has ``url``, and ``pages``: page -> the names on it.

    ``{}`` in a page stands for the name. ``"PRIVATE = NAME"`` also gives a name the path that type hints have.
    """
    found = {}
    for project in tomllib.loads(path.read_text()).values():
        for page, names in project["pages"].items():
            for entry in names:
                private, _, name = entry.rpartition(" = ")
                address = f"{project['url']}{page.format(name)}#{name}"
                found |= dict.fromkeys(filter(None, (private, name)), address)
    return found


def documented_name(target: str, names: list[str]) -> str | None:
    """The documented name of a name of the package: a path through any of its modules, or the end of a path."""
    last = target.rpartition(".")[2]
    same = [name for name in names if name.rpartition(".")[2] == last]
    ending = [name for name in same if name.endswith(f".{target}")]
    # The shortest is a module's own name, not a method of the same name.
    return min(ending or (same if target.startswith(PACKAGE) else []), key=lambda n: (n.count("."), n), default=None)


def _on_missing(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.Element) -> nodes.Element | None:
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].removeprefix("dm.")
    objects = env.domains.python_domain.objects
    found = documented_name(target, [name for name in objects if name.startswith(f"{PACKAGE}.")])
    if found:
        address = app.builder.get_relative_uri(node["refdoc"], objects[found].docname) + f"#{objects[found].node_id}"
        return nodes.reference("", "", text, internal=True, reftitle=found, refuri=address)
    if target in env.other_projects:
        return nodes.reference("", "", text, internal=False, reftitle=target, refuri=env.other_projects[target])
    # Inner names, words in backquotes, and pieces of a quoted type.
    return text if target.startswith(PACKAGE) or node["reftype"] == "obj" or "[" in target else None


def _on_start(app: Sphinx) -> None:
    app.env.other_projects = addresses(pathlib.Path(app.srcdir) / "references.toml")


def short_signature(arguments: str) -> str:
    """A class's arguments without Linen's own, with short values: a preset's name, not its fields."""
    text = _OTHER_VALUE.sub("...", _CLASS.sub(r"\1", _LINEN_FIELDS.sub("", arguments)))
    for name, preset in PRESETS.items():
        text = text.replace(repr(preset), name)
    return text


def _on_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, arguments: str | None, result: str | None
) -> tuple[str | None, str | None]:
    return (short_signature(arguments) if what == "class" and arguments else arguments), result


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.connect("builder-inited", _on_start)
    app.connect("missing-reference", _on_missing)
    app.connect("autodoc-process-signature", _on_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
