"""The requests and the pictures of lab 08's notebook; each picture takes data, returns nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import TwoSlopeNorm
from matplotlib.patches import Patch, Rectangle

from grader.course.paths import MODELS
from grader.student.notebook import movable, style
from nanovllm.batching.simulator import StepCost
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.rows import SamplingRow
from nanovllm.speculative.costs import Costs
from nanovllm.speculative.guess_policy import FixedPolicy
from nanovllm.speculative.proposer import Guesses

if TYPE_CHECKING:
    from nanovllm.batching.request import Request
    from nanovllm.model.transformer import Transformer
    from nanovllm.speculative.replay import RecordedText, Replay
    from nanovllm.speculative.tree import TokenTree
    from nanovllm.tokenization.tokenizer import Tokenizer

style()
GUESSES, LONGEST = 4, 40
STOOD, FELL, DRAWN = "#bfe3d5", "#f4c7b0", "#dfe4ea"  # backgrounds of tokens
RECORD = Path(__file__).with_name("recorded.json")
CODES = "Mia's code is 7342. Tom's code is 1188. Ben's code is 1805. Anna's code is 5291."
TARGET, DRAFT = StepCost(0.004, 0.0002, 0.0), StepCost(0.0004, 0.0, 0.0)  # seconds
PLACE = (
    "Once upon a time there was a little girl named Zoe. She lived in a town near the hills. "
    "Zoe was afraid of"
)


def chat(text: str) -> str:
    """A question as the bundled model was trained on it."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


KINDS = {
    "stories": [
        "Once upon a time there was a little",
        "One day, Ben",
        *(chat(f"Tell me a story about a {animal}.") for animal in ("fox", "cat", "bear")),
    ],
    "facts": [
        *(f"The capital of {country} is" for country in ("France", "Italy", "Iraq")),
        "The young of a dog is a",
        chat("What is the capital of Spain?"),
    ],
    "sums": [
        *(f"{task} =" for task in ("12 + 7", "18 - 6", "5 + 9")),
        *(chat(f"What is {task}?") for task in ("12 plus 7", "14 minus 8")),
    ],
    "recall": [
        *(chat(f"{CODES} What is {name}'s code?") for name in ("Mia", "Tom", "Anna")),
        *(f"{CODES} What is {name}'s code?" for name in ("Ben", "Mia")),
    ],
    "lists": [
        "List: 4821, Mia, Paris, 1176, Ben, 9035. Again: 4821,",
        "List: Rome, 2857, Kira, 1402, green, 7094, Tom. Again: Rome,",
        "List: Anna, 3348, Spain, 9917, Madrid. Again: Anna,",
        "List: Madrid, Leo, four, 6120, Ben, red. Again: Madrid,",
        "List: Zoe, 7531, cold, Rome, Max, puppy, 2046. Again: Zoe,",
    ],
}


@dataclass(frozen=True)
class Models:
    """The bundled target and draft, and the tokenizer of both."""

    target: Transformer
    draft: Transformer
    tokenizer: Tokenizer

    def encode(self, text: str) -> list[int]:
        """Its tokens, those of the chat template among them."""
        return self.tokenizer.encode(text, allowed_special="all")

    def word(self, token_id: int) -> str:
        """A token to be shown: white space as a sign."""
        text = self.tokenizer.decode([token_id])
        return text.strip() or text.replace("\n", "⏎").replace(" ", "␣")


@dataclass(frozen=True)
class Turn:
    """What one step did for one request: the guesses, how many stood, and the tokens it got."""

    guesses: tuple[int, ...]
    accepted: int
    token_ids: tuple[int, ...]


def load() -> Models:
    """Both bundled models."""
    from nanovllm.model.loader import load_model
    from nanovllm.tokenization.tokenizer import Tokenizer

    torch.set_num_threads(1)  # small products: more threads only wait for one another
    tokenizer = Tokenizer.from_pretrained(MODELS / "target")
    return Models(load_model(MODELS / "target"), load_model(MODELS / "draft"), tokenizer)


def drafter(models: Models) -> Any:
    """Your draft model, with a store of its own."""
    from nanovllm.batching.engine import Engine
    from nanovllm.paging.store import PagedStore
    from nanovllm.speculative.draft_model import DraftModel

    return DraftModel(Engine(models.draft, store=PagedStore(models.draft.config, 256)))


