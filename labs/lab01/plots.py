"""The texts and the pictures of lab 01's notebook; each picture takes data and returns nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from grader.student.notebook import movable
from models.corpus import Mixture, document, plain

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SHADES = ("#cfe1f5", "#f6d8c6", "#d3ecd5", "#efd9ee")
SAMPLES = [
    "Once upon a time, Sofia was a frog. Wasn't she?",
    "Mia's code is 7342. 12 + 30 = 42.",
    "Es war einmal ein kleiner, müder Frosch.",
    "从前有一只小青蛙。",
    "for i in range(10):    print(i)",
]
# The first sentence of the Universal Declaration of Human Rights.
DECLARATION = {
    "English": "All human beings are born free and equal in dignity and rights.",
    "German": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "Spanish": "Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
    "Russian": "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "Chinese": "人人生而自由,在尊严和权利上一律平等。",
}
# Other sentences of it, to train on.
OTHERS = [
    "Everyone has the right to life, liberty and security of person.",
    "They are endowed with reason and conscience and should act towards one another.",
    "Jeder hat das Recht auf Leben, Freiheit und Sicherheit der Person.",
    "Sie sind mit Vernunft und Gewissen begabt und sollen einander begegnen.",
    "Todo individuo tiene derecho a la vida, a la libertad y a la seguridad.",
    "Dotados como están de razón y conciencia, deben comportarse fraternalmente.",
    "Каждый человек имеет право на жизнь, на свободу и на личную неприкосновенность.",
    "Они наделены разумом и совестью и должны поступать в отношении друг друга.",
    "Κάθε άτομο έχει δικαίωμα στη ζωή, την ελευθερία και την προσωπική του ασφάλεια.",
    "Είναι προικισμένοι με λογική και συνείδηση, και οφείλουν να συμπεριφέρονται.",
    "人人有权享有生命、自由和人身安全。任何人不得使为奴隶或奴役。",
    "他们赋有理性和良心,并应以兄弟关系的精神相对待。",
]


def stories(count: int, seed: int) -> list[str]:
    """Documents of the bundled model's corpus, without the marks of its conversations."""
    rng, texts = Random(seed), []
    for _ in range(count):
        text = plain(document(rng, Mixture()))
        for mark in MARKS:
            text = text.replace(mark, "")
        texts.append(text)
    return texts


def counts_before(texts: Sequence[str]) -> None:
    """The most frequent pairs of letters inside words, before anything is merged."""
    counts: dict[str, int] = {}
    for story in texts:
        for word in story.replace(" ", "\n ").split("\n"):
            for pair in itertools.pairwise(word):
                counts["".join(pair)] = counts.get("".join(pair), 0) + 1
    top = sorted(counts, key=lambda pair: -counts[pair])[:12]
    _, axes = plt.subplots(figsize=(6.5, 2.4))
    axes.bar([repr(pair) for pair in top], [counts[pair] for pair in top], color="C0")
    axes.set(ylabel="places", title="Pairs inside words, before the first merge")
    axes.grid(axis="x", visible=False)
    plt.show()


def _label(data: bytes) -> str:
    try:
        return data.decode().replace(" ", "\u2423").replace("\n", "\\n")
    except UnicodeDecodeError:
        return "".join(f"{byte:02x}" for byte in data)


def _width(label: str) -> float:
    return 0.62 * len(label) + 0.3


def _row(axes: Any, row: int, labels: Sequence[str], colours: Sequence[str]) -> float:
    """Draw one line of tokens; return where it ends."""
    left = 0.0
    for label, colour in zip(labels, colours, strict=True):
        width = _width(label)
        axes.add_patch(plt.Rectangle((left, -row - 0.4), width, 0.8, color=colour))
        place = {"ha": "center", "va": "center", "family": "monospace", "fontsize": 7.5}
        axes.text(left + width / 2, -row, label, **place)
        left += width + 0.08
    return left


