"""The meaning of fields, from their source: comments at their definitions, or a section of a docstring.

The documentation site and ``depthmup config`` show them.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from collections import Counter
from collections.abc import Iterator
from typing import Any

Span = tuple[str, int, int]  # a dotted field, the first and the last line of its definition


def of_class(cls: type) -> dict[str, str]:
    """Field -> comment for the fields in a class's body: the comment lines above a field and beside it."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
        (definition,) = ast.parse(source).body
    except (OSError, TypeError, SyntaxError):
        return {}
    assert isinstance(definition, ast.ClassDef)
    return _comments(source, _in_body(definition))


def of_user(obj: Any) -> dict[str, str]:
    """Field -> explanation for a user's class or function: its docstring's, else comments at fields or parameters."""
    obj = getattr(obj, "func", obj)  # of a partial call
    made = obj.__init__ if inspect.isclass(obj) else obj
    texts = _of_parameters(made) | (of_class(obj) if inspect.isclass(obj) else {})
    for one in dict.fromkeys((obj, made)):
        for section in ("Args", "Attributes"):
            texts |= of_docstring(getattr(one, "__doc__", None) or "", section)
    return texts


def _of_parameters(function: Any) -> dict[str, str]:
    """Parameter -> comment, for those that have a line of their own."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
        (definition,) = ast.parse(source).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    if not isinstance(definition, ast.FunctionDef):
        return {}
    arguments = [*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs]
    lines = Counter(argument.lineno for argument in arguments)
    spans = ((one.arg, one.lineno, one.end_lineno or one.lineno) for one in arguments if lines[one.lineno] == 1)
    return _comments(source, spans)


def of_code(source: str) -> dict[str, str]:
    """Dotted field -> comment for the keys of dictionaries and the keyword arguments of calls in Python code."""
    source = textwrap.dedent(source)
    return _comments(source, _in_expression(ast.parse(source), ""))


def of_docstring(docstring: str, section: str) -> dict[str, str]:
    """Field -> explanation in the section ``Attributes`` or ``Args`` of a docstring in Google's style."""
    match = re.search(rf"^{section}:\n((?:  .*\n|\n)*)", inspect.cleandoc(docstring) + "\n", re.MULTILINE)
    entries = re.findall(r"^(\S.*?): (.*(?:\n  .*)*)", textwrap.dedent(match[1]), re.MULTILINE) if match else []
    return {name: " ".join(text.split()) for names, text in entries for name in names.split(", ")}


def _in_body(definition: ast.ClassDef) -> Iterator[Span]:
    for statement in definition.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, statement.lineno, statement.end_lineno or statement.lineno


def _in_expression(node: ast.AST, prefix: str) -> Iterator[Span]:
    """The fields of dictionaries and calls; those inside the value of a field have its name as prefix."""
    names: dict[ast.AST, str] = {}  # of values
    for name, first, value in _fields(node):
        names[value] = f"{prefix}{name}."
        # Fields inside a dictionary have their own comments.
        last = first if isinstance(value, ast.Dict) else value.end_lineno or first
        yield f"{prefix}{name}", first, last
    for child in ast.iter_child_nodes(node):
        inner = child.value if isinstance(child, ast.keyword) else child
        yield from _in_expression(inner, names.get(inner, prefix))


def _fields(node: ast.AST) -> Iterator[tuple[str, int, ast.expr]]:
    """Name, line and value of the keys of a dictionary, or of the keyword arguments of a call."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, key.lineno, value
    elif isinstance(node, ast.Call):
        for word in node.keywords:
            if word.arg is not None:
                yield word.arg, word.lineno, word.value


def _comments(source: str, spans: Iterator[Span]) -> dict[str, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token for token in tokens if token.type == tokenize.COMMENT}
    alone = {line for line, token in comments.items() if token.line.lstrip().startswith("#")}
    found: dict[str, str] = {}
    for name, first, last in spans:
        above = first
        while above - 1 in alone:
            above -= 1
        words = [comments[line].string.lstrip("#").strip() for line in range(above, last + 1) if line in comments]
        if words:
            found.setdefault(name, " ".join(words))
    return found