class _Noted:
    """A proposer whose last guesses are kept."""

    def __init__(self, proposer: Any) -> None:
        self.proposer, self.forget = proposer, proposer.forget
        self.last: dict[int, tuple[int, ...]] = {}

    def propose(self, asks: Sequence[Any]) -> list[Guesses]:
        found = self.proposer.propose(asks)
        for ask, guesses in zip(asks, found, strict=True):
            self.last[ask.request.sequence.request_id] = guesses.token_ids
        return found


def serve(models: Models, prompts: Sequence[str], proposer: Any) -> list[list[Turn]]:
    """For each prompt, greedily, what every step of your engine did for it."""
    from nanovllm.batching.engine import Engine
    from nanovllm.batching.events import Stepped
    from nanovllm.generation.events import TokenGenerated
    from nanovllm.paging.store import PagedStore
    from nanovllm.speculative.verify import SpeculativeEngine

    noted, store = _Noted(proposer), PagedStore(models.target.config, 256)
    kind = type("SpeculativePaged", (SpeculativeEngine, Engine), {})
    engine = kind(models.target, store=store, proposer=noted, guess_policy=FixedPolicy(GUESSES))
    for number, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0, max_tokens=LONGEST)
        engine.add_request(models.encode(prompt), params, request_id=number)
    turns: list[list[Turn]] = [[] for _ in prompts]
    while engine.has_unfinished:
        noted.last.clear()
        events = engine.step()
        [stepped] = [event for event in events if isinstance(event, Stepped)]
        for run in stepped.chunks:
            said = [e for e in events if isinstance(e, TokenGenerated)]
            tokens = tuple(e.token_id for e in said if e.request_id == run.request_id)
            guesses = noted.last.get(run.request_id, ())[: run.drafts]
            turns[run.request_id].append(Turn(guesses, run.accepted, tokens))
    return turns


def coloured(models: Models, runs: Mapping[str, Sequence[Turn]], rows: int = 14) -> None:
    """The first steps of each run, token by token: green stood, grey was drawn, orange fell."""
    high = min(rows, max(len(turns) for turns in runs.values()))
    size = 6 * len(runs), 0.27 * high + 0.9
    figure, axes = plt.subplots(1, len(runs), figsize=size, squeeze=False, layout="constrained")
    for axis, (name, turns) in zip(axes[0], runs.items(), strict=True):
        for row, turn in enumerate(turns[:rows]):
            stood, drawn = turn.token_ids[: turn.accepted], turn.token_ids[turn.accepted :]
            fell, x = turn.guesses[turn.accepted :], 0.0
            for token_ids, back in ((stood, STOOD), (drawn, DRAWN), (fell, FELL)):
                x += 0.08 if back == FELL else 0
                for word in map(models.word, token_ids):
                    width = 0.055 * len(word) + 0.09
                    axis.barh(row, width - 0.03, 0.8, x, color=back)
                    axis.text(x + width / 2 - 0.015, row, word, ha="center", va="center",
                              fontsize=8, color="#8a3b12" if back == FELL else "black")  # fmt: skip
                    x += width
        tokens = sum(len(turn.token_ids) for turn in turns)
        more = f"; the first {rows} of them" if len(turns) > rows else ""
        axis.set(xlim=(0, 2.6), ylim=(high - 0.4, -0.6), xticks=[], ylabel="step of the target")
        axis.set_yticks(range(high), range(1, high + 1))
        axis.set_title(f"{name}: {tokens} tokens in {len(turns)} steps{more}", fontsize=9)
        axis.grid(visible=False)
    names = {"guessed, and it stood": STOOD, "drawn by the target": DRAWN, "guessed; fell": FELL}
    entries = [Patch(color=color, label=name) for name, color in names.items()]
    figure.legend(handles=entries, loc="outside lower center", ncols=3, frameon=False)
    plt.show()


