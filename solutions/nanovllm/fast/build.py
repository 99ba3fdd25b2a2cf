"""Compiles the native step once for this machine, and keeps it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from filelock import FileLock

from nanovllm.fast.availability import FastPathError, find_compiler

SOURCES = Path(__file__).parent / "native"
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=fast")
OPENMP = ("-fopenmp",)  # without it, one thread
ISA = "NANOVLLM_MAX_CPU_ISA"  # asks for less than the processor has, to test what others get
_BF16 = ["-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"]
_ISAS = {  # of x86: what is asked of the compiler, and the processor's flag that it needs
    "sse2": (["-march=x86-64"], "sse2"),
    "avx2": (["-march=x86-64-v3"], "avx2"),
    "avx512": (["-march=x86-64-v4"], "avx512f"),
    "avx512_bf16": (_BF16, "avx512_bf16"),
    "amx": ([*_BF16, "-mamx-tile", "-mamx-bf16"], "amx_bf16"),
}
_NO_TILES = ["-mno-amx-tile", "-mno-amx-bf16", "-mno-amx-int8"]
Say = Callable[[str], None]
_compiling = threading.Lock()
_failed: set[Path] = set()  # what this process could not build, with OpenMP


def say(message: str) -> None:
    """Tell the user, on standard error."""
    print(f"nanovllm: {message}", file=sys.stderr, flush=True)


def load_library(
    dtype: torch.dtype, notify: Say = say, *, defines: tuple[str, ...] = ()
) -> ctypes.CDLL:
    """The native step for float32 or bfloat16 weights; compiled now if it never was.

    Raises:
        FastPathError: no compiler, it failed (with what it said), or nowhere to put the result.
    """
    compiler = find_compiler()
    if compiler is None:
        raise FastPathError("there is no C++ compiler")
    stored = ["-DNV_BFLOAT16"] if dtype == torch.bfloat16 else []
    flags = (*FLAGS, *instructions(), *stored, *defines)
    try:
        with _compiling:  # a target and its draft want the same
            path = _made(compiler, flags, notify)
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise FastPathError(f"the compiled step cannot be stored or loaded: {error}") from error
    library.nv_open.restype = ctypes.c_void_p
    library.nv_close.argtypes = [ctypes.c_void_p]
    library.nv_step.argtypes = [ctypes.c_void_p] * 3
    library.nv_guess.argtypes = [*[ctypes.c_void_p] * 4, ctypes.c_int32, ctypes.c_void_p]
    return library


def instructions() -> list[str]:
    """The compiler's options for this processor, or for less where NANOVLLM_MAX_CPU_ISA says so.

    Raises FastPathError for a name that is not known.
    """
    wanted = os.environ.get(ISA, "")
    if wanted and wanted not in _ISAS:
        raise FastPathError(f"{ISA} is {wanted!r}; it can be {', '.join(_ISAS)}, or not set")
    options, flag = _ISAS.get(wanted, ([], None))
    has = _processor().split()
    refused = "amx_bf16" in has and not _tiles_allowed()
    if flag in has and not (refused and flag == "amx_bf16"):
        return options
    return ["-march=native", *(_NO_TILES if refused else ())]  # it has less than what is wanted


def _tiles_allowed() -> bool:
    """Whether Linux gives this process matrix tiles; a process has them only if it asked."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0


def library_path(compiler: str, flags: tuple[str, ...]) -> Path:
    """Where the library is kept: a name for each source, compiler, flags and processor.

    Raises FastPathError where there is no home folder.
    """
    digest = hashlib.sha256(repr((compiler, flags, _processor())).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        why = "there is no home folder to keep it in; set HOME or XDG_CACHE_HOME"
        raise FastPathError(why) from error
    return Path(home) / "nanovllm" / f"step-{digest.hexdigest()[:16]}.so"


def _made(compiler: str, flags: tuple[str, ...], notify: Say) -> Path:
    """The library, compiled now if it never was.

    One without OpenMP has another name: the next process tries again, for OpenMP may be there then.
    """
    path, alone = (library_path(compiler, (*flags, *more)) for more in (OPENMP, ()))
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):  # two servers want the same
        if not (path.exists() or alone.exists()):
            once = "once for this machine"
            notify(f"compiling the fast CPU step ({once}); the plain one runs meanwhile")
        started, why = time.perf_counter(), ""
        for place, more in ((path, OPENMP), (alone, ())):
            if place.exists():
                return place
            if place in _failed and alone.exists():
                continue
            why = _compile(compiler, (*flags, *more), place)
            if not why:
                seconds = time.perf_counter() - started
                notify(f"compiled the fast CPU step in {seconds:.1f} s; kept in {place.parent}")
                return place
            _failed.add(place)
    raise FastPathError(f"{compiler} failed: {why[:500]}")


def _compile(compiler: str, flags: tuple[str, ...], path: Path) -> str:
    """What the compiler said if it failed, else "".

    It writes beside the place, and its file is moved there: nobody ever loads half a file.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [compiler, *flags, "-shared", "-fPIC", str(SOURCES / "step.cpp"), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip() or f"it ended with {done.returncode}"
        os.replace(made, path)
    return ""


def _processor() -> str:
    """What -march=native depends on."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text(encoding="utf-8").splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()}"
