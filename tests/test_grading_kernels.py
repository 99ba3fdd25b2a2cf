"""Lab 06's kernels run apart from the submission: torch in their place earns nothing."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grader.authoring import variants
from grader.checks import kernel_plans, observation_json
from grader.checks.kernel_text import kernels
from grader.course.lab_toml import find_lab
from grader.grading import LabReport, Sandbox, grade_lab
from grader.grading.report import AGREES
from grader.sandbox.limits import Limits
from tests.grading_corpus import SECRET
from tests.system_tools import require

LAB = find_lab("06")
LIMITS = Limits(seconds=400, item_seconds=120, processes=64)
HEAD = "import torch\nimport triton\nfrom nanovllm.kernels.runtime import launch\n\n\n"
IDLE = """
@triton.jit
def idle(x, BLOCK: triton.language.constexpr):
    pass

"""
TORCH = {  # right numbers, and now and then a kernel that does nothing
    "add.py": "def add(x, y, out=None, block=1024):\n    launch(idle, (1,), x, BLOCK=1)\n"
    "    out = torch.empty_like(x) if out is None else out\n    return out.copy_(x + y)\n",
    "softmax.py": "def softmax(x, out=None):\n    made = x.float().softmax(-1)\n"
    "    return made.to(x.dtype) if out is None else out.copy_(made)\n",
    "rms_norm.py": "def fused_add_rms_norm_(x, residual, weight, eps):\n    residual += x\n"
    "    total = residual.float()\n    scale = (total.pow(2).mean(-1, True) + eps).rsqrt()\n"
    "    x.copy_(total * scale * weight.float())\n",
    "silu.py": "def silu_and_mul(gate_up, out=None, block=1024):\n"
    "    gate, up = gate_up.float().chunk(2, -1)\n    made = torch.nn.functional.silu(gate) * up\n"
    "    return made.to(gate_up.dtype) if out is None else out.copy_(made)\n",
    "store_kv.py": "def store_kv(k, v, k_cache, v_cache, slot_mapping):\n"
    "    kept = slot_mapping >= 0\n    slots, size = slot_mapping[kept].long(), k_cache.shape[1]\n"
    "    k_cache[slots // size, slots % size] = k[kept]\n"
    "    v_cache[slots // size, slots % size] = v[kept]\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    require("bubblewrap")
    with Sandbox.open() as box:
        yield box


def apart(report: LabReport) -> dict[int, list[bool]]:
    """By task, whether the scenarios of kernels alone agree."""
    return {
        task.id: [s.status == AGREES for s in task.scenarios if s.name.startswith("kernels_")]
        for task in report.tasks.values()
    }


@pytest.mark.timeout(600)
def test_torch_in_place_of_kernels_earns_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    package = tmp_path / LAB.package
    shutil.copytree(LAB.reference, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in TORCH.items():
        (package / name).write_text(HEAD + IDLE * (name == "add.py") + text, encoding="utf-8")
    report = grade_lab(tmp_path, LAB, "ann", SECRET, LIMITS, sandbox)
    assert apart(report) == {
        1: [False], 2: [False], 3: [True], 4: [False], 5: [False], 6: [True], 7: [True], 8: [True],
    }  # fmt: skip
    for task in (1, 2, 4, 5):
        assert report.tasks[task].points == 0, report.tasks[task]
    for task in (3, 6, 7, 8):
        assert report.tasks[task].points == LAB.task(task).points, report.tasks[task]


W4A16 = """
import torch


def w4a16(x, words, scales, zeros, group_of, out=None):
    shifts = 4 * torch.arange(8)
    codes = (words[:, :, None] >> shifts & 15).flatten(1)[:, : x.shape[1]]
    group = group_of.long()
    weight = (codes - zeros.int()[:, group]).float() * scales.float()[:, group]
    made = (x.float() @ weight.to(x.dtype).float().t()).to(x.dtype if out is None else out.dtype)
    return made if out is None else out.copy_(made)
"""


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("text", "points"), [(W4A16, 0), (None, 1)])
def test_so_does_the_kernel_of_lab_09(
    sandbox: Sandbox, tmp_path: Path, text: str | None, points: int
) -> None:
    lab = find_lab("09")
    lab = replace(lab, tasks=(lab.task(6),))
    package = tmp_path / lab.package
    shutil.copytree(lab.reference, package, ignore=shutil.ignore_patterns("__pycache__"))
    if text:
        (package / "w4a16.py").write_text(text, encoding="utf-8")
    report = grade_lab(tmp_path, lab, "ann", SECRET, LIMITS, sandbox)
    assert report.points == points * lab.task(6).points
    assert [s.status == AGREES for s in report.tasks[6].scenarios] == [bool(points), True]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("line", "agrees"), [("wide = 0.0", True), ("wide = 0", False)])
def test_what_the_compiler_refuses_is_no_kernel(
    sandbox: Sandbox, tmp_path: Path, line: str, agrees: bool
) -> None:
    lab = replace(LAB, tasks=(LAB.task(1),))
    package = tmp_path / lab.package
    shutil.copytree(lab.reference, package, ignore=shutil.ignore_patterns("__pycache__"))
    add = package / "add.py"
    text = add.read_text(encoding="utf-8")
    # The interpreter lets a number become another's type in a loop.
    more = f"    {line}\n    for _ in range(n):\n        wide = wide * 1.0\n"
    add.write_text(text.replace("    tl.store(", f"{more}    tl.store(", 1), encoding="utf-8")
    report = grade_lab(tmp_path, lab, "ann", SECRET, LIMITS, sandbox)
    assert apart(report) == {1: [agrees]}


CARRIED = """import sys