def acceptance(
    share: Callable[[Sequence[Turn], int], float],
    runs: Mapping[str, Mapping[str, Sequence[Turn]]],
    guess: float | None = None,
) -> None:
    """For each kind of prompt the share of guesses that stand, by place; dotted: rate^place."""
    _, axes = plt.subplots(1, len(runs), figsize=(12, 2.9), sharey=True, layout="constrained")
    places = range(1, GUESSES + 1)
    for axis, (kind, ways) in zip(axes, runs.items(), strict=True):
        for color, (name, turns) in zip(("C1", "C0"), ways.items(), strict=True):
            found = [100 * share(turns, place) for place in places]
            axis.plot(places, found, "o-", color=color, label=name)
            powers = [100 * (found[0] / 100) ** place for place in places]
            axis.plot(places, powers, ":", color=color, lw=1)
            tokens = sum(len(t.token_ids) for t in turns) / len(turns)
            axis.text(4.1, 96 - 8 * (color == "C1"), f"{tokens:.2f} tokens a step", color=color,
                      ha="right", va="top", fontsize=8)  # fmt: skip
        axis.set(title=kind, xlabel="place of the guess", xticks=places, ylim=(-3, 103))
    if guess is not None:
        axes[0].plot([1], [guess], "*", ms=12, color="C2", label=f"your guess: {guess:g} %")
    axes[0].set_ylabel("% of the guesses that stand")
    handles, labels = axes[0].get_legend_handles_labels()
    handles.append(plt.Line2D([], [], ls=":", color="gray"))
    axes[0].figure.legend(handles, [*labels, "if all places had the rate of the first"],
                          loc="outside lower center", ncols=4, frameon=False)  # fmt: skip
    plt.show()


@torch.inference_mode()
def logits_behind(model: Transformer, token_ids: Sequence[int]) -> torch.Tensor:
    """The logits [V] behind some tokens."""
    from nanovllm.model.cache import ContiguousCache, forward_cached

    cache = ContiguousCache(model.config, len(token_ids))
    return model.logits(forward_cached(model, cache, torch.tensor(token_ids))[-1])


def at_one_place(models: Models, distribution: Callable[..., torch.Tensor]) -> Callable:
    """p and q behind PLACE, as a function of the temperature."""
    both = torch.stack(
        [logits_behind(m, models.encode(PLACE)) for m in (models.target, models.draft)]
    )

    def at(temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        row = SamplingRow(SamplingParams(temperature=temperature), [1], [], 0)
        p, q = distribution(both, [row, row])
        return p, q

    return at


def rejected(models: Models, at: Callable, residual: Callable) -> None:
    """Move the temperature: p, q and residual of the likeliest tokens behind PLACE."""
    likely = (at(1.0)[0] + at(1.0)[1]).topk(4).indices.tolist()
    words = [models.word(token) for token in likely]
    rows = np.arange(len(likely))

    def draw(axis: Any, temperature: float) -> None:
        p, q = at(temperature)
        left = residual(p, q)
        for shift, values, color in ((-0.28, p, "C0"), (0, q, "C1"), (0.28, left, "C2")):
            axis.barh(rows + shift, values[likely], 0.27, color=color)
        stands = float(torch.minimum(p, q).sum())
        axis.set(xlim=(0, 1.05), xlabel=f"probability;\n{stands:.0%} of guesses stand")
        axis.set_yticks(rows, words)
        axis.set_ylim(len(likely) - 0.5, -0.5)
        axis.grid(axis="y", visible=False)

    print(
        "blue: p, the target's; orange: q, the draft's; green: residual, drawn when a guess falls"
    )
    movable(draw, temperature=[0.25, 0.5, 0.75, 1.0, 1.5, 2.0])


def uniforms(rows: int, columns: int) -> torch.Tensor:
    """Noise in [0, 1), always the same."""
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(1))


def as_if_drawn(models: Models, p: torch.Tensor, q: torch.Tensor, drawn: Sequence[int]) -> None:
    """How often each token came out of rejection sampling, beside p and q."""
    likely = (p + q).topk(4).indices.tolist()
    words = [models.word(token) for token in likely]
    shares = np.bincount(drawn, minlength=len(p)) / len(drawn)
    places, (_, axis) = np.arange(len(likely)), plt.subplots(figsize=(8, 3), layout="constrained")
    axis.bar(places - 0.27, p[likely], 0.25, color="C0", label="p: the target alone")
    axis.bar(places, shares[likely], 0.25, color="black", label=f"{len(drawn):,} tokens, drawn")
    axis.bar(places + 0.27, q[likely], 0.25, color="C1", label="q: the draft, which guessed")
    axis.set_xticks(places, words)
    axis.set(ylabel="share")
    stands = 100 * float(torch.minimum(p, q).sum())
    axis.set_title(
        f"Zoe was afraid of ... (T = 1): {stands:.0f} % of the guesses stand", fontsize=9
    )
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axis.grid(axis="x", visible=False)
    plt.show()


