"""What a planner is asked, and what it answers; `capacity.py` starts empty (given).

The functions of `capacity.py`, whose contracts stand here:

- `mean_replicas(trace, replica, utilisation=0.7)`: replicas by mean values.
- `simulate_replicas(trace, replica, replicas)`: what so many replicas do with the trace.
- `plan_replicas(trace, replica, slo, most=64)`: the fewest replicas that keep the objective.
- `choose_settings(trace, model, card, slo, headroom=0.1)`: the parameters of a replica.
- `bill(trace, replicas, dollars_an_hour)`: what it costs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from nanovllm.batching.simulator import StepCost
from nanovllm.observability.cards import Card, ModelSize
from nanovllm.observability.trace import Trace


@dataclass(frozen=True)
class Slo:
    """Seconds that 99 of 100 requests keep: to the first token, and a token after it."""

    ttft_p99: float = 1.0
    tpot_p99: float = 0.05


@dataclass(frozen=True)
class Replica:
    """One engine: what its steps cost, and its limits."""

    cost: StepCost
    kv_tokens: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 1024


@dataclass(frozen=True)
class Measured:
    """What replicas did with a trace.

    ttft_p99, tpot_p99: percentiles over all requests of all replicas together, interpolated
    linearly, as lab 03's `percentile` and numpy do; a request of one token has no TPOT, and
    tpot_p99 is 0 if all are so. busy: of the time from the first arrival to the last token
    anywhere, the share in which a replica computes (a step without chunks does not), the mean over
    replicas. preemptions: of all replicas.
    """

    replicas: int
    ttft_p99: float
    tpot_p99: float
    busy: float
    preemptions: int

    def keeps(self, slo: Slo) -> bool:
        """Whether neither percentile is above the objective."""
        return self.ttft_p99 <= slo.ttft_p99 and self.tpot_p99 <= slo.tpot_p99


@dataclass(frozen=True)
class Plan:
    """How many replicas; what was measured on the way, by number of replicas; and why."""

    replicas: int
    by_mean: int
    tried: Mapping[int, Measured]
    reason: str


@dataclass(frozen=True)
class Settings:
    """The parameters of a replica; `reasons` has a sentence for each that a rule gives, by name."""

    kv_tokens: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    headroom: float
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bill:
    """Dollars; `a_million` of tokens, those of prompts and answers together."""

    an_hour: float
    a_month: float  # of 730 hours
    a_million: float


class Capacity(Protocol):
    """The functions of `capacity.py`.

    A request of a trace has at least one token of output: an output of 0 counts as 1, but not on
    the bill. With lab 04, it fits into a store of prompt + output - 1 tokens: nobody reads the K
    and V of its last token.
    """

    def mean_replicas(self, trace: Trace, replica: Replica, utilisation: float = 0.7) -> int:
        """Replicas by mean values: work over seconds, if each is to be busy for `utilisation`.

        A request's work is that of its prompt, as tokens of a step of max_num_batched_tokens that
        are computed and read once, and that of its answer, as rows of steps in which
        max_num_seqs requests of mean length decode, or as many as the K/V store holds:

            prompt * (per_token + base / max_num_batched_tokens)
            + (output - 1) * (per_token + base / rows + per_place * (prompt + output / 2))

        with the trace's mean prompt and output, and rows = min(max_num_seqs, kv_tokens / (prompt +
        output)), at least 1. Seconds are from the first arrival to the last. At least 1; 1 for
        a trace of fewer than two moments.

        Raises:
            CapacityError: utilisation is not above 0 and below 1.
        """
        ...

    def simulate_replicas(self, trace: Trace, replica: Replica, replicas: int) -> Measured:
        """Lab 04's simulator, once for each replica; the i-th request in order goes to i mod n.

        The order is that of time; the trace given need not be in it.
        Each has a Scheduler, first come first served, on a CountingStore of `kv_tokens`, with a
        FixedBudget and a ManualClock of its own. A replica that gets nothing is never busy.

        Raises:
            CapacityError: replicas is below 1, the trace is empty, or a request does not fit into
                a replica at all.
        """
        ...

    def plan_replicas(self, trace: Trace, replica: Replica, slo: Slo, most: int = 64) -> Plan:
        """Replicas, of 1 to `most`, that keep the objective where one fewer does not.

        More replicas are not always better, so there may be several such numbers: any will do. It
        and one fewer have been measured and stand in `tried`, if it is not 1. What is more
        is up to you: simulate as few numbers as you can, at most 2 * log2(most) + 2. `reason`
        names the number of replicas, and of one fewer the percentile that misses the objective.

        Raises:
            CapacityError: not even `most` keep it; the message has both percentiles that they
                reach. Or `most` is below 1, or the trace is empty.
        """
        ...

    def choose_settings(
        self, trace: Trace, model: ModelSize, card: Card, slo: Slo, headroom: float = 0.1
    ) -> Settings:
        """Parameters of a replica for a trace; each has a reason (the headroom may have none).

        The figure behind each stands in its reason: GB of the card's memory (kv_tokens), tokens of
        the mean request (block_size), seconds or milliseconds of the full step
        (max_num_batched_tokens), requests of mean length that the store holds (max_num_seqs).

        kv_tokens: what the card's memory has room for beside weights and `headroom` of it.
        block_size: the largest of 8, 16, 32, 64, 128 whose waste, half a block a request, is at
        most 1 % of the mean request (prompt and output); 8 if none is. max_num_batched_tokens:
        the largest of 128, 256, ... 16,384 with which a full step, in which all of kv_tokens is
        read, takes no longer than slo.tpot_p99; 128 if none does. max_num_seqs: requests of
        mean length that the store holds, at least 1, at most 1,024 and at most
        max_num_batched_tokens.

        Raises:
            CapacityError: the weights leave no room for the longest request of the trace, or the
                trace is empty.
        """
        ...

    def bill(self, trace: Trace, replicas: int, dollars_an_hour: float) -> Bill:
        """What replicas at this price cost, and a million tokens at the trace's mean rate.

        Tokens are those of prompts and outputs as they are, over the time from the first arrival
        to the last.

        Raises:
            CapacityError: there is no such rate: no tokens, or all at one moment.
        """
        ...
