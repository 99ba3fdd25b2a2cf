"""What the fork server does first: import, compile and use once all that grading needs."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import tempfile

from _pytest.config import default_plugins

from grader.checks.isolated_imports import World
from grader.checks.run_checks import PRELOADED
from grader.course.lab_toml import find_lab, labs
from grader.sandbox import bytecode_cache

OURS = (
    "grader.sandbox.job_main",
    "grader.sandbox.job_scenarios",
    "grader.sandbox.job_checks",
    "grader.sandbox.job_race",
    "grader.course.integrity",
    # What checks came to import in every submission anew.
    *(f"_pytest.{name}" for name in default_plugins),
    "pytest_timeout",
    "hypothesis.stateful",
    "pdb",
    "readline",
    "tokenizers.trainers",
    "transformers.convert_slow_tokenizer",
)
# torch comes to import torch._dynamo when a model is built on the meta device.
REFERENCE_NEEDS = (
    "torch",
    "torch._dynamo",
    "grader.sandbox.job_main",
    "grader.sandbox.job_scenarios",
    "grader.sandbox.job_race",
)


def prepare(lab: str) -> None:
    """Make ready for the checks and scenarios of a lab ("": for scenarios on the reference)."""
    for name in [*PRELOADED, *OURS] if lab else REFERENCE_NEEDS:
        importlib.import_module(name)
    bytecode_cache.remember(find_lab(lab) if lab else None)
    use_torch()
    if lab:
        use_hypothesis()
    else:
        import_reference()


def use_torch() -> None:
    """Do once what torch does at first use: it looks at the processor."""
    import torch

    numbers = torch.ones(8, 8, dtype=torch.bfloat16)
    with torch.inference_mode():
        (numbers.float() @ numbers.float()).softmax(-1).rsqrt().sum().item()
        (numbers @ numbers).pow(2).mean().item()


def use_hypothesis() -> None:
    """Do once what hypothesis does at first use: it lists Unicode's characters."""
    from hypothesis import configuration, given, settings, strategies

    with tempfile.TemporaryDirectory() as folder:
        configuration.set_hypothesis_home_dir(folder)
        nothing = given(strategies.text())(lambda text: None)
        # In fewer examples it does not come to look for constants in the course's modules.
        settings(max_examples=100, derandomize=True, database=None, deadline=None)(nothing)()
    configuration.set_hypothesis_home_dir(None)  # each submission has one of its own


def import_reference() -> None:
    """Import the reference of every lab, where no student's code is."""
    World("reference").enter()
    for lab in labs():
        package = importlib.import_module(f"nanovllm.{lab.package}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with contextlib.suppress(ImportError):  # triton is on Linux only
                importlib.import_module(module.name)
