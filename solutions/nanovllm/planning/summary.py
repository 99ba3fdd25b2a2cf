"""A trace in figures."""

from statistics import mean
from typing import NamedTuple

from nanovllm.generation.latency import percentile
from nanovllm.observability.analysis import (
    dispersion,
    gaps,
    peak_to_mean,
    prefix_hits,
    session_growth,
    top_share,
    variation,
)
from nanovllm.observability.errors import TraceError
from nanovllm.observability.trace import Trace

CACHES = (1_000, 10_000, 50_000, None)  # blocks


class Figure(NamedTuple):
    """A figure of a trace, and what it is good for."""

    name: str
    value: str
    note: str = ""


def times_of(trace: Trace) -> list[float]:
    """Arrivals in order, from 0 on. Raises TraceError for a trace of fewer than two requests."""
    if len(trace) < 2:
        raise TraceError(f"The trace has {len(trace)} requests; it takes two to tell anything.")
    times = sorted(request.time for request in trace)
    return [time - times[0] for time in times]


def summarize(trace: Trace) -> list[Figure]:
    """Its figures, in the order in which they are read. Raises TraceError."""
    times = times_of(trace)
    seconds = times[-1]
    found = [
        Figure("requests", f"{len(trace):,}", f"in {seconds:,.0f} s, {_rate(len(trace), seconds)}"),
        _lengths("prompt tokens", [r.prompt for r in trace]),
        _lengths("answer tokens", [r.output for r in trace]),
    ]
    between = gaps(times)
    if seconds:
        short = sum(gap < 0.01 for gap in between) / len(between)
        found += [
            Figure("gaps, CV", f"{variation(between):.2f}", "1 for Poisson arrivals; more: bursts"),
            Figure("gaps under 10 ms", f"{short:.1%}"),
            Figure(
                "peak to mean",
                f"{peak_to_mean(times, 1.0):.1f}, {peak_to_mean(times, 60.0):.1f}",
                "of a second, of a minute",
            ),
            Figure("dispersion in 1 s", f"{dispersion(times, 1.0):.1f}", "1 for Poisson arrivals"),
        ]
    sums = [float(r.prompt + r.output) for r in trace]
    if any(sums):
        found.append(Figure("top 1 % of requests", f"{top_share(sums, 0.01):.1%}", "of all tokens"))
    found.append(Figure("failed", f"{sum(not r.ok for r in trace) / len(trace):.1%}"))
    return [*found, *_sessions(trace), *_hits(trace)]


def _rate(requests: int, seconds: float) -> str:
    return f"{requests / seconds:.2f} a second" if seconds else "all at once"


def _lengths(name: str, lengths: list[int]) -> Figure:
    p50, p99 = (percentile(lengths, q) for q in (50, 99))
    value = f"{p50:,.0f}, {mean(lengths):,.0f}, {p99:,.0f}"
    return Figure(name, value, f"median, mean, p99; the longest has {max(lengths):,}")


def _sessions(trace: Trace) -> list[Figure]:
    growth = session_growth(sorted(trace, key=lambda request: request.time))
    if not growth:
        return []
    sessions = len({request.session for request in trace} - {""})
    shown = ", ".join(f"{prompt:,.0f}" for prompt in growth[:4])
    return [Figure("sessions", f"{sessions:,}", f"prompts of their turns, mean: {shown}")]


def _hits(trace: Trace) -> list[Figure]:
    """How many blocks of prompts a prefix cache would have."""
    if not any(request.blocks for request in trace):
        return [Figure("prefix hits", "unknown", "the trace does not name blocks")]
    ordered = sorted(trace, key=lambda request: request.time)

    def share(blocks: int | None) -> str:
        hits, everything = prefix_hits(ordered, blocks)
        return f"{hits / everything:.1%}"

    names = {size: f"{size:,} blocks" if size else "all kept" for size in CACHES}
    return [Figure(f"prefix hits, {name}", share(size)) for size, name in names.items()]
