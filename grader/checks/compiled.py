"""A lab's Triton kernels compiled for GPUs that need not be here; they are not run.

Triton decides when a kernel is defined whether to interpret or to compile it. So this happens in a
fork, in which every interpreted kernel of the package is made one to be compiled.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from importlib import import_module, reload
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from grader.checks.expect import expect
from grader.checks.kernel_text import kernels

Call = Callable[[Any, bool], object]  # of a dtype, and whether sizes are odd
SECONDS = 120  # after which a fork is ended
SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024}  # bytes that one program may have
CARDS = {80: "A100", 90: "H100"}
REGISTERS, SPILLS = re.compile(r"Used (\d+) registers"), re.compile(r"(\d+) bytes spill stores")
ACCESS = re.compile(r"\b(ld|st)\.global(?:\.(?!v\d|b\d)\w+(?:::\w+)*)*(?:\.v(\d))?\.b(\d+)")
COPY = re.compile(r"cp\.async\.c[ag]\.shared\.global[^,]*,[^,]*, 0x([0-9a-f]+)")  # 3.6 and 3.7


@dataclass(frozen=True)
class Compiled:
    """What the compiler says of one kernel; with `refused`, why it does not take it."""

    kernel: str
    capability: int  # 80: A100; 90: H100
    dtype: str
    refused: str = ""
    warps: int = 0
    stages: int = 0
    registers: int = 0  # of each thread, 255 at most
    spills: int = 0  # bytes of each thread that found no register
    shared: int = 0  # bytes of each program
    load: int = 0  # bytes that a thread's widest load brings, 16 at most; 0: loads nothing
    store: int = 0
    file: str = ""  # where it is written


AS_ASKED = (90, "bfloat16", False), (80, "float32", True)  # capability, dtype, odd sizes


def compiled(
    call: Call, targets: Sequence[tuple[int, str, bool]], quick: bool = False
) -> list[Compiled]:
    """What the compiler says of the kernels that `call(dtype, odd)` launches, in their order.

    Tensors are on the CPU, and no kernel runs, so that results are what the memory held. With
    `quick` the code is not optimised: registers and spills are then not those of a real launch.
    """
    for module in ("triton.compiler", "triton.experimental.gluon"):  # once, not in every fork
        import_module(module)
    answer = _in_a_fork(lambda: _compile(call, targets, quick))
    if "todo" in answer:
        raise NotImplementedError(answer["todo"])
    return [Compiled(**one) for one in answer["kernels"]]


def takes(call: Call, names: str) -> None:
    """End the check if the compiler refuses a kernel that `call(dtype, odd)` launches.

    With a model's sizes in bfloat16 for an H100, and with odd sizes in float32 for an A100.
    """
    __tracebackhide__ = True
    found = compiled(call, AS_ASKED, quick=True)
    for one in found:
        expect.that(
            not one.refused,
            f"the compiler takes {one.kernel} for an {CARDS[one.capability]}, in {one.dtype}",
            observed=one.refused,
            call=f"Triton's compiler on the kernels of {names}",
            cause=f"the compiler says: {one.refused}",
        )
        left_out = _left_out(Path(one.file))
        expect.that(
            not left_out,
            f"{one.kernel} can be taken from the text of its file",
            observed=left_out,
            call=f"the text of the kernels of {names}",
            cause=f"kernels run by themselves when your work is graded: {left_out}",
        )
    expect.that(
        found,
        f"{names} launch kernels",
        observed=len(found),
        call=f"kernels that {names} start with `launch`",
        cause="the compiler sees what is started with `launch` of runtime.py",
    )


def _left_out(file: Path) -> str:
    """Which kernels of a file, and of those that it imports from, cannot be taken, and why."""
    texts = {path.name: path.read_bytes() for path in file.parent.glob("*.py")}
    modules = kernels(texts, file.parent.name)
    near = dict.fromkeys([file.stem, *(name for name, _ in modules[file.stem]["linked"].values())])
    found = {kernel: why for name in near for kernel, why in modules[name]["left_out"].items()}
    return "; ".join(f"{kernel}: {why}" for kernel, why in found.items())


class AbsentGpu:
    """Triton's driver of a GPU that is asked for nothing but what it is."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)


