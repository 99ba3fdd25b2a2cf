"""`nanovllm bench serve` from its options to its tables, its record and its plot."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict

from nanovllm.bench import serve_plot, tables
from nanovllm.bench.exchange import run
from nanovllm.bench.record import record
from nanovllm.bench.runs import Outcome
from nanovllm.bench.serve_process import own_server
from nanovllm.bench.serving import Load, as_rows, measure, summary
from nanovllm.serving.load import Record


def run_serve(
    load: Load,
    done: Callable[[Record], None],
    *,
    base_url: str | None,
    server: list[str],
    model: str | None,
    api_key: str | None,
) -> Outcome:
    """Measure the server at base_url, or one of our own with these arguments.

    done: called with each record. model: the name to ask for; the server's own if None.
    """
    with nullcontext((base_url, 0)) if base_url else own_server(server) as (address, _):
        records, guesses = run(measure(address, load, done, model=model, api_key=api_key))
    found = summary(records, load.slo) | {"mean_acceptance_length": guesses.mean_length}
    if load.concurrency is not None:
        title = f"closed loop, {load.concurrency} at once"
    else:
        title = f"open loop, {load.rate:g} requests/s"
    title = f"{load.size}, {title}"
    settings = asdict(load) | {"server": "given" if base_url else " ".join(server)}
    settings["rate"] = None if load.concurrency is not None else str(load.rate)
    return Outcome(
        record("serve", settings, found | {"records": as_rows(records)}),
        tables.serving(title, found),
        lambda path: serve_plot.plot(records, load.slo, title, path),
    )
