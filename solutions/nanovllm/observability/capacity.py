"""From a trace to replicas and their settings."""

### BEGIN SOLUTION
from math import ceil

from nanovllm.batching.budget import FixedBudget
from nanovllm.batching.errors import RequestTooLargeError
from nanovllm.batching.events import Preempted, Stepped
from nanovllm.batching.policies import FirstComeFirstServed
from nanovllm.batching.scheduler import Scheduler
from nanovllm.batching.simulated import CountingStore
from nanovllm.batching.simulator import Run, simulate
from nanovllm.generation.latency import ManualClock, percentile
from nanovllm.observability.capacity_interface import (
    Bill,
    Measured,
    Plan,
    Replica,
    Settings,
    Slo,
)
from nanovllm.observability.cards import Card, ModelSize, step_cost
from nanovllm.observability.errors import CapacityError
from nanovllm.observability.trace import Trace, arrivals

HOURS_A_MONTH = 730


def means(trace: Trace) -> tuple[float, float]:
    """Mean prompt and output."""
    if not trace:
        raise CapacityError("The trace is empty; a plan needs requests.")
    prompt = sum(r.prompt for r in trace) / len(trace)
    return prompt, sum(max(r.output, 1) for r in trace) / len(trace)


def seconds_of(trace: Trace) -> float:
    """From the first arrival to the last."""
    times = [request.time for request in trace]
    return max(times, default=0.0) - min(times, default=0.0)


def mean_replicas(trace: Trace, replica: Replica, utilisation: float = 0.7) -> int:
    """Work over seconds."""
    if not 0 < utilisation < 1:
        raise CapacityError(f"utilisation must be above 0 and below 1, got {utilisation}.")
    if seconds_of(trace) == 0:
        return 1
    prompt, output = means(trace)
    cost = replica.cost
    rows = max(1.0, min(replica.max_num_seqs, replica.kv_tokens / (prompt + output)))
    reading = prompt * (cost.per_token + cost.base / replica.max_num_batched_tokens)
    token = cost.per_token + cost.base / rows + cost.per_place * (prompt + output / 2)
    work = len(trace) * (reading + (output - 1) * token)
    return max(1, ceil(work / seconds_of(trace) / utilisation))


def run_one(trace: Trace, replica: Replica) -> Run:
    """One replica's share of a trace."""
    scheduler = Scheduler(
        CountingStore(replica.kv_tokens),
        FirstComeFirstServed(),
        FixedBudget(replica.max_num_batched_tokens),
        max_num_seqs=replica.max_num_seqs,
        clock=ManualClock(),
    )
    try:
        return simulate(arrivals(trace), scheduler, replica.cost)
    except RequestTooLargeError as error:
        raise CapacityError(
            f"A request of the trace does not fit into a replica: {error}"
        ) from None


def simulate_replicas(trace: Trace, replica: Replica, replicas: int) -> Measured:
    """Split in turn, simulate, and pool the requests before any percentile."""
    if replicas < 1:
        raise CapacityError(f"replicas must be at least 1, got {replicas}.")
    means(trace)
    ordered = sorted(trace, key=lambda request: request.time)
    runs = [run_one(ordered[i::replicas], replica) for i in range(min(replicas, len(ordered)))]
    lines = [line for run in runs for line in run.timelines]
    tpots = [line.tpot for line in lines if line.tpot is not None]
    steps = [event for run in runs for event in run.events if isinstance(event, Stepped)]
    computing = sum(step.time - step.started for step in steps if step.chunks)
    span = max(line.token_times[-1] for line in lines) - ordered[0].time
    return Measured(
        replicas,
        percentile([line.ttft for line in lines], 99),
        percentile(tpots, 99) if tpots else 0.0,
        computing / span / replicas if span else 0.0,
        sum(isinstance(event, Preempted) for run in runs for event in run.events),
    )


def plan_replicas(trace: Trace, replica: Replica, slo: Slo, most: int = 64) -> Plan:
    """Double until the objective is kept, then halve the interval."""
    if most < 1:
        raise CapacityError(f"most must be at least 1, got {most}.")
    tried: dict[int, Measured] = {}

    def keeps(replicas: int) -> bool:
        if replicas not in tried:
            tried[replicas] = simulate_replicas(trace, replica, replicas)
        return tried[replicas].keeps(slo)

    by_mean = mean_replicas(trace, replica)
    low, high = 0, 1  # `low` do not keep it
    while not keeps(high):
        if high == most:
            reached = tried[most]
            raise CapacityError(
                f"{most} replicas reach a TTFT of {reached.ttft_p99:.3g} s and a TPOT of "
                f"{reached.tpot_p99:.3g} s (p99), above {slo.ttft_p99:g} and {slo.tpot_p99:g}: "
                "allow more replicas, other settings, or a weaker objective."
            )
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    fewer = tried.get(high - 1)
    why = (
        f"{high - 1} would have a TTFT of {fewer.ttft_p99:.3g} s and a TPOT of "
        f"{fewer.tpot_p99:.3g} s (p99)"
        if fewer
        else "fewer there are not"
    )
    return Plan(high, by_mean, tried, f"{high} replicas keep the objective; {why}.")


def choose_settings(
    trace: Trace, model: ModelSize, card: Card, slo: Slo, headroom: float = 0.1
) -> Settings:
    """Memory, then blocks, then the step, then the batch."""
    prompt, output = means(trace)
    mean, cost = prompt + output, step_cost(model, card)
    longest = max(r.prompt + max(r.output, 1) for r in trace) - 1
    room = card.memory * (1 - headroom) - model.weight_bytes
    places = max(0, int(room // model.kv_bytes))
    if places < longest:
        raise CapacityError(
            f"{model.name} leaves room for {places:,} tokens on {card.name}, but the trace has a "
            f"request that needs {longest:,}: take a larger card, more of them, or fewer bits."
        )
    size = max((p for p in (8, 16, 32, 64, 128) if p / 2 <= 0.01 * mean), default=8)
    budgets = [2**power for power in range(7, 15)]
    fast = [b for b in budgets if cost.seconds(b, places) <= slo.tpot_p99]
    budget = max(fast, default=budgets[0])
    seqs = max(1, min(int(places / mean), 1024, budget))
    step = cost.seconds(budget, places)
    return Settings(
        places,
        size,
        seqs,
        budget,
        headroom,
        {
            "kv_tokens": f"{card.memory / 1e9:g} GB less {headroom:.0%} and "
            f"{model.weight_bytes / 1e9:.1f} GB of weights hold {places:,} tokens.",
            "block_size": f"Half a block is {size / 2 / mean:.1%} of a mean request ({mean:,.0f}).",
            "max_num_seqs": f"{places:,} places hold {places / mean:,.0f} requests of {mean:,.0f}.",
            "max_num_batched_tokens": f"A full step of {budget} tokens takes {1000 * step:.1f} ms; "
            f"{1000 * slo.tpot_p99:g} ms are allowed.",
            "headroom": f"{headroom:.0%} of {card.memory / 1e9:g} GB stay free for activations.",
        },
    )


def bill(trace: Trace, replicas: int, dollars_an_hour: float) -> Bill:
    """The price of replicas, spread over the tokens of the trace."""
    tokens = sum(r.prompt + r.output for r in trace)
    an_hour = replicas * dollars_an_hour
    seconds = seconds_of(trace)
    if not tokens or not seconds:
        raise CapacityError("The trace has no tokens a second; a price a token needs some.")
    return Bill(an_hour, HOURS_A_MONTH * an_hour, an_hour / 3600 * seconds / tokens * 1e6)


### END SOLUTION
