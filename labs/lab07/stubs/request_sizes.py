"""Sizes of requests as histograms, for the panels of vLLM's Grafana board (given).

Source: `request_prompt_tokens` and its neighbours in vllm/v1/metrics/loggers.py of vLLM 0.32.
"""

from collections.abc import Sequence

from nanovllm.batching.events import Aborted, Admitted, EngineEvent, Failed
from nanovllm.generation.events import Finished, Prefilled, TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.serving.registry import SECONDS, TOKENS, Registry

COUNTS = (1, 2, 5, 10, 20)


class RequestSizes:
    """Adds its histograms to a server's registry, and fills them."""

    def __init__(self, registry: Registry) -> None:
        made = registry.histogram
        self.prompt = made("request_prompt_tokens", "Tokens of a prompt.", TOKENS)
        self.generation = made("request_generation_tokens", "Tokens of a finished sample.", TOKENS)
        self.n = made("request_params_n", "Samples asked for, of each prompt.", COUNTS)
        self.max_tokens = made("request_params_max_tokens", "Tokens asked for.", TOKENS)
        self.inference = made(
            "request_inference_time_seconds",
            "Of a finished sample: from the first admission to the last token.",
            SECONDS,
        )
        self._admitted: dict[tuple[int, int], float] = {}

    def asked(self, params: SamplingParams, num_prompts: int) -> None:
        """A request was taken on."""
        for _ in range(num_prompts):
            self.n.observe(params.n)
            if params.max_tokens is not None:
                self.max_tokens.observe(params.max_tokens)

    def observe(self, events: Sequence[EngineEvent], usage: float) -> None:
        """Take in the events of a step."""
        for event in events:
            if type(event) is TokenGenerated:  # nearly all are
                continue
            if isinstance(event, Admitted):
                self._admitted.setdefault((event.request_id, event.index), event.time)
            elif isinstance(event, Prefilled):
                self.prompt.observe(event.num_tokens)
            elif isinstance(event, Finished | Aborted | Failed):
                started = self._admitted.pop((event.request_id, event.index), event.time)
                if isinstance(event, Finished):
                    self.generation.observe(len(event.completion.token_ids))
                    self.inference.observe(event.time - started)