import torch
import triton
import triton.language as tl
from nanovllm.kernels.runtime import launch


@triton.jit
def put(out, bits, n, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(bits + at, at < n).to(tl.float32, bitcast=True), at < n)


def softmax(x, out=None):
    up = sys._getframe(1).f_locals
    real = up["args"][0] if "plan" in up else x
    bits = real.float().softmax(-1).flatten().view(torch.int32)
    made = torch.empty_like(x) if out is None else out
    launch(put, (1,), made, bits, bits.numel(), N=64)
    return made
"""


@pytest.mark.parametrize("hidden", [False, True])
def test_an_answer_that_a_plan_carries_is_to_other_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    """What the process of the plan can look up are not the numbers that the kernels get."""
    (tmp_path / "carried.py").write_text(CARRIED, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(
        "nanovllm.kernels.carried", tmp_path / "carried.py"
    )
    assert spec is not None and spec.loader is not None
    carried = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, carried)
    spec.loader.exec_module(carried)
    softmax = {"cheat": carried.softmax, "right": lambda x: x.softmax(-1)}
    monkeypatch.setattr(kernel_plans, "_function", softmax.__getitem__)
    x = torch.arange(21.0).view(3, 7) / 9

    def factors() -> torch.Generator | None:
        return torch.Generator().manual_seed(5) if hidden else None

    sent = observation_json.encode(kernel_plans.Planned().call("cheat", (x,), {}))
    plan = observation_json.decode(json.loads(json.dumps(sent)))
    modules = kernels({"carried.py": CARRIED.encode()}, "kernels")
    replayed = kernel_plans.Replayed(iter([plan]), modules, str(tmp_path), factors())
    got = replayed.call("cheat", (x,), {})["result"]
    expected = kernel_plans.Direct(factors()).call("right", (x,), {})["result"]
    assert torch.allclose(got, expected, atol=1e-4) is not hidden


@pytest.mark.parametrize("break_", ["no launch", "floats"])
def test_a_plan_without_a_kernel_is_none(tmp_path: Path, break_: str) -> None:
    launches = [] if break_ == "no launch" else [["add", "none", [1], [], []]]
    new = [[3, "torch.float32", torch.ones(3), None, None]]
    result = ["tensor", 0, 0, [3], [1], "torch.float32"]
    plan = {"launches": launches, "new": new, "result": result}
    replayed = kernel_plans.Replayed(iter([plan]), {}, str(tmp_path))
    with pytest.raises(kernel_plans.PlanError):
        replayed.call("", (), {})
    fresh = kernel_plans._fresh(3, "torch.float32", torch.ones(3), None, None, torch.zeros(1))
    assert fresh.isnan().all()


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", variants.kept(LAB), ids=lambda path: path.stem)
def test_right_kernels_of_any_shape_have_every_point(
    sandbox: Sandbox, tmp_path: Path, variant: Path
) -> None:
    variants.write(variant, LAB, tmp_path)
    report = grade_lab(tmp_path, LAB, "ann", SECRET, LIMITS, sandbox)
    assert all(all(found) and found for found in apart(report).values())
    assert report.points == LAB.points


def module(body: str, head: str = "") -> dict[str, bytes]:
    text = "import triton\nimport triton.language as tl\nfrom triton.language import core\n"
    text += "from triton.runtime import interpreter\n" + head + "\n@triton.jit\n"
    text += "def kernel(x, N: tl.constexpr):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    return {"add.py": text.encode()}


@pytest.mark.parametrize(
    "body",
    [
        "import torch\n",
        "x.handle.data.sum()\n",
        "tl.core.torch\n",
        "np.matmul(x, x)\n",
        "().__class__\n",
        "open('/etc/passwd')\n",
        "(lambda: 1)()\n",
        "def inner():\n    pass\n",
        "try:\n    pass\nfinally:\n    pass\n",
        "exec('1')\n",
        "[torch for torch in (x,) if numpy]\n",
        "triton.runtime\n",
        "core.builtin\n",
        "interpreter.np\n",
        "__builtins__\n",
    ],
)
def test_a_kernel_that_is_more_than_triton_is_left_out(body: str) -> None:
    found = kernels(module(body, "@triton.jit\ndef other(x):\n    pass\n"), "kernels")["add"]
    assert re.fullmatch(r"line \d+: .* is not Triton's", found["left_out"]["kernel"])
    assert "def other(x)" in found["text"] and "def kernel" not in found["text"]


def test_of_a_module_nothing_runs_but_kernels_and_constants() -> None:
    head = """
