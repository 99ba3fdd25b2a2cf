"""Stand-ins without a model: a sequence that is only its lengths, a store that only counts."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from nanovllm.batching.errors import require
from nanovllm.batching.plan import Plan
from nanovllm.batching.request import Request


@dataclass
class SimulatedSequence:
    """A prompt of so many tokens that will generate so many; which ones, nobody asks."""

    request_id: int
    num_prompt_tokens: int
    num_to_generate: int
    index: int = 0
    output_token_ids: list[int] = field(default_factory=list)

    @property
    def prompt_token_ids(self) -> range:
        return range(self.num_prompt_tokens)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + len(self.output_token_ids)

    @property
    def finished(self) -> bool:
        return len(self.output_token_ids) >= self.num_to_generate

    def append(self) -> None:
        """Generate the next token."""
        self.output_token_ids.append(len(self.output_token_ids))


class CountingStore:
    """Room for so many tokens, shared by all requests: a pool of places without K and V.

    It takes a place only when a token needs one, as lab 05's paged store will; so it may run
    out while requests run, which a SlotStore cannot.
    """

    block_size = 1

    def __init__(self, total_tokens: int) -> None:
        self.total_tokens = total_tokens
        self.reserved: dict[Request, int] = {}  # places by request
        self.free_tokens = total_tokens

    def fits(self, num_tokens: int) -> bool:
        return num_tokens <= self.total_tokens

    def block_ids(self, request: Request) -> range:
        """One for each place that the request has; they are numbered for it alone."""
        return range(self.reserved[request])

    def can_admit(self, request: Request) -> bool:
        return request.num_tokens <= self.free_tokens

    def admit(self, request: Request) -> int:
        require(request not in self.reserved, f"{request} is in the store already")
        self.reserved[request] = 0
        return 0

    def reserve(self, request: Request, num_tokens: int) -> bool:
        more = request.num_computed_tokens + num_tokens - self.reserved[request]
        if more > self.free_tokens:
            return False
        if more > 0:
            self.reserved[request] += more
            self.free_tokens -= more
        return True

    def commit(self, plan: Plan) -> None:
        pass

    def release(self, request: Request) -> None:
        self.free_tokens += self.reserved.pop(request)

    def suspend(self, request: Request) -> None:
        self.release(request)

    def forget(self, request: Request) -> None:
        pass

    def check(self, requests: Iterable[Request]) -> None:
        held = {request: self.reserved[request] for request in requests}
        require(held == self.reserved, "the store holds requests that nobody runs")
        require(
            self.free_tokens == self.total_tokens - sum(held.values()) >= 0,
            f"{self.free_tokens} of {self.total_tokens} places are free, {held} are taken",
        )
