"""The plain engine, its model run by the native step as soon as that is ready."""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.interface import Outcome, SchedulerMaker
from nanovllm.batching.plan import Plan
from nanovllm.batching.scheduler import Scheduler
from nanovllm.fast.availability import BLOCK_MULTIPLE, FastPathError, available
from nanovllm.fast.build import Say, load_library, say
from nanovllm.fast.cache import FastCache
from nanovllm.fast.step import NativeStep, StepInput
from nanovllm.fast.store import FastStore
from nanovllm.fast.weights import NativeWeights
from nanovllm.generation.events import Sampled
from nanovllm.generation.request import weight_of
from nanovllm.greedy_draws import wants_argmax
from nanovllm.model.transformer import Transformer
from nanovllm.paging.interface import BlockManagerInterface
from nanovllm.tokenization.tokenizer import Tokenizer

# Held while the thread that makes the native step is in torch's code, also to free an engine: if
# Python ended a thread there, the process would abort. At the exit it is taken for good.
_in_torch = threading.Lock()
atexit.register(_in_torch.acquire)


class FastEngine(Engine):
    """Lab 04's Engine whose `execute` runs in native code; `ready` says whether it does yet.

    Scheduler and block manager may be any (make_scheduler, manager): `execute` reads the plan, and
    the blocks of its requests by `store.block_ids`. Where a row wants more than the likeliest
    token, or where `draws` is false, the sampler draws.

    Compiling and packing happen in a thread of their own; until then, and where the compiler
    fails, the model runs plainly over the same K and V.

    kv_cache_dtype: "auto" for the model's own, or "int8" (lab 09). num_host_blocks: as FastStore's.

    Raises:
        FastPathError: `available` has a reason why not.
    """

    def __init__(
        self,
        model: Transformer,
        config: EngineConfig,
        *,
        tokenizer: Tokenizer | None = None,
        num_blocks: int,
        block_size: int = BLOCK_MULTIPLE,
        clock: Callable[[], float] = time.perf_counter,
        notify: Say = say,
        draws: bool = True,
        make_scheduler: SchedulerMaker = Scheduler,
        manager: BlockManagerInterface | None = None,
        kv_cache_dtype: str = "auto",
        num_host_blocks: int = 0,
    ) -> None:
        weight = weight_of(model)
        block_size = block_size if manager is None else manager.block_size
        reason = available(model.config, weight.dtype, weight.device, block_size)
        if reason is not None:
            raise FastPathError(f"The fast path cannot be used: {reason}.")
        sizes = (model.config, num_blocks, block_size, weight.dtype)
        store = FastStore(*sizes, manager, kv_cache_dtype, num_host_blocks)
        super().__init__(
            model,
            config,
            tokenizer=tokenizer,
            store=store,
            clock=clock,
            make_scheduler=make_scheduler,
        )
        self.store: FastStore = store
        self._native: NativeStep | None = None
        self._logits: Tensor | None = None  # of the newest native step
        self._likeliest: Seq[int] = ()  # of their rows
        self._draws = draws
        self.notify = notify
        self._maker = threading.Thread(
            target=_make, args=([self],), name="nanovllm-fast", daemon=True
        )
        self._maker.start()

    @property
    def ready(self) -> bool:
        """Whether steps run in native code."""
        return self._native is not None

    def wait(self) -> bool:
        """Wait for the native step; whether there is one now."""
        self._maker.join()
        return self.ready

    def use(self, library: ctypes.CDLL) -> None:
        """Pack the weights for the native step, and run it from now on."""
        with torch.inference_mode():
            weights = NativeWeights(self.model, library.nv_lanes(), self.max_model_len)
        self._native = NativeStep(library, weights)
        if weights.widened:
            self.notify(
                f"{weights.widened} of {weights.quantized + weights.widened} quantized linears "
                f"are kept in {str(weights.dtype).removeprefix('torch.')}: the fast CPU step "
                "does not read their codes"
            )

    def share_weights(self, other: FastEngine) -> None:
        """Only if both are `ready`: run on the packed weights of another engine of this model,
        whose max_model_len is no less."""
        assert self._native is not None and other._native is not None
        assert other.max_model_len >= self.max_model_len  # its cosines end there
        self._native.weights = other._native.weights

    def execute(self, plan: Plan) -> Float[Tensor, "N V"]:
        """As the plain engine: K and V written, logits of the chunks that complete."""
        if self._native is None:
            return super().execute(plan)
        self.store.make_copies()
        given = StepInput.of(plan, self.store.block_ids)
        self._logits, self._likeliest = self._native(given, cast(FastCache, self.store.cache))
        return self._logits

    def guess(self, plan: Plan, wanted: Seq[int]) -> list[Seq[int]]:
        """Only if `ready`: the likeliest tokens behind each chunk, so many of each, none of them
        in its sequence; K and V are written of the chunks and of all of these but the last."""
        self.store.make_copies()
        given = StepInput.of(plan, self.store.block_ids)
        assert self._native is not None  # asked for where it is `ready`
        return self._native.guess(given, cast(FastCache, self.store.cache), wanted)

    def draw(self, plan: Plan, logits: Float[Tensor, "N V"]) -> list[Outcome]:
        """The argmax, if that is known and nobody wants more; else the plain way."""
        if not self.knows(plan, logits):
            return super().draw(plan, logits)
        drawn = map(Sampled, self._likeliest)
        return [next(drawn) if chunk.completes else None for chunk in plan.chunks]

    def knows(self, plan: Plan, logits: Float[Tensor, "N V"]) -> bool:
        """Whether the argmax of each row is known, and no request of the plan wants more: these
        are the newest step's logits, and the largest of each row is finite."""
        return (
            self._draws
            and logits is self._logits
            and min(self._likeliest, default=0) >= 0
            and all(wants_argmax(c.request.sequence) for c in plan.chunks if c.completes)
        )


def fast_engine(
    model: Transformer,
    config: EngineConfig,
    *,
    tokenizer: Tokenizer | None = None,
    num_blocks: int,
    block_size: int = BLOCK_MULTIPLE,
    dtype: torch.dtype | None = None,
    clock: Callable[[], float] = time.perf_counter,
    draws: bool = True,
) -> FastEngine:
    """An engine with the fast path. dtype: as the model's weights, or left out; draws: whether it
    may take the argmax itself where that is all that a request wants.

    Raises:
        FastPathError: it cannot be used for this model, or here; `available` says so beforehand.
    """
    held = weight_of(model).dtype
    if dtype not in (None, held):
        raise FastPathError(f"The model's weights are {held}, but dtype is {dtype}; load it so.")
    return FastEngine(
        model,
        config,
        tokenizer=tokenizer,
        num_blocks=num_blocks,
        block_size=block_size,
        clock=clock,
        draws=draws,
    )


def _make(given: list[FastEngine]) -> None:
    """Compile, then pack, for the one engine of a list, which is left empty."""
    engine, library = given.pop(), None
    try:
        library = load_library(weight_of(engine.model).dtype, engine.notify)
    except FastPathError as error:
        engine.notify(f"going on without the fast CPU step: {error}")
    with _in_torch:
        if library is not None:
            engine.use(library)
        del engine  # nobody else may have it any more
