"""The roofline of `nanovllm profile`: this machine's limits, measured; operations under them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table

from nanovllm.bench.limits import bytes_per_second, flops_per_second
from nanovllm.cli.errors import Refused
from nanovllm.performance.interval import Interval
from nanovllm.performance.profile import RooflinePoint, roofline_point

if TYPE_CHECKING:
    from torch.autograd.profiler_util import FunctionEvent

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
ELEMENTWISE = ("aten::mul", "aten::add", "aten::sub", "aten::div", "aten::silu", "aten::neg",
               "aten::_softmax", "aten::pow", "aten::rsqrt", "aten::mean")  # fmt: skip
ATTENTION = "aten::scaled_dot_product_attention"
SHOWN, SMALLEST = 10, 4096  # operations; bytes of one that is more than its call


def work_of(event: FunctionEvent, itemsize: int) -> tuple[int, int]:
    """FLOPs and bytes of an operation: of the products and sums in it; 0, 0 where it has none.

    Bytes are those of its tensors, each once, as if the caches had held nothing.
    """
    shapes: list[Any] = [shape for shape in event.input_shapes or () if shape]
    if event.name in PRODUCTS:
        *_, left, right = shapes  # of addmm: the bias comes first
        out = [*left[:-1], right[-1]]
        return int(event.flops or 0), itemsize * sum(map(prod, [*shapes, out]))
    if event.name in ELEMENTWISE and shapes:
        largest = max(map(prod, shapes))
        return int(event.flops or largest), itemsize * (sum(map(prod, shapes)) + largest)
    if event.name == ATTENTION:
        query, key, value = shapes[:3]
        return 4 * prod(query) * key[-2], itemsize * (2 * prod(query) + prod(key) + prod(value))
    parts = [work_of(child, itemsize) for child in event.cpu_children]
    return sum(flops for flops, _ in parts), sum(moved for _, moved in parts)


def summed(operations: Iterable[Interval]) -> Iterator[Interval]:
    """One interval for each name, as long as all of that name together; the longest first."""
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0, 0])
    for one in operations:
        if one.bytes:
            found = totals[one.name]
            found[0], found[1], found[2] = (
                found[0] + one.seconds, found[1] + one.flops, found[2] + one.bytes
            )  # fmt: skip
    for name, (seconds, flops, moved) in sorted(totals.items(), key=lambda item: -item[1][0]):
        yield Interval(name, 0.0, seconds, flops=int(flops), bytes=int(moved))


def show(operations: Sequence[Interval], dtype: torch.dtype, picture: Path | None) -> None:
    """The table of operations under this machine's roof, and the picture."""
    peak, bandwidth = flops_per_second(dtype), bytes_per_second()
    large = [one for one in operations if one.bytes >= SMALLEST]
    points = {one.name: roofline_point(one, peak, bandwidth) for one in summed(large)}
    table = Table(
        title=f"roofline, measured just now: {peak / 1e9:.0f} GFLOP/s ({str(dtype)[6:]}), "
        f"{bandwidth / 1e9:.1f} GB/s",
        caption="above 100 %: what it reads was in a cache; left out: what has no known bytes",
    )
    table.add_column("operation")
    for column in ("FLOP a byte", "GFLOP/s", "GB/s", "of the roof", "limit"):
        table.add_column(column, justify="right")
    for name, point in list(points.items())[:SHOWN]:
        speed = point.reached / point.intensity
        table.add_row(name, f"{point.intensity:.2f}", f"{point.reached / 1e9:.2f}",
                      f"{speed / 1e9:.2f}", f"{point.share:.0%}", point.limit)  # fmt: skip
    Console().print(table)
    if picture is not None:
        try:
            draw(points, peak, bandwidth, picture)
        except ModuleNotFoundError:
            raise Refused(
                "--roofline needs matplotlib: `python -m pip install matplotlib`."
            ) from None


def draw(points: dict[str, RooflinePoint], peak: float, bandwidth: float, picture: Path) -> None:
    """The roof, and each operation as a point under it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")
    ridge = peak / bandwidth
    ends = [min([0.05, *(p.intensity for p in points.values())]) / 2, ridge * 8]
    axis.plot([ends[0], ridge, ends[1]], [ends[0] * bandwidth / 1e9, peak / 1e9, peak / 1e9],
              color="0.3", lw=2)  # fmt: skip
    axis.text(ridge * 8, peak / 1e9 * 1.15, f"{peak / 1e9:.0f} GFLOP/s", ha="right")
    axis.text(ends[0], ends[0] * bandwidth / 1e9 * 8, f"{bandwidth / 1e9:.1f} GB/s")
    for number, (name, point) in enumerate(list(points.items())[:SHOWN]):
        label = f"{name.removeprefix('aten::')}, {point.share:.0%}"
        place = point.intensity, point.reached / 1e9
        axis.scatter(*place, s=45, color=f"C{number}", label=label, zorder=3)
    axis.set(xscale="log", yscale="log", xlabel="FLOP for each byte moved", ylabel="GFLOP/s")
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), title="of the roof")
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=150)
    pyplot.close(figure)