def boundaries(tokenizer: Any, texts: Sequence[str], guess: float | None = None) -> None:
    """Where the tokens of each text begin and end; bytes of a part of a character in hex."""
    _, axes = plt.subplots(figsize=(9.5, 0.5 * len(texts) + 0.5))
    for row, text in enumerate(texts):
        ids = tokenizer.encode(text)
        labels = [_label(tokenizer.token_bytes(id)) for id in ids]
        end = _row(axes, row, labels, [SHADES[n % 4] for n in range(len(ids))])
        axes.text(end + 0.6, -row, f"{len(ids)} tokens", fontsize=8, va="center", color="#555")
    title = "Token boundaries of the bundled model"
    axes.set_title(title + (f"; your guess for Chinese: {guess:g}" if guess is not None else ""))
    axes.set(xlim=(0, 62), ylim=(-len(texts) + 0.4, 0.6))
    axes.axis("off")
    plt.show()


def questions(asked: Callable[[int], int], guess: float | None = None) -> None:
    """Questions for a rank against the length of a word, beside the loop over all pairs."""
    sizes = [10, 30, 100, 300, 1000, 3000]
    mine = [asked(size) for size in sizes]
    loop = [size * (size - 1) / 2 for size in sizes]
    _, axes = plt.subplots(figsize=(6, 3))
    axes.loglog(sizes, loop, "o--", color="C1", label="a loop over all pairs, at most")
    axes.loglog(sizes, mine, "o-", color="C0", label="your merge_word")
    if guess:
        axes.plot(2000, guess, "k*", ms=10, label="your guess for 2,000")
    axes.set(xlabel="letters in one word", ylabel="questions for a rank")
    axes.set_title("A word without a space")
    axes.legend(frameon=False)
    plt.show()
    print(f"100,000 letters: up to {100_000 * 99_999 // 2:,} questions, or {mine[-1] * 33:,} yours")


def premiums(premium: Callable[..., float], tokenizers: Mapping[str, Any]) -> None:
    """How many times as many tokens as in English a sentence costs, by language."""
    place = np.arange(len(DECLARATION))
    _, axes = plt.subplots(figsize=(7, 3))
    for side, (name, tokenizer) in enumerate(tokenizers.items()):
        rates = [premium(tokenizer, text, DECLARATION["English"]) for text in DECLARATION.values()]
        bars = axes.bar(place + 0.4 * side - 0.2, rates, 0.38, label=name, color=f"C{1 - side}")
        axes.bar_label(bars, fmt="%.1f", fontsize=7)
    axes.axhline(1, color="#555", lw=0.8)
    axes.margins(y=0.12)
    axes.set_xticks(place, list(DECLARATION))
    axes.set(ylabel="times the English tokens", title="The price of one and the same sentence")
    axes.grid(axis="x", visible=False)
    axes.legend(frameon=False)
    plt.show()


def streamed(tokens: Sequence[bytes], alone: Sequence[str], pieces: Sequence[str]) -> None:
    """A stream token by token: its bytes, each decoded alone, and what your stream returns."""
    figure, axes = plt.subplots(figsize=(9.5, 1.9))
    rows = {"token": [_label(t) for t in tokens], "alone": alone, "your stream": pieces}
    for row, (name, texts) in enumerate(rows.items()):
        axes.text(-0.3, -row, name, ha="right", va="center", fontsize=8)
        for column, text in enumerate(texts):
            bad = "\ufffd" in text and name != "token"
            colour = "#f3b6ab" if bad else "#eeeeee" if not text else SHADES[0]
            axes.add_patch(plt.Rectangle((column, -row - 0.4), 0.92, 0.8, color=colour))
            shown = "?" * len(text) if bad else _label(text.encode())
            axes.text(column + 0.46, -row, shown, ha="center", va="center", fontsize=7)
    axes.set(xlim=(-2.5, len(tokens)), ylim=(-2.6, 0.6))
    axes.set_title("Red: a reader sees broken characters. Grey: nothing yet", fontsize=9)
    axes.axis("off")
    plt.show()
    plt.close(figure)