@torch.inference_mode()
def verified(models: Models, text: str, tree: TokenTree) -> list[int]:
    """The tokens that a tree behind a text is worth."""
    from nanovllm.model.cache import ContiguousCache, forward_cached
    from nanovllm.speculative.tree import verify_tree

    *before, known = models.encode(text)
    cache = ContiguousCache(models.target.config, len(before) + len(tree.token_ids) + 1)
    forward_cached(models.target, cache, torch.tensor(before))
    return verify_tree(models.target, cache, known, tree)


def draft_tree(models: Models, text: str, nodes: int, width: int, depth: int) -> TokenTree:
    """The draft's likeliest guesses behind a text; width 1 makes a chain."""
    from nanovllm.speculative.tree import best_tree

    ids = models.encode(text)
    return best_tree(
        lambda path: logits_behind(models.draft, [*ids, *path]), nodes, width, depth
    )  # the whole text again for each node: slow, and good enough for a picture


def tree(models: Models, text: str, drawn: TokenTree, tokens: Sequence[int]) -> None:
    """A tree with the nodes that stand in green, and beside it the mask of its rows."""
    words = [models.word(token) for token in drawn.token_ids]
    path, node = [], -1
    for token in tokens[:-1]:
        node = next(i for i in drawn.children(node) if drawn.token_ids[i] == token)
        path.append(node)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12, 4.2), width_ratios=(3, 2), layout="constrained"
    )
    heights = _heights(drawn)
    depths = {-1: 0, **dict(enumerate(drawn.depths))}
    for i, parent in enumerate(drawn.parents):
        color = "C2" if i in path else "0.6"
        left.plot([depths[parent], depths[i]], [heights[parent], heights[i]], color=color, zorder=1)
    for i in depths:
        word = text.split()[-1] if i < 0 else f"{i}: {words[i]}"
        back = DRAWN if i < 0 else STOOD if i in path else "white"
        left.text(depths[i], heights[i], word, ha="center", va="center", fontsize=9, zorder=2,
                  bbox={"boxstyle": "round", "fc": back, "ec": "0.5"})  # fmt: skip
    said = models.tokenizer.decode(tokens)
    left.set_title(f'{len(words)} guesses, one forward, {len(tokens)} tokens: "{said}"', fontsize=9)
    left.set(xlim=(-0.5, max(depths.values()) + 0.5), yticks=[], xlabel="depth")
    left.set_xticks(range(max(depths.values()) + 1))
    left.grid(visible=False)
    mask = drawn.mask(0).int().numpy()
    names = [text.split()[-1], *(f"{i}: {word}" for i, word in enumerate(words))]
    right.imshow(1 - mask, cmap="gray", vmin=-0.6, vmax=1.1)
    right.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    right.set_yticks(range(len(names)), names, fontsize=7)
    right.set_title("dark: this row may look at this column", fontsize=9)
    right.grid(visible=False)
    plt.show()
    plt.close(figure)


def _heights(tree: TokenTree) -> dict[int, float]:
    """Leaves one below the other, each other node in the middle of its children."""
    heights: dict[int, float] = {}
    leaves = iter(range(len(tree.token_ids)))

    def place(node: int) -> float:
        children = tree.children(node)
        if children:
            below = [place(child) for child in children]
            heights[node] = sum(below) / len(below)
        else:
            heights[node] = -float(next(leaves))
        return heights[node]

    place(-1)
    return heights


def pays(
    speed: Callable[[float, int, int], float],
    best: Callable[[float, int], int],
    last: Callable[[float, int], int],
    guess: float | None = None,
) -> None:
    """Speed-up over the guesses and the batch at three rates: purple pays, orange does not."""
    batches, counts, rates = [1, 2, 4, 8, 16, 32, 64, 128], range(9), (0.6, 0.8, 0.95)
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), sharey=True, layout="constrained")
    for axis, rate in zip(axes, rates, strict=True):
        grid = np.array([[speed(rate, count, batch) for batch in batches] for count in counts])
        image = axis.imshow(grid, cmap="PuOr", norm=TwoSlopeNorm(1.0, 0.3, 3.0), aspect="auto")
        for count, row in enumerate(grid):
            for column, value in enumerate(row):
                color = "white" if value > 2.2 or value < 0.5 else "black"
                axis.text(column, count, f"{value:.1f}", ha="center", va="center", fontsize=7,
                          color=color)  # fmt: skip
        for column, batch in enumerate(batches):
            corner = column - 0.46, best(rate, batch) - 0.46
            axis.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, ec="black", lw=1.8))
        end = last(rate, 4)
        if 1 <= end < 128:
            axis.plot([np.log2(end)] * 2, [3.5, 4.5], color="C1", lw=3)
        axis.set_xticks(range(8), batches)
        axis.set(xlabel="requests at once", yticks=counts)
        axis.set_title(f"a guess stands with rate {rate}; 4 guesses pay up to {end}", fontsize=9)
        axis.grid(visible=False)
    if guess is not None and guess >= 1:
        axes[1].plot([np.log2(guess)], [4], "*", ms=13, color="C2")
    axes[0].set_ylabel("guesses (framed: the best number)")
    figure.colorbar(image, ax=axes, label="times as fast")
    plt.show()


