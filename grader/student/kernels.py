"""`lab kernels`: what a GPU's compiler says of a lab's Triton kernels, on a machine without one."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from grader.checks.compiled import CARDS, Call, compiled
from grader.checks.unwritten import unwritten
from grader.course.errors import LabError
from grader.course.hardware import obstacle
from grader.course.lab_toml import Lab
from grader.student_files.lab_folder import require_started

COLUMNS = ("kernel", "GPU", "dtype", "registers", "spilled", "shared", "load", "store", "warps")
LEGEND = (
    "registers of a thread (255 at most) and bytes that spilled from them to memory; shared memory "
    "of a program in bytes; bytes of a thread's widest load and store (16 at most)"
)
TARGETS = (90, "bfloat16", False), (90, "float32", False), (80, "float32", False)


def show(lab: Lab, task: int | None, console: Console) -> bool:
    """Print the table, of one task or of all; whether every kernel was taken."""
    if why := obstacle(lab):
        raise LabError(why)
    from grader.checks.kernel_calls import CALLS

    calls = {
        number: call for number, call in CALLS.get(lab.key, {}).items() if task in (None, number)
    }
    if not calls:
        where = " and ".join(CALLS)
        raise LabError(f"{lab.key} asks for no Triton kernel there; those of {where} do.")
    if not lab.reference.is_dir():
        require_started(lab)
    table, problems = Table(caption=LEGEND, caption_justify="left"), []
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in COLUMNS[:3] else "right")
    for number, call in calls.items():
        with console.status(f"compiling task {number}"):
            problems += list(_rows(number, call, table))
    console.print(table)
    for problem in problems:
        console.print(problem, highlight=False, markup=False, soft_wrap=True)
    return not problems


def _rows(task: int, call: Call, table: Table) -> Iterator[str]:
    """Add a task's rows to the table; what was refused, in words."""
    table.add_section()
    try:
        found = compiled(call, TARGETS)
    except Exception as error:
        absent = unwritten(error)
        if absent is None and type(error) is not RuntimeError:  # that is what a fork ended with
            raise
        yield f"{absent} is not written yet." if absent else f"task {task} is not compiled: {error}"
        return
    for one in found:
        numbers = one.registers, one.spills, one.shared, one.load, one.store, one.warps
        cells = [f"{number:,}" for number in numbers] if not one.refused else ["refused"]
        table.add_row(one.kernel, CARDS[one.capability], one.dtype, *cells)
        if one.refused:
            yield f"{one.kernel}, {CARDS[one.capability]}, {one.dtype}: {one.refused}"
