"""The second table of `nanovllm describe`: over how many cards a model is best cut, by lab 10."""

from typing import TYPE_CHECKING

from nanovllm.cli.errors import Refused

if TYPE_CHECKING:
    from rich.table import Table

    from nanovllm.model.config import ModelConfig


def table_of_cards(
    config: "ModelConfig", width: int, context: int, cards: int, card: str, link: str
) -> "Table":
    """The best layout of three kinds of steps, and how many times as fast as one card it is.

    Raises Refused: lab 10 is not here, or a card or link is not known.
    """
    from rich.table import Table

    from nanovllm.llm.lab_packages import why_missing

    why = why_missing("lab10")
    if why is not None:
        raise Refused(f"--cards needs lab10 (parallel): {why}")
    from nanovllm.parallel.costs import ParallelCost, best_layout
    from nanovllm.parallel.errors import ParallelError
    from nanovllm.parallel.hardware import CARDS, LINKS, Cluster

    for option, value, known in (("--card", card, CARDS), ("--link", link, LINKS)):
        if value not in known:
            raise Refused(f"{option} {value} is not known: use {', '.join(known)}.")
    cluster = Cluster(CARDS[card], LINKS[link], LINKS["100gbe"])
    table = Table(title=f"on up to {cards} x {card} with {link}, by lab 10's cost model")
    for column in ("step", "best layout", "takes", "one card takes"):
        table.add_column(column, justify="left" if column == "step" else "right")
    for name, step in {
        "one token, alone": (1, context, 1),
        "a token of 32 at once": (32, 32 * context, 32),
        f"first token after {context}": (context, context, 1),
    }.items():
        try:
            best = best_layout(config, cluster, cards, *step, dtype_bytes=width)
        except ParallelError:
            table.add_row(name, "has no room", "", "")
            continue
        alone = ParallelCost(config, cluster, dtype_bytes=width)
        takes = ParallelCost(config, cluster, best, width).seconds(*step)
        fits = alone.capacity() >= step[1]
        one = told(alone.seconds(*step)) if fits else "has no room"
        table.add_row(name, f"TP {best.tp} x PP {best.pp}", told(takes), one)
    return table


def told(seconds: float) -> str:
    """Seconds or milliseconds, in three digits.

    >>> told(0.01234), told(1.5)
    ('12.3 ms', '1.5 s')
    """
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
