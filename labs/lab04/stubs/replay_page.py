"""A replay as a page: a row a request, times to scale, and below what each step held."""

from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanovllm.batching.replay import Key, Replay

_WIDTH, _LEFT, _TOP, _ROW, _STRIP = 1000, 110, 10, 16, 40
_COLOURS = {
    "prompt": ("#d97706", "prompt"),
    "decode": ("#2563eb", "decode"),
    "again": ("#9333ea", "computed again after preemption"),
    "wait": ("#d4d4d8", "waits"),
    "hit": ("#16a34a", "began behind tokens found in the cache"),
}
_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 24px; background: #fff; color: #222 }
h1 { font-size: 22px } p { line-height: 1.7; max-width: 1130px }
svg { background: #fafafa; border: 1px solid #ddd }
text { font: 11px system-ui, sans-serif; fill: #444 }
.mark { fill: #dc2626; font-weight: bold } .axis { stroke: #e2e8f0 }
.key { display: inline-block; width: 12px; height: 12px; margin: 0 4px 0 14px }
""".strip()


def page(title: str, replay: "Replay") -> str:
    """The whole run as one self-contained page; hover over a chunk or a bar for its numbers."""
    start = replay.steps[0].started if replay.steps else 0.0
    end = replay.steps[-1].time if replay.steps else 1.0
    scale = _WIDTH / max(end - start, 1e-9)

    def x(moment: float) -> float:
        return _LEFT + (moment - start) * scale

    bottom = _TOP + len(replay.requests) * _ROW
    strips = _strips(replay, bottom + 14, x)
    height = bottom + 14 + 3 * _STRIP + 24
    shapes = [*_axis(end - start, height), *_rows(replay, x), *strips]
    legend = "".join(
        f'<span class="key" style="background:{colour}"></span>{what}'
        for colour, what in _COLOURS.values()
    )
    colours = " ".join(f".{name} {{ fill: {colour} }}" for name, (colour, _) in _COLOURS.items())
    facts = f"{len(replay.steps)} steps, {len(replay.requests)} requests, {end - start:.4g} s"
    if replay.hits:
        facts += f", {sum(replay.hits.values())} tokens found in the cache"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE} {colours}</style></head><body><h1>{escape(title)}</h1>"
        f"<p>{facts}.<br>{legend}, <b>x</b> preempted, <b>!</b> failed, <b>-</b> aborted</p>"
        f'<svg width="{_WIDTH + _LEFT + 20}" height="{height}">{"".join(shapes)}</svg>'
        "</body></html>\n"
    )


def _axis(seconds: float, height: int) -> list[str]:
    """Ten marks of time from top to bottom."""
    shapes = []
    for tenth in range(11):
        at = _LEFT + _WIDTH * tenth / 10
        shapes.append(f'<line class="axis" x1="{at}" x2="{at}" y1="0" y2="{height - 18}"/>')
        label = f"{seconds * tenth / 10:.3g}" + " s" * (tenth == 0)
        shapes.append(f'<text x="{at}" y="{height - 5}" text-anchor="middle">{label}</text>')
    return shapes


def _rows(replay: "Replay", x: Callable[[float], float]) -> list[str]:
    shapes: list[str] = []
    for line, key in enumerate(replay.requests):
        top = _TOP + line * _ROW
        name = f"request {key[0]}" + (f".{key[1]}" if key[1] else "")
        shapes.append(f'<text x="4" y="{top + 11}">{name}</text>')
        shapes += _row(replay, key, top, x)
    return shapes


def _row(replay: "Replay", key: "Key", top: int, x: Callable[[float], float]) -> list[str]:
    shapes, computed = [], 0
    row = replay.row(key)
    for number, step in enumerate(replay.steps):
        left, width = x(step.started), x(step.time) - x(step.started)
        chunk = replay.chunks(number).get(key)
        place = f'x="{left:.2f}" y="{top + 1}" width="{max(width - 0.4, 0.4):.2f}" height="13"'
        if chunk is None:
            cell = row[number] if number < len(row) else " "
            if cell in ".x":
                shapes.append(f'<rect class="wait" {place}/>')
            if cell in "x!-":
                shapes.append(f'<text class="mark" x="{left:.2f}" y="{top + 11}">{cell}</text>')
            continue
        end = chunk.start + chunk.length
        kind = "again" if chunk.start < computed else "decode" if chunk.length == 1 else "prompt"
        computed = max(computed, end)
        tip = f"step {number}: tokens {chunk.start} to {end - 1} ({chunk.length})"
        hit = replay.hits.get((key, number))
        tip += f", {hit} before them found in the cache" if hit else ""
        shapes.append(f'<rect class="{kind}" {place}><title>{tip}</title></rect>')
        if hit:
            shapes.append(f'<rect class="hit" x="{left:.2f}" y="{top}" width="5" height="15"/>')
    return shapes


def _strips(replay: "Replay", top: int, x: Callable[[float], float]) -> list[str]:
    """Below the rows, by step: tokens computed, requests in the engine, places taken."""
    steps = replay.steps
    most_free = max((step.free_tokens for step in steps), default=0)
    strips = (
        ("tokens", [sum(c.length for c in step.chunks) for step in steps], _COLOURS["prompt"][0]),
        ("requests", [step.running + step.waiting for step in steps], _COLOURS["decode"][0]),
        ("KV places", [most_free - step.free_tokens for step in steps], "#0d9488"),
    )
    shapes = []
    for strip, (name, values, colour) in enumerate(strips):
        base, most = top + 30 + strip * _STRIP, max([*values, 1])
        shapes.append(f'<text x="4" y="{base - 10}">{name}</text>')
        shapes.append(f'<text x="4" y="{base + 2}">max {most:,}</text>')
        for step, value in zip(steps, values, strict=True):
            height = 28 * value / most
            width = max(x(step.time) - x(step.started) - 0.4, 0.4)
            text = f"{value} {name}; {step.running} run, {step.waiting} wait, "
            text += f"{step.free_tokens} places free"
            shapes.append(
                f'<rect fill="{colour}" x="{x(step.started):.2f}" y="{base - height:.2f}" '
                f'width="{width:.2f}" height="{height:.2f}"><title>{text}</title></rect>'
            )
    return shapes
