"""Single definitions inside a Python file: found by their place in the syntax tree, replaced."""

from __future__ import annotations

import ast
from dataclasses import dataclass

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class SurgeryError(Exception):
    """A file in which the definition cannot be found or replaced; the message says why."""


@dataclass(frozen=True)
class Span:
    """Lines `first` to `last` of a file, counted from 1, both included."""

    first: int
    last: int


def source_of(text: str, qualname: str) -> str | None:
    """The lines of a definition, decorators included, or None where there is none of that name."""
    node = _find(_parse(text), qualname)
    lines = _lines(text)
    return None if node is None else "".join(lines[_part(_span(node, lines))])


def replaced(text: str, qualname: str, pristine: str) -> str:
    """The text with one definition as it is in `pristine`; added where the text lacks it.

    >>> replaced("x = 1\\ndef f():\\n    return x\\n", "f", "def f():\\n    raise E\\n")
    'x = 1\\ndef f():\\n    raise E\\n'
    """
    fresh = source_of(pristine, qualname)
    if fresh is None:
        raise SurgeryError(f"the stub has no {qualname}")
    marked = "\ufeff" if text.startswith("\ufeff") else ""
    body = text.removeprefix("\ufeff")
    if "\r\n" in body:
        fresh = fresh.replace("\r\n", "\n").replace("\n", "\r\n")
    tree, lines = _parse(body), _lines(body)
    node = _find(tree, qualname)
    if node is not None:
        lines[_part(_span(node, lines))] = [fresh]
    else:
        _insert(tree, lines, qualname, fresh, pristine)
    return marked + "".join(lines)


def _insert(tree: ast.Module, lines: list[str], qualname: str, fresh: str, pristine: str) -> None:
    """Put a definition that the student deleted at the end of its class, else of the file."""
    owner = qualname.rpartition(".")[0]
    end = "\r\n" if lines and lines[-1].endswith("\r\n") else "\n"
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += end
    if not owner:
        lines.append(end * 2 + fresh)
        return
    node = _find(tree, owner)
    if node is None:
        raise SurgeryError(f"the class {owner} is not in it any more")
    stub_class = _find(_parse(pristine), owner)
    stub_method = _find(_parse(pristine), qualname)
    fits = stub_method is not None and node.body[0].col_offset == stub_method.col_offset
    if stub_class is None or not fits:
        raise SurgeryError(f"the class {owner} is indented otherwise than in the stub")
    lines.insert(_span(node, lines).last, end + fresh)


def _parse(text: str) -> ast.Module:
    try:
        return ast.parse(text.removeprefix("\ufeff"))
    except SyntaxError as error:
        raise SurgeryError(f"line {error.lineno} is not valid Python ({error.msg})") from None
    except ValueError as error:
        raise SurgeryError(str(error)) from None


def _find(tree: ast.Module, qualname: str) -> Definition | None:
    """The definition of that name; of several the last, which is the one Python uses."""
    scope: ast.Module | Definition = tree
    found = None
    for name in qualname.split("."):
        named = [
            node
            for node in _statements(scope)
            if isinstance(node, Definition) and node.name == name
        ]
        if not named:
            return None
        scope = found = named[-1]
    return found


def _statements(scope: ast.AST) -> list[ast.stmt]:
    """The statements of a scope, those under `if` and `try` included."""
    found = []
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.stmt):
            found.append(node)
            if isinstance(node, ast.If | ast.Try | ast.With):
                found += _statements(node)
    return found


def _span(node: Definition, lines: list[str]) -> Span:
    """From the first decorator to the last line, comments at the end of the body included."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    last = node.end_lineno or node.lineno
    for number, line in enumerate(lines[last:], start=last + 1):
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith("#") and indent > node.col_offset:
            last = number
        elif line.strip():
            break
    return Span(first, last)


def _part(span: Span) -> slice:
    return slice(span.first - 1, span.last)


def _lines(text: str) -> list[str]:
    """Lines as the syntax tree counts them: a form feed or U+2028 ends none, unlike splitlines."""
    lines = text.removeprefix("\ufeff").split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
