"""Who can be measured: this engine, and the peers whose adapters lie in benchmarks/peers."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanovllm.bench.process import ROOT, Process
from nanovllm.bench.workload import Workload
from nanovllm.llm.read_options import OptionError

OURS, PLAIN = "nanovllm", "nanovllm-plain"  # the best there is here; labs 02 to 05 alone
_ADAPTERS = ROOT / "benchmarks" / "peers"
PEERS = {  # name: adapter and its argument
    "transformers": ("transformers_peer.py", "one"),
    "transformers-static": ("transformers_peer.py", "static"),
    "transformers-continuous": ("transformers_peer.py", "continuous"),
    "transformers-assisted": ("transformers_peer.py", "assisted"),
    "vllm": ("vllm_peer.py", "in-process"),
    "vllm-own-process": ("vllm_peer.py", "own-process"),
    "vllm-ngram": ("vllm_peer.py", "ngram"),
    "llama.cpp": ("llama_peer.py", "as-it-is"),
    "llama.cpp-q8_0": ("llama_peer.py", "q8_0"),
    "llama.cpp-q4_0": ("llama_peer.py", "q4_0"),
}
ELSEWHERE = {"vllm": "vllm", "llama.cpp": "llama-cpp-python, gguf, torch and safetensors"}


@dataclass(frozen=True)
class Settings:
    """What every contestant is given alike."""

    model: str
    dtype: str = "bfloat16"
    threads: int = 1
    max_num_seqs: int = 64
    max_model_len: int = 512
    vllm_python: str | None = None
    llama_python: str | None = None
    speculative_config: dict[str, Any] | None = None  # of ours alone, as the rest is:
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    kv_cache_memory_bytes: int | None = None  # of ours; vLLM gets whole GiB; by default 1 GiB each
    guesses: int = 4  # in a step of vllm-ngram
    tensor_parallel_size: int = 1  # of OURS, not of PLAIN
    pipeline_parallel_size: int = 1

    def check(self, names: Sequence[str]) -> None:
        """Raise OptionError for a contestant that cannot be started."""
        for name in names:
            if name not in (OURS, PLAIN, *PEERS):
                raise OptionError(f"peer {name!r} is not known; use {PLAIN}, {', '.join(PEERS)}.")
            if name in PEERS and not (_ADAPTERS / PEERS[name][0]).is_file():
                raise OptionError(
                    f"peer {name!r} needs benchmarks/peers/{PEERS[name][0]}, which this copy of "
                    "the course does not have; leave the peer out."
                )
            for package, packages in ELSEWHERE.items():
                if name.startswith(package) and not self._python(name):
                    raise OptionError(
                        f"peer {name!r} needs an environment of its own: make one, install "
                        f"{packages} in it and name its Python with "
                        f"--{package.partition('.')[0]}-python."
                    )

    def _python(self, name: str) -> str | None:
        """Whose Python runs a peer; None where it is not there."""
        if name.startswith("vllm"):
            return self.vllm_python
        return self.llama_python if name.startswith("llama.cpp") else sys.executable

    def command(self, name: str) -> list[str]:
        """The command line of a contestant."""
        if name in (OURS, PLAIN):
            options: dict[str, Any] = {
                "speculative_config": self.speculative_config,
                "tensor_parallel_size": self.tensor_parallel_size,
                "pipeline_parallel_size": self.pipeline_parallel_size,
            }
            if name == PLAIN:
                options = {"enforce_eager": True}
            for option in ("kv_cache_dtype", "quantization", "kv_cache_memory_bytes"):
                if getattr(self, option) is not None:
                    options[option] = getattr(self, option)
            return [sys.executable, "-m", "nanovllm.bench.ours", json.dumps(options)]
        adapter, argument = PEERS[name]
        return [str(self._python(name)), str(_ADAPTERS / adapter), argument, str(self.guesses)]

    def environment(self, name: str) -> dict[str, str]:
        """What its process needs. vLLM asks for Intel's OpenMP, which its packages bring along,
        and for tcmalloc, which the system may have."""
        if not name.startswith("vllm"):
            return {}
        openmp = Path(self.vllm_python or "").parent.parent / "lib" / "libiomp5.so"
        wanted = [str(openmp.absolute()) if openmp.is_file() else None]
        wanted.append(find_library("tcmalloc") or find_library("tcmalloc_minimal"))
        found = {"LD_PRELOAD": os.pathsep.join(filter(None, wanted))}
        if self.kv_cache_memory_bytes:
            found["VLLM_CPU_KVCACHE_SPACE"] = str(-(-self.kv_cache_memory_bytes >> 30))
        return found


@dataclass(frozen=True)
class Ready:
    """A contestant that has loaded its model and generated its first token."""

    process: Process
    facts: dict[str, Any]
    first_token_seconds: float  # since its process began, imports included
    ready_seconds: float  # and until it was as fast as it gets

    def run(self, workload: Workload) -> dict[str, Any]:
        """Seconds and token ids of a workload."""
        return self.process.ask("run", jobs=workload.as_json())


@contextmanager
def started(names: Sequence[str], settings: Settings) -> Iterator[dict[str, Ready]]:
    """Start contestants one after another, so that their start-up times are their own."""
    settings.check(names)
    with ExitStack() as stack:
        ready = {}
        for name in names:
            process = stack.enter_context(
                Process(
                    name, settings.command(name), settings.threads, **settings.environment(name)
                )
            )
            answer = process.ask(
                "load", model=settings.model, dtype=settings.dtype, threads=settings.threads,
                max_model_len=settings.max_model_len, max_num_seqs=settings.max_num_seqs,
            )  # fmt: skip
            seconds = answer["first_token_seconds"], answer["ready_seconds"]
            ready[name] = Ready(process, answer["facts"], *seconds)
        yield ready