class Rule:
    """A policy from a rule for one request: what came of its steps so far -> guesses."""

    def __init__(self, rule: Callable[[list[tuple[int, int]]], int]) -> None:
        self.rule = rule
        self.history: dict[Request, list[tuple[int, int]]] = {}

    def lengths(self, requests: Sequence[Request], most: Sequence[int], tokens: int) -> list[int]:
        """As GuessPolicy."""
        counts = []
        for request, limit in zip(requests, most, strict=True):
            history = self.history.setdefault(request, [])
            count = max(min(self.rule(list(history)), limit), 0)
            if not count:
                history.append((0, 0))
            counts.append(count)
        return counts

    def judged(self, request: Request, guesses: Guesses, accepted: int) -> None:
        """As GuessPolicy."""
        self.history[request].append((len(guesses.token_ids), accepted))

    def forget(self, request: Request) -> None:
        """As GuessPolicy."""
        self.history.pop(request, None)


COSTS = {
    "waits for memory": Costs(base=1.0, token=0.01, draft=0.005, forward=0.06),
    "in between": Costs(base=1.0, token=0.06, draft=0.01, forward=0.06),
    "waits for arithmetic": Costs(base=0.2, token=0.8, draft=0.1, forward=0.0),
}


def recorded() -> list[RecordedText]:
    """What the draft's guesses come to in thirty texts of the bundled target."""
    from nanovllm.speculative.replay import read_texts

    return read_texts(RECORD, "draft")


def turning() -> RecordedText:
    """A text whose guesses are all wrong for forty tokens, and then all right."""
    from nanovllm.speculative.replay import RecordedText

    return RecordedText.of([False] * 40 + [True] * 60, "wrong, then right")


def policies(gains: Mapping[str, Mapping[str, float]]) -> None:
    """How many times as fast each policy is, for each kind of costs."""
    _, axes = plt.subplots(1, len(gains), figsize=(12, 2.7), sharey=True, layout="constrained")
    for axis, (kind, found) in zip(axes, gains.items(), strict=True):
        own = ["C2" if "your" in name else "C0" for name in found]
        bars = axis.barh(range(len(found)), list(found.values()), color=own)
        axis.bar_label(bars, fmt="%.2f", padding=2, fontsize=8)
        axis.axvline(1, color="black", lw=1)
        axis.set(title=f"a step that {kind}" if "wait" in kind else kind, xlabel="times as fast")
        axis.set(xlim=(0, 1.2 * max(found.values())))
        axis.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(found)), list(found))
    axes[0].invert_yaxis()
    plt.show()


def wanted(story: Replay, names: Sequence[str]) -> None:
    """What a policy wants for each text in each step; white: the text has ended."""
    grid = np.full((len(names), len(story.wanted)), np.nan)
    for step, counts in enumerate(story.wanted):
        for number, count in counts.items():
            grid[number, step] = count
    _, axis = plt.subplots(figsize=(11, 0.45 * len(names) + 0.9), layout="constrained")
    axis.imshow(grid, aspect="auto", cmap="Blues", vmin=-1.5, vmax=11, interpolation="nearest")
    for (row, step), count in np.ndenumerate(grid):
        if count > 0:
            axis.text(step, row, f"{count:.0f}", ha="center", va="center", fontsize=7)
    axis.set_yticks(range(len(names)), names)
    axis.set(xlabel="step")
    axis.set_title(
        "guesses that your policy wants (light: none; white: the text is over)", fontsize=9
    )
    axis.grid(visible=False)
    plt.show()
