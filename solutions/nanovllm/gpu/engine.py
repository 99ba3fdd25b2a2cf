"""Lab 14's engine on a GPU: lab 06's kernels, CUDA graphs, and a way back where they fail."""

import time
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.interface import SchedulerMaker
from nanovllm.batching.plan import Plan
from nanovllm.batching.scheduler import Scheduler
from nanovllm.gpu.decoder import FusedDecoder
from nanovllm.gpu.fallback import use_torch, went_plain
from nanovllm.model.transformer import Transformer
from nanovllm.paging.store import PagedStore
from nanovllm.performance.ahead_engine import AheadEngine
from nanovllm.performance.graphs import Capture, cuda_capture
from nanovllm.performance.launched_step import Launched
from nanovllm.tokenization.tokenizer import Tokenizer


class GpuEngine(AheadEngine):
    """`AheadEngine` by lab 06's kernels, its decodes as CUDA graphs.

    notify: told the one sentence when the GPU path fails; then the plain step goes on.
    Raises GpuPathError for a model family that has no fused kernels. Not verified on a GPU.
    """

    why_not_compact = "the CUDA graphs have the addresses of the blocks; use enforce_eager=True"

    def __init__(
        self,
        model: Transformer,
        config: EngineConfig | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        store: PagedStore,
        clock: Callable[[], float] = time.perf_counter,
        capture: Capture = cuda_capture,
        make_scheduler: SchedulerMaker = Scheduler,
        notify: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._notify, self.went_plain = notify, False
        super().__init__(
            model,
            config,
            tokenizer=tokenizer,
            store=store,
            clock=clock,
            capture=capture,
            make_scheduler=make_scheduler,
        )

    def make_decoder(self, model: Transformer) -> FusedDecoder:
        """Lab 06's kernels."""
        return FusedDecoder(model)

    def execute(self, plan: Plan) -> Launched | Float[Tensor, "N V"]:
        """Launch it; where that fails, the plain step computes it, and all that follows."""
        if not self.went_plain:
            try:
                return super().execute(plan)
            except NotImplementedError:
                raise
            except Exception as error:
                self._go_plain(error)
        return self.execute_plainly(plan)

    def read(self, plan: Plan, launched: Launched) -> list[int] | Float[Tensor, "N V"]:
        """As AheadEngine; a launch that failed tells so when it is read.

        Drawing from logits is no part of it: an error there is that of one request alone.
        """
        try:
            return super().read(plan, launched)
        except NotImplementedError:
            raise
        except Exception as error:
            self._go_plain(error)
            return self.execute_plainly(plan)

    def _go_plain(self, error: Exception) -> None:
        """Say why, and let go of all that the GPU path had under way."""
        self._notify(went_plain(error))
        self.went_plain, self._flight = True, None
        use_torch(self.store)
