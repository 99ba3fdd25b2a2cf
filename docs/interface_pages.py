"""The interface of the reference engine as Markdown: signatures and docstrings, no bodies."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from grader.course.lab_toml import labs
from grader.course.paths import REFERENCE

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def interface_pages() -> dict[str, str]:
    """One page for each subpackage, one section for each module that has something public."""
    pages = {}
    titles = {lab.package: f"Lab {lab.number:02d}: nanovllm.{lab.package}" for lab in labs()}
    for folder in sorted(path.parent for path in REFERENCE.glob("*/__init__.py")):
        lines = [f"# {titles.get(folder.name, f'nanovllm.{folder.name}')}"]
        for path in sorted(folder.rglob("*.py")):
            lines += _module(path)
        pages[f"api/{folder.name}.md"] = "\n".join(lines) + "\n"
    names = [*(lab.package for lab in labs()), *sorted(p.name for p in REFERENCE.iterdir())]
    order = [name for name in dict.fromkeys(names) if f"api/{name}.md" in pages]
    contents = ["# Interface", "", "Signatures and docstrings of the reference engine.", ""]
    contents += ["```{toctree}", *order, "```"]
    return {"api/index.md": "\n".join(contents) + "\n", **pages}


def _module(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = list(_public(tree))
    text = ast.get_docstring(tree)
    if not text and not found:
        return
    name = ".".join(path.relative_to(REFERENCE).with_suffix("").parts)
    yield from ("", f"## nanovllm.{name.removesuffix('.__init__')}", "", _markdown(text or ""))
    for node in found:
        yield from ("", f"### {node.name}", "", *_described(node))
        if isinstance(node, ast.ClassDef):
            for method in _public(node):
                yield from ("", f"#### {node.name}.{method.name}", "", *_described(method))


def _public(node: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for part in node.body:
        if isinstance(part, kinds) and not part.name.startswith("_") and ast.get_docstring(part):
            yield part


def _described(node: Definition) -> Iterator[str]:
    yield from ("```python", _signature(node), "```", "", _markdown(ast.get_docstring(node)))


def _signature(node: Definition) -> str:
    """As it stands in the source, without the body; of a class, its fields and its constructor."""
    if not isinstance(node, ast.ClassDef):
        return _head(node)
    fields = [ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign)]
    made = [_head(part) for part in node.body if getattr(part, "name", "") == "__init__"]
    bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
    return "\n    ".join([f"class {node.name}{bases}:", *fields, *made]).removesuffix(":")


def _head(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = ast.unparse(node.args)
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    one = f"{word} {node.name}({arguments}){result}"
    if len(one) <= 88:
        return one
    return f"{word} {node.name}(\n    {_broken(arguments)},\n){result}"


def _broken(arguments: str) -> str:
    """One argument a line; a comma inside brackets or quotes ends none."""
    return re.sub(r", (?=[*\w]+(?::|=|,|$))", ",\n    ", arguments)


def _markdown(text: str) -> str:
    """A docstring: its examples become code, and what looks like HTML is text."""
    out, inside = [], False
    for line in text.splitlines():
        example = line.lstrip().startswith(">>>") or (inside and line.strip() != "")
        if example != inside:
            out += ["", "```pycon"] if example else ["```", ""]
            inside = example
        out.append(line.strip() if inside else re.sub(r"[<$]", r"\\\g<0>", line.strip()))
    return "\n".join([*out, *(["```"] if inside else [])])
