"""Public names that the student has yet to write: known by an error, stood in for by a class."""

from __future__ import annotations

import ast
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from grader.course.lab_toml import Lab, find_lab, labs
from grader.course.paths import LABS, REFERENCE, student_package
from grader.course.stubs import definitions, public_names

TODO = re.compile(r"(lab\d\d) task (\d+): (.+)")
STUB = re.compile(r'raise NotImplementedError\("(lab\d\d) task (\d+): ([^"]+)"')
IMPORT = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
CALL = re.compile(r"unexpected keyword|positional argument|required keyword|takes no arguments")


@dataclass(frozen=True)
class Unwritten:
    """A name of a task that is not written yet."""

    lab: str
    task: int
    name: str

    def __str__(self) -> str:
        return f"{self.lab} task {self.task}: {self.name}"

    @property
    def path(self) -> Path | None:
        """The student's file that it belongs into; None for a helper's stub."""
        lab = find_lab(self.lab)
        for symbol in lab.task_of_symbol:
            module, _, qualname = symbol.partition(":")
            if self.name in (qualname, qualname.partition(".")[0]):
                return lab.mine / f"{module.replace('.', '/')}.py"
        return None


def unwritten(error: BaseException) -> Unwritten | None:
    """The name that the error asks for in vain: of a stub, or of a file that starts empty."""
    if isinstance(error, NotImplementedError):
        found = TODO.match(str(error))
        return Unwritten(found[1], int(found[2]), found[3]) if found else None
    wanted = _wanted(error)
    return _of_task(*wanted) if wanted else None


def _wanted(error: BaseException) -> tuple[str, str] | None:
    """Module and name of an import or a look-up that failed."""
    if isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError):
        found = IMPORT.match(str(error))  # an import in a circle has a message of its own
        return (found[2], found[1]) if found else None
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return error.obj.__name__, str(error.name)
    return None


def _of_task(module: str, name: str) -> Unwritten | None:
    """Whether a name of a module, or of a package that hands it on, is in a task of a lab."""
    package, _, rest = module.removeprefix("nanovllm.").partition(".")
    for lab in labs():
        if module.startswith("nanovllm.") and lab.package == package:
            for symbol, task in lab.task_of_symbol.items():
                home, _, qualname = symbol.partition(":")
                if name in (qualname, qualname.partition(".")[0]) and rest in ("", home):
                    return Unwritten(lab.key, task.id, name)
    return None


def stand_in(error: BaseException) -> bool:
    """Put a class that says so when used in the place of a missing name; False where none is.

    With it a file of checks, and whatever it imports, can be loaded: each check then meets only
    what it needs itself.
    """
    wanted, absent = _wanted(error), unwritten(error)
    module = sys.modules.get(wanted[0]) if wanted else None
    if absent is None or module is None or hasattr(module, absent.name):
        return False
    bases = (Exception,) if absent.name.endswith("Error") else ()
    setattr(module, absent.name, Absent(absent.name, bases, {"_absent": str(absent)}))
    return True


class Absent(type):
    """The class of names that are not written yet: to call one, or to look into it, raises."""

    _absent: str

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(cls._absent)

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotImplementedError(cls._absent)


def absent_symbols(lab: Lab) -> list[Unwritten]:
    """What of a lab's symbols is still a stub or not there at all in the student's files."""
    found = []
    for symbol, task in lab.task_of_symbol.items():
        module, _, qualname = symbol.partition(":")
        path = lab.mine / f"{module.replace('.', '/')}.py"
        try:
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
            there = {name for name, _ in definitions(text)} | {*public_names(tree.body)}
        except (OSError, ValueError, SyntaxError):
            continue  # the checks say what is wrong with it
        stubs = {name for _, _, name in STUB.findall(text)}
        if qualname in stubs or (qualname not in there and not _from_elsewhere(tree, qualname)):
            found.append(Unwritten(lab.key, task.id, qualname))
    return found


def _from_elsewhere(tree: ast.Module, qualname: str) -> bool:
    """Whether a name may come from a module of the student's, or a method from another class."""
    owner, _, method = qualname.partition(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            if {owner, "*"} & {one.asname or one.name for one in node.names}:
                return True
        elif isinstance(node, ast.ClassDef) and node.name == owner and method:
            assigned = (part for part in node.body if isinstance(part, ast.Assign))
            names = {getattr(name, "id", "") for part in assigned for name in part.targets}
            return bool(node.bases) or method in names
    return False


def lacking(error: BaseException) -> str:
    """What the checks ask of the student's class or module in vain, in one sentence, else ''."""
    frames = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    ours = [path for path in frames if path.is_relative_to(LABS) or is_students(path)]
    if not ours or not ours[-1].is_relative_to(LABS):
        return ""  # a slip inside the student's own code
    if isinstance(error, TypeError) and CALL.search(str(error)):
        return "the line above calls it as the interface in the handout has it"
    if not isinstance(error, AttributeError) or str(error.name).startswith("_"):
        return ""
    owner = error.obj
    kind = owner if isinstance(owner, type) else type(owner)
    module = owner.__name__ if isinstance(owner, ModuleType) else kind.__module__
    if not module.startswith("nanovllm."):
        return ""
    file = f"{module.replace('.', '/')}.py"
    who = "it" if isinstance(owner, ModuleType) else f"the class {kind.__name__}"
    return f"{file}: {who} has no `{error.name}`, which the interface in the handout has"


def is_students(path: Path) -> bool:
    """Whether a file is of the package that is checked, the student's or the reference."""
    return any(path.is_relative_to(home) for home in (student_package(), REFERENCE))
