"""The model card, the loss plot and the recall plot, from measured numbers alone."""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from .checkpoint import HERE, SHAPES
from .recipe import RECIPES

FLOOR = 0.95
COLOURS = {"target": "#2b6cb0", "draft": "#dd6b20"}


def plot_loss() -> None:
    """Write loss.png from the training log."""
    log = json.loads((HERE / "training_log.json").read_text())
    figure, axes = plt.subplots(figsize=(7, 3.6), dpi=110)
    for name, entry in log.items():
        tokens = [tokens / 1e6 for _, tokens, _ in entry["loss"]]
        axes.plot(tokens, [loss for _, _, loss in entry["loss"]], label=name, color=COLOURS[name])
        for seam in _seams(name):
            axes.axvline(seam / 1e6, color=COLOURS[name], linewidth=0.6, linestyle=":")
    axes.set(xlabel="tokens seen, millions", ylabel="weighted training loss", yscale="log")
    axes.set_title("Training loss; dotted lines: the next stage of the recipe", fontsize=10)
    axes.legend(frameon=False)
    _finish(figure, axes, HERE / "loss.png")


def _seams(name: str) -> list[int]:
    seams, seen = [], 0
    for stage in RECIPES[name].stages[:-1]:
        seen += stage.steps * stage.length * stage.rows
        seams.append(seen)
    return seams


def plot_recall(measured: dict) -> None:
    """Write recall.png: the share of codes recalled against their distance."""
    figure, axes = plt.subplots(figsize=(7, 3.6), dpi=110)
    for name in SHAPES:
        for key, style in (("recall", "-o"), ("recall_chat", "--s")):
            rows = measured[name][key]
            middle = [(row["from"] + row["to"]) / 2 for row in rows]
            label = f"{name}, {'chat' if 'chat' in key else 'plain text'}"
            axes.plot(
                middle,
                [100 * row["right"] for row in rows],
                style,
                label=label,
                color=COLOURS[name],
                markersize=4,
                linewidth=1.2,
            )
    axes.axhline(100 * FLOOR, color="grey", linewidth=0.8, linestyle=":")
    axes.set(
        xlabel="distance from code to answer, tokens",
        ylabel="recalled exactly, %",
        ylim=(0, 103),
        xlim=(0, 1024),
    )
    axes.legend(frameon=False, fontsize=8)
    _finish(figure, axes, HERE / "recall.png")


def _finish(figure, axes, path: Path) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def shortfalls(measured: dict) -> list[str]:
    """Return in words where the target misses the floor of 95 %."""
    target = measured["target"]
    lines = [
        f"{name.replace('_', ' ')}: {_percent(target[name])}"
        for name in ("facts_chat", "facts_plain")
        if target[name] < FLOOR
    ]
    for key in ("recall", "recall_chat"):
        lines += [
            f"{key.replace('_', ' in ')}, {row['from']}-{row['to']} tokens: "
            + _percent(row["right"])
            for row in target[key]
            if row["right"] < FLOOR
        ]
    return lines


def _shape_rows() -> str:
    rows = []
    for name, shape in SHAPES.items():
        rows.append(
            f"| `{name}` | {shape.E} | {shape.L} | {shape.H} | {shape.G} | {shape.D} "
            f"| {shape.mlp} |"
        )
    return "\n".join(rows)


def _figure_rows(measured: dict) -> str:
    labels = {
        "held_out_loss": "loss per token on unseen text (nats)",
        "facts_chat": "facts, asked in a chat",
        "facts_rephrased": "facts, asked in other words",
        "facts_plain": "facts, as a sentence to complete",
        "sums_trained": "sums, of those allowed in training",
        "sums_held_out": "sums never seen in training",
        "recall_made_up_names": "recall, made-up names",
        "recall_of_ten": "recall, one of up to ten codes",
    }
    rows = [
        f"| parameters | {measured['target']['parameters']:,} "
        f"| {measured['draft']['parameters']:,} |",
        f"| weights, MB | {measured['target']['bytes'] / 1e6:.2f} "
        f"| {measured['draft']['bytes'] / 1e6:.2f} |",
    ]
    for key, label in labels.items():
        values = [measured[name][key] for name in SHAPES]
        shown = [f"{value:.3f}" if "loss" in key else _percent(value) for value in values]
        rows.append(f"| {label} | {shown[0]} | {shown[1]} |")
    return "\n".join(rows)


def _recall_rows(measured: dict) -> str:
    rows = []
    for index, row in enumerate(measured["target"]["recall"]):
        shares = [
            _percent(measured[name][key][index]["right"])
            for name in SHAPES
            for key in ("recall", "recall_chat", "recall_among_others")
        ]
        rows.append(f"| {row['from']}-{row['to']} | " + " | ".join(shares) + " |")
    return "\n".join(rows)


def _recipe_rows() -> str:
    rows = []
    for name, recipe in RECIPES.items():
        for stage in recipe.stages:
            tokens = stage.steps * stage.length * stage.rows / 1e6
            rows.append(
                f"| `{name}` | {stage.steps} | {stage.length} | {stage.rows} | {tokens:.1f} M |"
            )
    return "\n".join(rows)


def write_card(measured: dict) -> None:
    """Write README.md and the plots."""
    plot_loss()
    plot_recall(measured)
    missed = shortfalls(measured)
    verdict = (
        "The floor of 95 % on facts and on recall at every distance is met by the target."
        if not missed
        else "The target misses the floor of 95 % here:\n\n" + "\n".join(f"- {m}" for m in missed)
    )
    samples = "\n\n".join(
        f"**{prompt.split('user')[-1].split('<|im_end|>')[0].strip()}**\n\n> "
        + text.strip().replace("\n", "\n> ")
        for prompt, text in measured["samples"].items()
    )
    counts = {key: measured["target"][key][0]["questions"] for key in ("recall", "recall_chat")}
    card = (
        (HERE / "card_template.md")
        .read_text()
        .format(
            shapes=_shape_rows(),
            figures=_figure_rows(measured),
            recall=_recall_rows(measured),
            recipe=_recipe_rows(),
            verdict=verdict,
            samples=samples,
            plain_count=counts["recall"],
            chat_count=counts["recall_chat"],
            agreement="\n".join(
                f"| {kind} | {_percent(share)} |" for kind, share in measured["agreement"].items()
            ),
        )
    )
    (HERE / "README.md").write_text(card)
