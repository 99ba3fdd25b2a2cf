"""Which lab's engine answers: the highest whose packages are here. The one place that chooses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol

from nanovllm.generation.beam import BeamSearchParams, Hypothesis
from nanovllm.generation.params import SamplingParams
from nanovllm.llm.engine_options import EngineOptions
from nanovllm.llm.lab_packages import is_mine, package_of, why_missing
from nanovllm.llm.read_options import OptionError
from nanovllm.model.transformer import Transformer
from nanovllm.tokenization.tokenizer import Tokenizer


class AnyEngine(Protocol):
    """What is asked of an engine, whichever lab's it is: the methods of lab 04's."""

    @property
    def has_unfinished(self) -> bool: ...
    def add_request(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        seed: int | None,
        request_id: int,
    ) -> object: ...
    def abort(self, request_id: int) -> object: ...
    def step(self) -> list[Any]: ...
    def check(self) -> None: ...


@dataclass(frozen=True)
class EventKinds:
    """Events beyond lab 03's that a rung's engine reports, by what they say."""

    failed: tuple[type, ...] = ()
    aborted: tuple[type, ...] = ()
    stepped: tuple[type, ...] = ()


class Rung(Protocol):
    """One lab's way to answer requests to one model."""

    kinds: EventKinds
    step: str  # what kind of step it takes: "compiled", "CUDA graphs", or "plain" and why

    def make_engine(self) -> AnyEngine:
        """A new engine, which holds no request."""

    def beam_search(
        self, prompt_token_ids: Sequence[int], params: BeamSearchParams
    ) -> list[Hypothesis]:
        """The likeliest continuations of a prompt, best first. Raises RequestError."""

    def describe(self, engine: AnyEngine) -> str:
        """What computes the steps of this engine, and where it keeps K and V."""


@dataclass(frozen=True)
class Level:
    """A rung's place on the ladder: it needs its lab, and all labs below."""

    name: str
    lab: str
    title: str
    home: str  # the module and the class of the rung, imported when it is chosen
    why_not_higher: str | None = None  # half a sentence; None at the top

    @property
    def engine_name(self) -> str:
        """The engine in a few words: what it does, which lab's it is, and whose."""
        yours = ", yours" if is_mine(package_of(self.lab)) else ""
        return f"{self.title} ({self.lab}{yours})"

    def require(self, lab: str, what: str) -> None:
        """Raise OptionError unless this level reaches so high as that lab."""
        if self.lab < lab:
            raise OptionError(
                f"{what} needs {lab} ({package_of(lab)}), but the engine here is {self.title} "
                f"({self.lab}): {self.why_not_higher}."
            )

    def check_options(self, given: dict[str, Any]) -> None:
        """Raise OptionError for an option that asks for what only a higher level has."""
        for name, value in given.items():
            if name in OPTIONS_OF and value not in (None, False, "auto"):
                self.require(OPTIONS_OF[name], name)

    def make(
        self,
        model: Transformer,
        tokenizer: Tokenizer | None,
        max_model_len: int,
        options: EngineOptions,
    ) -> Rung:
        """The rung for a model; without a tokenizer, in token ids alone. Raises OptionError."""
        module, _, kind = self.home.partition(":")
        rung = getattr(import_module(f"nanovllm.llm.{module}"), kind)
        return rung(model, tokenizer, max_model_len, options)


LADDER = (  # the lowest first; no LLM can do without labs 01 to 03
    Level("static", "lab03", "static batches", "static_level:StaticRung"),
    Level("continuous", "lab04", "continuous batching on slots", "continuous_level:ContinuousRung"),
    Level("paged", "lab05", "paged continuous batching", "paged_level:PagedRung"),
)
OPTIONS_OF = {
    "max_num_batched_tokens": "lab04",
    "adaptive_token_budget": "lab04",
    "scheduling_policy": "lab04",
    "block_size": "lab05",
    "num_gpu_blocks_override": "lab05",
    "kv_cache_memory_bytes": "lab05",
    "gpu_memory_utilization": "lab04",
    "swap_space": "lab05",
    "enable_prefix_caching": "lab05",
    "speculative_config": "lab05",
    "kv_cache_dtype": "lab05",
}


def below(lab: str) -> str | None:
    """The name of the engine that does without a lab; None if none can, or all do.

    >>> below("lab05"), below("lab03"), below("lab06")
    ('continuous', None, None)
    """
    labs = [level.lab for level in LADDER]
    return LADDER[labs.index(lab) - 1].name if lab in labs[1:] else None


def choose(wanted: str | None = None) -> Level:
    """The highest level whose labs are here, or the wanted one. Raises OptionError."""
    names = [level.name for level in LADDER]
    if wanted is not None and wanted not in names:
        raise OptionError(f"engine {wanted!r} is not known; use {', '.join(names)}.")
    found = LADDER[0]
    for level in LADDER[1:]:
        if found.name == wanted:
            return replace(found, why_not_higher=f"engine={wanted!r} asks for it")
        why = why_missing(level.lab)
        if why is not None:
            if wanted is not None:
                raise OptionError(f"engine {wanted!r} cannot be made: {why}")
            return replace(found, why_not_higher=why.removesuffix("."))
        found = level
    return found
