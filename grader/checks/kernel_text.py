"""The Triton kernels in the text of a submission, and nothing else of it; nothing is imported.

A kernel is a function under `@triton.jit`. Beside it stand the constants that it may use. Left out
is everything else of a module, annotations (but tl.constexpr), and other decorators; and a kernel
that does what Triton's language cannot.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from functools import cache
from typing import Any

ALONE = "kernels_"  # how scenarios are called that run kernels by themselves
BUILTINS = ("range", "min", "max", "abs", "int", "float", "bool", "len", "isinstance", "print")
_SYNTAX = (
    ast.Import, ast.ImportFrom, ast.ClassDef, ast.Lambda, ast.Global, ast.Nonlocal, ast.Try,
    ast.With, ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFunctionDef, ast.Delete, ast.Raise,
    ast.GeneratorExp, ast.SetComp, ast.DictComp, ast.NamedExpr,
)  # fmt: skip
_CONSTANT = (
    ast.Expression, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Name,
    ast.Load, ast.Attribute, ast.Call, ast.Tuple, ast.IfExp, ast.Compare, ast.cmpop, ast.BoolOp,
    ast.boolop,
)  # fmt: skip
_PLAIN = {"float", "int", "min", "max", "abs", "len"}
_CALLED = _PLAIN | {"constexpr", "log", "log2", "exp", "sqrt", "cdiv", "next_power_of_2"}
_LONGEST = 200_000  # characters of a module


class NoKernel(Exception):
    """Why a kernel is left out."""


def kernels(files: Mapping[str, bytes], package: str) -> dict[str, dict[str, Any]]:
    """By module: `text`, the kernels and constants; `names`, what Triton's modules are called;
    `linked`, names from other modules of the package, with module and name; `left_out`, kernels,
    and why. A module that cannot be read has none."""
    modules = [path for path in sorted(files) if path.endswith(".py") and "/" not in path]
    return {path.removesuffix(".py"): _module(files[path], package) for path in modules}


def _module(data: bytes, package: str) -> dict[str, Any]:
    try:
        text = data.decode("utf-8")
        tree = ast.parse(text if len(text) <= _LONGEST else "")
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        tree = ast.Module([], [])
    names: dict[str, str] = {}
    linked: dict[str, list[str]] = {}
    left_out: dict[str, str] = {}
    others: dict[str, str] = {}  # names of whole modules of the package
    for name, module, attribute in _imports(tree, package):
        if module.partition(".")[0] in ("triton", "math"):
            if not attribute or attribute == "jit" or attribute in _attributes():
                names[name] = f"{module}:{attribute}"
        elif module == f"nanovllm.{package}" and attribute:
            others[name] = attribute
        elif module.startswith(f"nanovllm.{package}.") and not attribute:
            others[name] = module.rpartition(".")[2]
        elif module.startswith(f"nanovllm.{package}."):
            linked[name] = [module.rpartition(".")[2], attribute]
    constants: list[ast.Assign] = []
    known = set(names)
    for node in tree.body:
        if (kept := _constant(node, known)) is not None:
            constants.append(kept)
            known |= {target.id for target in kept.targets if isinstance(target, ast.Name)}
    jitted = [node for node in tree.body if isinstance(node, ast.FunctionDef)
              and any(_is_jit(d, names) for d in node.decorator_list)]  # fmt: skip
    defaults = frozenset(known)
    shortened = [_OfModules(others, linked).visit(node) for node in jitted]
    known |= {node.name for node in jitted} | linked.keys()
    body: list[ast.stmt] = [*constants]
    for node in shortened:
        try:
            body.append(_kernel(node, known, defaults))
        except NoKernel as why:
            left_out[node.name] = str(why)
    made = ast.unparse(ast.fix_missing_locations(ast.Module(body, []))) + "\n"
    return {"text": made, "names": names, "linked": linked, "left_out": left_out}


class _OfModules(ast.NodeTransformer):
    """`module.name` becomes one name, which is linked, for modules of the package."""

    def __init__(self, modules: Mapping[str, str], linked: dict[str, list[str]]) -> None:
        self.modules, self.linked = modules, linked

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id in self.modules:
            name = f"{node.attr}_of_{node.value.id}"
            self.linked[name] = [self.modules[node.value.id], node.attr]
            return ast.copy_location(ast.Name(name, node.ctx), node)
        self.generic_visit(node)
        return node


def _imports(tree: ast.Module, package: str) -> Iterator[tuple[str, str, str]]:
    """Name here, module, and name there ("" for the module itself)."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for one in node.names:
                module = one.name if one.asname else one.name.partition(".")[0]
                yield one.asname or module, module, ""
        elif isinstance(node, ast.ImportFrom) and node.level < 2:
            home = [f"nanovllm.{package}"] * node.level
            module = ".".join([*home, *([node.module] if node.module else [])])
            for one in node.names:
                yield one.asname or one.name, module, one.name