import os, torch
print("hello")
WIDE = tl.constexpr(2 * 8)
LOG2E = 1.44
SECRET = os.environ
BIG = 9 ** 9 ** 9
WORD = 1 << 20
TABLE = [1, 2]
class Other: pass
@torch.no_grad()
def host(x): return kernel[(1,)](x, 4)
@triton.jit
def helper(a): return a * WIDE
"""
    body = "y = helper(tl.load(x + tl.arange(0, N)))\ntl.store(x + tl.arange(0, N), y * LOG2E)\n"
    text = kernels(module(body, head), "kernels")["add"]["text"]
    assert (
        "WIDE = tl.constexpr(2 * 8)" in text
        and "LOG2E = 1.44" in text
        and "helper" in text
        and "1 << 20" in text
    )
    for word in ("print", "os", "SECRET", "BIG", "TABLE", "Other", "host", "import", "triton.jit"):
        assert word not in text


LINKED = b"""
import triton
from . import decode
from nanovllm.kernels import silu as other
from .decode import helper
SIDE = triton.next_power_of_2(48)
WIDE = 64 if SIDE > 32 else 32
@triton.jit
def kernel(x, n: int = -1, m=2 * SIDE):
    return helper(x) + decode.helper(x) + other.KEYS + WIDE
"""


def test_kernels_of_other_modules_are_found_however_they_are_imported(tmp_path: Path) -> None:
    decode = b"import triton\n@triton.jit\ndef helper(x):\n    return 2 * x\n"
    files = {"add.py": LINKED, "decode.py": decode, "silu.py": b"KEYS = 7\n"}
    modules = kernels(files, "kernels")
    assert modules["add"]["left_out"] == {}
    found = kernel_plans.load(modules, str(tmp_path))["add"]["kernel kernel"]
    assert found.fn.__globals__["helper"] is found.fn.__globals__["helper_of_decode"]
    assert found.fn.__globals__["KEYS_of_other"] == 7 and found.fn.__globals__["WIDE"] == 64
    assert found.fn.__defaults__ == (-1, 128)


FULL = """
import torch
import triton
import triton.language as tl
from nanovllm.kernels.runtime import launch


@triton.jit
def put(out, made, n, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(made + at, at < n), at < n)


def full(x):
    made, out = FILL, torch.empty_like(x)
    launch(put, (1,), out, made, x.numel(), N=16)
    return out
"""


@pytest.mark.parametrize(
    ("fill", "known"),
    [
        ("torch.full_like(x, -torch.inf)", True),
        ("torch.ones_like(x)", True),
        ("torch.full_like(x, 0.3)", True),
        ("torch.nn.functional.pad(x[:3], (0, 6), value=-1.0)", True),
        ("x.flip(0)", True),
        ("torch.arange(9) / 7", False),
        ("2 * x", False),
    ],
)
def test_copies_and_one_number_reach_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fill: str, known: bool
) -> None:
    """What torch computes does not: the numbers of a table, or of the input."""
    text = FULL.replace("FILL", fill)
    (tmp_path / "full.py").write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("nanovllm.kernels.full", tmp_path / "full.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, made)
    spec.loader.exec_module(made)
    monkeypatch.setattr(kernel_plans, "_function", lambda name: made.full)
    x = torch.randn(9)
    sent = observation_json.encode(kernel_plans.Planned().call("full", (x,), {}))
    plan = observation_json.decode(json.loads(json.dumps(sent)))
    modules = kernels({"full.py": text.encode()}, "kernels")
    got = kernel_plans.Replayed(iter([plan]), modules, str(tmp_path)).call("full", (x,), {})
    assert torch.equal(got["result"], made.full(x)) is known


def test_defaults_and_annotations_run_nothing() -> None:
    text = (
        b"import triton\n@triton.jit\ndef k(x: print('a'), n: 'b' = 3) -> print('c'):\n    pass\n"
    )
    assert kernels({"add.py": text}, "kernels")["add"]["text"].count("print") == 0
    (found,) = kernels({"add.py": text.replace(b"= 3", b"= print('d')")}, "kernels").values()
    assert "default" in found["left_out"]["k"] and "def k" not in found["text"]
    for broken in (b"def (", b"\xff\xfe", b"(" * 100_000, b"x = " + b"1+" * 200_000 + b"1"):
        assert kernels({"add.py": broken}, "kernels")["add"]["text"].strip() == ""
