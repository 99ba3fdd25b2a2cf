"""A report as one HTML file that needs no other."""

from collections.abc import Iterable, Sequence
from html import escape

from nanovllm.observability.trace import Trace
from nanovllm.planning import plots
from nanovllm.planning.planner import Answer, Variant
from nanovllm.planning.summary import Figure

STYLE = """
:root { color-scheme: light; --ink: #0f172a; --dim: #64748b; --line: #e2e8f0; --card: #fff; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: #f8fafc;
  max-width: 1280px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 1.5rem; margin: 0 0 4px; } h2 { font-size: 1.1rem; margin: 32px 0 8px; }
p.says { font-size: 1.1rem; margin: 0 0 16px; } .dim { color: var(--dim); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr));
  gap: 16px; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 12px; } figure svg { width: 100%; height: auto; display: block; }
figcaption { font-weight: 600; font-size: .95rem; margin-bottom: 4px; }
.wide { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td, th { padding: 6px 12px; text-align: left; border-top: 1px solid var(--line);
  vertical-align: top; } tr:first-child > * { border-top: 0; }
th { font-weight: 600; } td.n, th.n { text-align: right; white-space: nowrap; }
tr.chosen { background: #eff6ff; font-weight: 600; }
@media (max-width: 600px) { td, th { padding: 5px 4px; font-size: .78rem; }
  th.n { white-space: normal; }
  table:not(.notes) :is(td, th) { padding: 5px 3px; font-size: .7rem; }
  .notes tr { display: flex; flex-wrap: wrap; }
  .notes tr > * { flex: 1; border-top: 0; } .notes tr { border-top: 1px solid var(--line); }
  .notes tr > :last-child { flex-basis: 100%; padding-top: 0; color: var(--dim); } }
"""
Cells = Sequence[str]


def page(title: str, says: str, parts: Iterable[str]) -> str:
    """The whole page."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        '</title><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f'<p class="says">{escape(says)}</p>{"".join(parts)}</body></html>\n'
    )


def section(title: str, *parts: str) -> str:
    """A heading and what stands below it."""
    return f"<h2>{escape(title)}</h2>{''.join(parts)}"


def table(head: Cells, rows: Iterable[Cells], numbers: range, chosen: int | None = None) -> str:
    """A table; columns of numbers stand to the right, and a last one of words below, if narrow."""

    def row(tag: str, cells: Cells, mark: str = "") -> str:
        places = (' class="n"' if i in numbers else "" for i in range(len(cells)))
        shown = (f"<{tag}{p}>{escape(c)}</{tag}>" for c, p in zip(cells, places, strict=True))
        return f"<tr{mark}>{''.join(shown)}</tr>"

    body = [row("td", c, ' class="chosen"' if i == chosen else "") for i, c in enumerate(rows)]
    notes = "" if len(head) - 1 in numbers else ' class="notes"'
    return f'<div class="wide"><table{notes}>{row("th", head)}{"".join(body)}</table></div>'


def pictures(*drawn: tuple[str, str]) -> str:
    """Captions and SVG, side by side where there is room."""
    made = (f"<figure><figcaption>{escape(c)}</figcaption>{s}</figure>" for c, s in drawn)
    return f'<div class="plots">{"".join(made)}</div>'


def of_trace(name: str, trace: Trace, figures: Sequence[Figure]) -> str:
    """The report of `nanovllm trace analyse`."""
    says = f"{figures[0].value} requests {figures[0].note}."
    return page(f"Trace {name}", says, [_pictures(trace), section("Figures", _figures(figures))])


def of_plan(name: str, answer: Answer, others: Sequence[Variant], figures: Sequence[Figure]) -> str:
    """The report of `nanovllm plan`."""
    asked, chosen = answer.asked, answer.plan.replicas
    says = (
        f"{answer.plan.reason} {asked.model.name} on {asked.card.name}, "
        f"${answer.bills[chosen].an_hour:,.2f} an hour."
    )
    tried = list(answer.bills)
    parts = [
        section(
            "Replicas",
            pictures(
                ("The first token of 99 in 100 requests", plots.svg(plots.replicas(answer))),
                ("Work", plots.svg(plots.load(answer))),
            ),
            '<p class="dim">$ a million: of tokens, those of prompts and answers together.</p>',
            table(PRICES, price_rows(answer), range(7), tried.index(chosen)),
        ),
        section("A replica", table(("setting", "value", "why"), setting_rows(answer), range(1, 2))),
    ]
    if others:
        rows = table(OTHERS, variant_rows(others), range(1, 4))
        parts.append(section("Under other assumptions", rows))
    parts.append(section(f"The trace: {name}", _pictures(asked.trace), _figures(figures)))
    return page("Capacity plan", says, parts)


PRICES = (
    "replicas",
    "TTFT p99",
    "TPOT p99",
    "busy",
    "$ an hour",
    "$ a month",
    "$ a million tokens",
)
OTHERS = ("assumption", "replicas", "$ an hour", "$ a million", "what it says")


def price_rows(answer: Answer) -> list[Cells]:
    """A row for each number of replicas that was simulated."""
    return [
        (
            str(number),
            f"{found.ttft_p99:,.2f} s",
            f"{1000 * found.tpot_p99:.1f} ms",
            f"{found.busy:.0%}",
            f"{cost.an_hour:,.2f}",
            f"{cost.a_month:,.0f}",
            f"{cost.a_million:,.2f}",
        )
        for number, cost in answer.bills.items()
        for found in [answer.plan.tried[number]]
    ]


def setting_rows(answer: Answer) -> list[Cells]:
    """A row for each parameter of a replica."""
    settings = answer.settings

    def shown(name: str) -> str:
        value = getattr(settings, name)
        return f"{value:.0%}" if name == "headroom" else f"{value:,}"

    return [(name, shown(name), why) for name, why in settings.reasons.items()]


def variant_rows(others: Iterable[Variant]) -> list[Cells]:
    """A row for each other assumption."""
    return [
        (v.name, str(v.replicas), f"{v.bill.an_hour:,.2f}", f"{v.bill.a_million:,.2f}", v.note)
        if v.bill
        else (v.name, "–", "–", "–", v.why)
        for v in others
    ]


def _pictures(trace: Trace) -> str:
    return pictures(
        ("Arrivals", plots.svg(plots.arrivals(trace))),
        ("Lengths", plots.svg(plots.lengths(trace))),
        ("Gaps between arrivals", plots.svg(plots.waits(trace))),
    )


def _figures(figures: Sequence[Figure]) -> str:
    return "<p></p>" + table(("figure", "value", ""), figures, range(1, 2))