def _constant(node: ast.stmt, known: Set[str]) -> ast.Assign | None:
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        node = ast.Assign([node.target], node.value)
    if isinstance(node, ast.Assign) and all(isinstance(t, ast.Name) for t in node.targets):
        return node if _is_constant(node.value, known) else None
    return None


def _is_jit(decorator: ast.expr, names: Mapping[str, str]) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return _meant(called, names) in ("triton:jit", "triton.jit:")


def _meant(node: ast.expr, names: Mapping[str, str]) -> str:
    """What a name, or a module's attribute, stands for: `module:attribute`."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        module, _, attribute = names.get(node.value.id, "").partition(":")
        return f"{module}:{node.attr}" if module and not attribute else f"{attribute}:{node.attr}"
    return ""


def _is_constant(value: ast.expr, known: Set[str]) -> bool:
    for node in ast.walk(value):
        if not isinstance(node, _CONSTANT) or getattr(node, "attr", "").startswith("_"):
            return False
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else (
                node.func.id if isinstance(node.func, ast.Name) else ""
            )  # fmt: skip
            if called not in _CALLED or node.keywords:
                return False
        if isinstance(node, ast.Name) and node.id not in known | _PLAIN:
            return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
            sides = [getattr(side, "value", None) for side in (node.left, node.right)]
            if not all(isinstance(n, int | float) and abs(n) <= 64 for n in sides):
                return False
    return True


def _kernel(node: ast.FunctionDef, known: Set[str], constants: Set[str]) -> ast.FunctionDef:
    """The function as it may run. NoKernel where it may not."""
    _knows_all(node, known)
    for inner in (part for statement in node.body for part in ast.walk(statement)):
        word = getattr(inner, "attr", None) or (inner.id if isinstance(inner, ast.Name) else "")
        nested = isinstance(inner, ast.FunctionDef)
        unknown = isinstance(inner, ast.Attribute) and inner.attr not in _attributes()
        if nested or isinstance(inner, _SYNTAX) or unknown or word.startswith("__"):
            what = f"`{word}`" if word else type(inner).__name__
            raise NoKernel(f"line {getattr(inner, 'lineno', 0)}: {what} is not Triton's")
    arguments = node.args
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        constant = one.annotation is not None and ast.unparse(one.annotation).endswith("constexpr")
        one.annotation = ast.Name("constexpr", ast.Load()) if constant else None
    for defaults in (arguments.defaults, arguments.kw_defaults):
        if any(d is not None and not _is_constant(d, constants) for d in defaults):
            raise NoKernel("it has a default that is no constant")
    node.returns = None
    node.decorator_list = [ast.parse("_jit", mode="eval").body]
    return node


def _knows_all(kernel: ast.FunctionDef, known: Set[str]) -> None:
    """NoKernel for a name that is none of the kernel's own: the interpreter has many beside."""
    arguments = kernel.args
    own = {one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    inner = [part for statement in kernel.body for part in ast.walk(statement)]
    names = [part for part in inner if isinstance(part, ast.Name)]
    own |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    for name in names:
        if name.id not in own | known | set(BUILTINS):
            raise NoKernel(f"line {name.lineno}: `{name.id}` is not Triton's")


@cache
def _attributes() -> frozenset[str]:
    """What may stand behind a dot in a kernel: Triton's public names, and its tensors' own."""
    import triton.language as tl

    found = {"language", "value", "element_ty", "dtype", "shape", "type", "T"}
    for owner in (tl, tl.math, tl.tensor, tl.dtype, tl.pointer_type, tl.block_type):
        found |= {name for name in dir(owner) if not name.startswith("_")}
    return frozenset(found - {"handle", "core", "semantic", "standard", "random", "extra"})