def turns(tokenizer: Any, encoded: Mapping[str, Sequence[int]], width: float = 78) -> None:
    """The tokens of conversations; orange: special tokens, which the model obeys."""
    lines: list[tuple[str, list[int]]] = []
    for name, ids in encoded.items():
        begun = list(ids).count(tokenizer.model.special_tokens["<|im_start|>"])
        lines.append((f"{name}: {begun} turns", []))
        end = 0.0
        for id in ids:
            step = _width(_turn_label(tokenizer, id)) + 0.08
            if end == 0 or end + step > width:
                lines.append(("", []))
                end = 0.0
            lines[-1][1].append(id)
            end += step
    _, axes = plt.subplots(figsize=(10.5, 0.36 * len(lines) + 0.4))
    for row, (title, ids) in enumerate(lines):
        axes.text(0, -row - 0.25, title, fontsize=9, va="center")
        colours = ["#e69f00" if id in tokenizer.special_ids else "#eeeeee" for id in ids]
        _row(axes, row, [_turn_label(tokenizer, id) for id in ids], colours)
    axes.set(xlim=(0, width), ylim=(-len(lines) + 0.4, 0.6))
    axes.set_title("Orange: control tokens, <|im_start|> and <|im_end|>", fontsize=9)
    axes.axis("off")
    plt.show()


def _turn_label(tokenizer: Any, id: int) -> str:
    label = _label(tokenizer.token_bytes(id))
    return label.strip("<|im_>") if id in tokenizer.special_ids else label


def lengths(sizes: Sequence[int], rates: Mapping[str, Sequence[float]]) -> None:
    """Bytes a token against the size of the vocabulary."""
    _, axes = plt.subplots(figsize=(6, 3))
    for number, (name, curve) in enumerate(rates.items()):
        axes.plot(sizes, curve, "o-", color=f"C{number}", label=name)
    axes.set(xlabel="vocabulary", ylabel="bytes a token", ylim=(0, None))
    axes.set_title("Longer tokens, up to a point")
    axes.legend(frameon=False)
    plt.show()


def explore(sizes: Sequence[int], rate: Sequence[float]) -> None:
    """Memory of embedding (orange) and KV cache (blue): move the text and the model."""
    vocabulary, rates = np.array(sizes), np.array(rate)

    def draw(axes: Any, kB: float, E: int) -> None:
        rows = vocabulary * E * 2 / 2**20
        cache = kB * 1000 / rates * 8 * E / 2**20
        best = int(np.argmin(rows + cache))
        least = (rows + cache)[best]
        axes.stackplot(vocabulary, rows / least, cache / least, colors=["#f0b48c", "#9cc1e8"])
        axes.plot(vocabulary[best], 1, "ko", ms=4)
        place = {"xytext": (0, 14), "textcoords": "offset points", "fontsize": 7, "ha": "center"}
        axes.annotate(f"{vocabulary[best]:,}: {least:.1f} MiB", (vocabulary[best], 1), **place)
        axes.set(xlabel="vocabulary", ylabel="memory, least = 1", ylim=(0, 3.2))
        axes.set_xticks([256, 1000, 1800])

    movable(draw, kB=[0.5, 1, 2, 4, 8, 16], E=[128, 256, 512, 1024])


def padding(batch: Any) -> None:
    """A padded batch: where tokens stand, and their positions."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 2.3), sharey=True)
    flat = {"aspect": "auto", "interpolation": "nearest"}
    axes[0].imshow(batch.mask, cmap="Blues", vmin=0, vmax=1.4, **flat)
    share = f"{batch.waste:.0%} of [N, S] = {list(batch.mask.shape)} is padding"
    axes[0].set(title=f"mask: {share}", ylabel="sequence")
    image = axes[1].imshow(batch.positions, cmap="viridis", **flat)
    axes[1].set(title="positions")
    figure.colorbar(image, ax=axes[1])
    for panel in axes:
        panel.grid(visible=False)
        panel.set_xlabel("column")
    plt.show()