def _compile(call: Call, targets: Sequence[tuple[int, str, bool]], quick: bool) -> dict[str, Any]:
    import torch
    from triton import knobs
    from triton.runtime import cache
    from triton.runtime.driver import driver

    torch.set_num_threads(1)  # OpenMP's other threads are not in a fork
    knobs.nvidia.dump_ptxas_log = knobs.compilation.disable_line_info = True
    if quick:
        os.environ["DISABLE_LLVM_OPT"], knobs.nvidia.disable_ptxas_opt = "1", True
    cache.triton_key = lambda: ""  # half a second, for the name of a folder that does not stay
    found: list[Compiled] = []
    known: dict[str, Compiled] = {}  # what is compiled already is not assembled, so not logged
    at = (0, "")

    def launch(kernel: Any, grid: Any, *args: Any, **constants: Any) -> None:
        log = io.StringIO()
        try:
            with redirect_stdout(log):
                made = kernel.warmup(*args, grid=grid, **constants)
        except Exception as error:
            why = re.sub(r" at 0x[0-9a-f]+", "", _why(error))  # a function is called by its name
            read = Compiled(_name(kernel), *at, refused=why)
        else:
            new = known.get(made.hash) or _read(made, _name(kernel), *at, log.getvalue())
            read = known.setdefault(made.hash, new)
        found.append(replace(read, file=kernel.fn.__code__.co_filename))

    _to_be_compiled(launch)
    with TemporaryDirectory() as folder:
        knobs.cache.dir = folder
        for capability, dtype, odd in targets:
            at = capability, dtype
            driver.set_active(AbsentGpu(capability))  # pyright: ignore[reportArgumentType]
            try:
                call(getattr(torch, dtype), odd)
            except NotImplementedError as error:
                return {"todo": str(error)}
    return {"kernels": [asdict(one) for one in found]}


def _name(kernel: Any) -> str:
    return getattr(kernel, "__name__", type(kernel).__name__)


def _to_be_compiled(launch: Callable[..., None]) -> None:
    """Make every interpreted kernel of the package one to be compiled, started by `launch`."""
    import triton.language as tl
    from triton import JITFunction, knobs
    from triton.runtime.interpreter import InterpretedFunction

    from nanovllm.kernels import runtime

    knobs.runtime.interpret = False
    for module in (tl.standard, tl.random, tl):  # Triton's own `tl.sum` and the like, too
        reload(module)
    new: dict[int, Any] = {id(runtime.launch): launch}
    packages = [module for name, module in sys.modules.items() if name.startswith("nanovllm.")]
    for module in packages:
        for name, value in list(vars(module).items()):
            if isinstance(value, InterpretedFunction) and id(value) not in new:
                new[id(value)] = JITFunction(value.fn, **value.kwargs)
            if id(value) in new:
                setattr(module, name, new[id(value)])


def _read(made: Any, name: str, capability: int, dtype: str, log: str) -> Compiled:
    """What the assembler logged, and what the widest accesses of its input bring."""
    widths = {"ld": [0], "st": [0]}
    for kind, vector, bits in ACCESS.findall(made.asm["ptx"]):
        widths[kind].append(int(vector or 1) * int(bits) // 8)
    widths["ld"] += [int(size, 16) for size in COPY.findall(made.asm["ptx"])]
    shared, most = made.metadata.shared, SHARED_MEMORY[capability]
    return Compiled(
        name,
        capability,
        dtype,
        f"it needs {shared:,} bytes of shared memory; there are {most:,}" if shared > most else "",
        made.metadata.num_warps,
        made.metadata.num_stages,
        max(map(int, REGISTERS.findall(log)), default=0),
        max(map(int, SPILLS.findall(log)), default=0),
        shared,
        max(widths["ld"]),
        max(widths["st"]),
    )


def _why(error: BaseException) -> str:
    """The compiler's own words, and the line that they are about."""
    from triton.compiler.errors import CompilationError

    inner: BaseException | None = error
    while inner is not None:  # a helper's error comes inside those of all who call it
        if isinstance(inner, CompilationError):
            error = inner
        inner = inner.__cause__ or inner.__context__
    if not isinstance(error, CompilationError):
        return f"{type(error).__name__}: {error}".splitlines()[0]
    words = str(error.__cause__ or error.error_message or "it does not say why").splitlines()[0]
    line = str(error.src).splitlines()[error.node.lineno - 1].strip() if error.src else ""  # pyright: ignore[reportAttributeAccessIssue]
    return f"{words} (in `{line}`)" if line else words


def _in_a_fork(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `work` gives, as JSON carries it; this process stays as it was."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(SECONDS)
            os.close(reading)
            os.write(writing, json.dumps(work()).encode())
            os._exit(0)
        except BaseException as error:
            os.write(writing, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    status = os.waitpid(child, 0)[1]
    if not told:
        raise RuntimeError(f"the compiler ended with status {status} and without a word")
    answer = json.loads(told)
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer
