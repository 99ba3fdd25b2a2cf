"""Lab 14's race, in a process of its own: load an engine, run requests through it, count."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from grader.checks.engine_costs import Products
from grader.course.lab_toml import find_lab

NEAR = 1e-3  # logits this near to each other may change places in another order of additions
M_MMAP_THRESHOLD = -3  # malloc.h
READS = ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__")
Found = dict[str, Any]


def _counting() -> Any:
    """Lab 14's given counter, in a module that no entry has the name of."""
    path = find_lab("14").stubs / "counting.py"
    spec = importlib.util.spec_from_file_location("race_counting", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class CountWaits(TorchFunctionMode):
    """How often the host asks for values, for which a device would have to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = {getattr(torch.Tensor, name) for name in READS}
        self.total = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.total += func in self.reads
        return func(*args, **(kwargs or {}))


class Runs:
    """One engine at a time; each method takes a task, and gives what is found as plain data."""

    def __init__(self) -> None:
        self.counting = _counting()
        self.engine: Any = None
        self.before: set[int] = set()

    def do(self, task: Found) -> Found:
        """What the task's own name says; an error as one line."""
        try:
            return getattr(self, task["do"])(task)
        except Exception as error:
            return {"raised": f"{type(error).__name__}: {error}"[:300]}

    def ready(self, task: Found) -> Found:
        """Import what any engine takes, so that it is in nobody's memory.

        steady: each block of 64 KiB or more is a mapping of its own, and is unmapped when freed.
        """
        if task.get("steady"):
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)
        import nanovllm.batching.engine
        import nanovllm.model.loader
        import nanovllm.paging.store  # noqa: F401

        return {"ready": True}

    def load(self, task: Found) -> Found:
        """Make a model, a store and an engine: the entry's, or the plain one of lab 04."""
        from nanovllm.batching.config import EngineConfig
        from nanovllm.batching.engine import Engine
        from nanovllm.paging.store import PagedStore

        self.engine = None
        self.before = set(_storages())
        model, make = _model(task), Engine
        if task["entry"]:
            from nanovllm.performance.capstone import make_engine as make
        store = PagedStore(model.config, *task["blocks"])
        self.engine = make(model, EngineConfig(**task["engine"]), store=store)
        self.layers = model.layers
        return {"loaded": True}

    def run(self, task: Found) -> Found:
        """Texts by request and sample (None: it failed), and the counts where they are asked for.

        check: look into the engine's books after every step.
        """
        if not task.get("count"):
            return {"texts": self._texts(task)[0]}
        counters = self.counting.CountOps(), Products(self.layers), CountWaits()
        with counters[0] as ops, counters[1] as products, counters[2] as waits:
            texts, steps = self._texts(task)
        new = {key: size for key, size in _storages().items() if key not in self.before}
        counts = {"operations": ops.total, "steps": steps, "tokens": round(products.tokens, 1),
                  "waits": waits.total, "bytes": sum(new.values())}  # fmt: skip
        return {"texts": texts, "counts": counts, "names": dict(ops.by_name)}

    def _texts(self, task: Found) -> tuple[Found, int]:
        from nanovllm.batching.events import Aborted, Failed
        from nanovllm.generation.events import Finished
        from nanovllm.generation.params import SamplingParams

        engine, texts, step = self.engine, {}, 0
        waiting = sorted(enumerate(task["requests"]), key=lambda pair: -pair[1]["at"])
        while waiting or engine.has_unfinished:
            while waiting and waiting[-1][1]["at"] <= step:
                number, one = waiting.pop()
                params = SamplingParams(**one["params"])
                engine.add_request(one["ids"], params, seed=number, request_id=number)
            for event in engine.step():
                if isinstance(event, Finished):
                    ended = event.completion
                    texts[f"{event.request_id}.{ended.index}"] = list(ended.token_ids)
                elif isinstance(event, Failed | Aborted):
                    texts[f"{event.request_id}.0"] = None
            if task.get("check"):
                engine.check()
            step += 1
        return texts, step

    def ties(self, task: Found) -> Found:
        """Whether each token of a text is the likeliest after those before it, but for rounding."""
        from nanovllm.model.attend import RecomputeAttend

        model = _model(task)
        ids = torch.tensor(task["ids"] + task["text"])
        with torch.inference_mode():
            hidden = model(ids, torch.arange(len(ids)), RecomputeAttend(model.config))
            logits = model.logits(hidden[len(task["ids"]) - 1 : -1])
        chosen = logits.gather(1, torch.tensor(task["text"])[:, None])[:, 0]
        return {"near": bool((chosen >= logits.amax(-1) - NEAR).all())}


def _model(task: Found) -> Any:
    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model

    windows = tuple(task["model"].get("windows", ()))
    return dummy_model(ModelConfig(**{**task["model"], "windows": windows}), task["weights"])


def _storages() -> Counter[int]:
    """Bytes of each tensor memory that is alive."""
    gc.collect()
    found: Counter[int] = Counter()
    for one in gc.get_objects():
        if issubclass(type(one), torch.Tensor) and one.layout == torch.strided:
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return found
