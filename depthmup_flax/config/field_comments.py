"""The meaning of fields, from their source: comments at their definitions, or a section of a docstring.

The documentation site and ``depthmup config`` show them.
"""

from __future__ import annotations

import ast
import inspect
import pathlib
import re
import textwrap
from typing import Any

# A key of a dictionary, a keyword argument, or a field of a class, and what follows it.
_FIELD = re.compile(r'( *)(?:"(\w+)": |(\w+)=(?!=)|(\w+): )(.*)')


def of_code(source: str) -> dict[str, str]:
    """Dotted field -> comment for keys, keyword arguments and fields of classes: the lines above one and beside it."""
    found: dict[str, str] = {}
    inside: list[tuple[int, str]] = []  # indent and name of the fields around the line
    above: list[str] = []
    for line in textwrap.dedent(source).splitlines():
        if line.lstrip().startswith("#"):
            above.append(line.strip(" #"))
            continue
        if match := _FIELD.match(line):
            indent, name = len(match[1]), match[2] or match[3] or match[4]
            inside = [one for one in inside if one[0] < indent] + [(indent, name)]
            beside = match[5].rpartition("  # ")
            words = [*above, beside[2]] if beside[1] else above
            if words:
                found.setdefault(".".join(one for _, one in inside), " ".join(words))
        above = []
    return found


def of_class(cls: type) -> dict[str, str]:
    """Field -> comment for the fields in a class's body."""
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):
        return {}
    return {name: text for name, text in of_code(source).items() if "." not in name}


def of_user(obj: Any) -> dict[str, str]:
    """Field -> explanation for a user's class or function: its docstring's, else comments at fields of the class."""
    obj = getattr(obj, "func", obj)  # of a partial call
    texts = of_class(obj) if inspect.isclass(obj) else {}
    for one in (obj, obj.__init__) if inspect.isclass(obj) else (obj,):
        for section in ("Args", "Attributes"):
            texts |= of_docstring(one, section)
    return texts


def docstring(obj: Any) -> str:
    """The docstring of a module, class or function, also under ``python -OO``, which drops it."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(obj)))
    except (OSError, TypeError, SyntaxError):  # of a notebook, of C
        return inspect.getdoc(obj) or ""
    node: Any = tree if inspect.ismodule(obj) else tree.body[0]
    return ast.get_docstring(node) or ""


def summary_of_file(path: str | pathlib.Path) -> str:
    """The first line of the docstring of a Python file, which is not run."""
    text = pathlib.Path(path).read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def of_docstring(obj: Any, section: str) -> dict[str, str]:
    """Field -> explanation in the section ``Attributes`` or ``Args`` of a docstring in Google's style."""
    match = re.search(rf"^{section}:\n((?:  .*\n|\n)*)", docstring(obj) + "\n", re.MULTILINE)
    entries = re.findall(r"^(\S.*?): (.*(?:\n  .*)*)", textwrap.dedent(match[1]), re.MULTILINE) if match else []
    return {name: " ".join(text.split()) for names, text in entries for name in names.split(", ")}
