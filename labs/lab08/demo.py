"""What guessing buys, in counts: the same texts in fewer steps of the large model."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nanovllm.batching.config import EngineConfig
from nanovllm.batching.engine import Engine
from nanovllm.batching.events import EngineEvent, Failed, Stepped
from nanovllm.generation.events import Finished, TokenGenerated
from nanovllm.generation.params import SamplingParams
from nanovllm.model.loader import load_model
from nanovllm.model.transformer import Transformer
from nanovllm.paging.store import PagedStore
from nanovllm.speculative.draft_model import DraftModel
from nanovllm.speculative.guess_policy import FixedPolicy
from nanovllm.speculative.lookup import PromptLookup
from nanovllm.speculative.proposer import Ask, Guesses, Proposer
from nanovllm.speculative.verify import SpeculativeEngine
from nanovllm.tokenization.tokenizer import Tokenizer

MODELS = Path(__file__).resolve().parents[2] / "models"
AT_ONCE, TOKENS, GUESSES = 8, 40, 4
STORY, STORY_TOKENS = "Once upon a time there was a little", 48
CODES = "Mia's code is 7342. Tom's code is 1188. Ben's code is 1805. Anna's code is 5291."


def prompts() -> list[str]:
    """Six each of stories, facts, codes to remember, and lists to say again; mixed."""
    asked = zip(
        ("cat", "fox", "girl", "boy", "bear", "dog"),
        ("France", "Spain", "Italy", "Iceland", "Ireland", "Iraq"),
        ("Mia", "Tom", "Ben", "Anna", "Tom", "Ben"),
        ("4821, Mia", "Paris, 1176", "9035, Ben", "6210, Rome", "Anna, 3348", "7094, Tom"),
        strict=True,
    )
    return [
        text
        for animal, country, name, items in asked
        for text in (
            chat(f"Tell me a story about a {animal}."),
            f"The capital of {country} is",
            chat(f"{CODES} What is {name}'s code?"),
            f"List: {items}, 2857, Kira, 1402, green. Again: {items},",
        )
    ]


def chat(text: str) -> str:
    """A question as the bundled model was trained on it."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


class SpeculativePaged(SpeculativeEngine, Engine):
    """Lab 05's engine with your speculative step."""


class AtRandom:
    """Guesses that know nothing."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size, self.rng = vocab_size, random.Random(8)

    def propose(self, asks: Sequence[Ask]) -> list[Guesses]:
        """Any tokens."""
        return [
            Guesses(tuple(self.rng.randrange(self.vocab_size) for _ in range(ask.most)))
            for ask in asks
        ]

    def forget(self, request: object) -> None:
        """Nothing is remembered."""


class Noted:
    """A proposer whose guesses are kept, to be shown."""

    def __init__(self, proposer: Proposer) -> None:
        self.proposer, self.guessed = proposer, []
        self.forget = proposer.forget

    def propose(self, asks: Sequence[Ask]) -> list[Guesses]:
        """As the proposer."""
        found = self.proposer.propose(asks)
        self.guessed += found
        return found


@dataclass
class Run:
    """What one engine did with the requests."""

    texts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    steps: int = 0
    passes: int = 0  # requests that got tokens from a step, over all steps
    computed: int = 0  # tokens
    guessed: int = 0
    stood: int = 0


@dataclass
class Models:
    """The bundled target and draft, and the tokenizer of both."""

    target: Transformer
    draft: Transformer
    tokenizer: Tokenizer

    def engine(self, proposer: Proposer | None) -> Engine:
        """The plain engine, with guesses or without."""
        config = EngineConfig(max_num_seqs=AT_ONCE, max_num_batched_tokens=256)
        store = PagedStore(self.target.config, 256)
        if proposer is None:
            return Engine(self.target, config, store=store)
        more = {"proposer": proposer, "guess_policy": FixedPolicy(GUESSES)}
        return SpeculativePaged(self.target, config, store=store, **more)

    def proposers(self, sampled: bool) -> dict[str, Proposer | None]:
        """Everybody who may guess."""
        return {
            "nobody": None,
            "random tokens": AtRandom(self.target.config.vocab_size),
            "prompt lookup": PromptLookup(),
            "draft model": self.drafter(sampled),
        }

    def drafter(self, sampled: bool) -> DraftModel:
        """A draft model with a store of its own."""
        engine = Engine(self.draft, EngineConfig(), store=PagedStore(self.draft.config, 256))
        return DraftModel(engine, sampled=sampled)


def step(engine: Engine) -> list[EngineEvent]:
    """One step; an error of a request is the demo's."""
    events = engine.step()
    for event in events:
        if isinstance(event, Failed):
            raise event.error
    return events


def serve(engine: Engine, tokenizer: Tokenizer, temperature: float) -> Run:
    """All requests through one engine."""
    params = SamplingParams(temperature=temperature, max_tokens=TOKENS)
    for number, prompt in enumerate(prompts()):
        token_ids = tokenizer.encode(prompt, allowed_special="all")
        engine.add_request(token_ids, params, seed=number, request_id=number)
    run = Run()
    while engine.has_unfinished:
        events = step(engine)
        run.passes += len({e.request_id for e in events if isinstance(e, TokenGenerated)})
        for event in events:
            if isinstance(event, Finished):
                run.texts[event.request_id] = event.completion.token_ids
            elif isinstance(event, Stepped):
                run.steps += 1
                run.computed += sum(chunk.length for chunk in event.chunks)
                run.guessed += sum(chunk.drafts for chunk in event.chunks)
                run.stood += sum(chunk.accepted for chunk in event.chunks)
    return run


def story(models: Models) -> tuple[Text, int]:
    """One greedy text, a bar after each step: guesses that stood, that fell, and what was drawn."""
    noted = Noted(models.drafter(sampled=False))
    engine, text, steps = models.engine(noted), Text.assemble((STORY, "dim")), 0
    params = SamplingParams(temperature=0, max_tokens=STORY_TOKENS, ignore_eos=True)
    engine.add_request(models.tokenizer.encode(STORY), params)
    while engine.has_unfinished:
        noted.guessed.clear()
        events = step(engine)
        tokens = [event.token_id for event in events if isinstance(event, TokenGenerated)]
        [run] = next(event for event in events if isinstance(event, Stepped)).chunks
        guesses = noted.guessed[0].token_ids[: run.drafts] if noted.guessed else ()
        text.append(models.tokenizer.decode(tokens[: run.accepted]), style="green")
        if run.accepted < len(guesses):
            fell = models.tokenizer.decode(guesses[run.accepted :])
            text.append(f"[{fell}]", style="red strike")
        text.append(models.tokenizer.decode(tokens[run.accepted :]), style="bold")
        text.append("|", style="dim")
        steps += 1
    return text, steps


def main() -> None:
    """One text in colours, then all requests with each proposer, greedy and sampled."""
    console = Console()
    torch.set_num_threads(1)  # small products: more threads only wait for one another
    models = Models(
        load_model(MODELS / "target"),
        load_model(MODELS / "draft"),
        Tokenizer.from_pretrained(MODELS / "target"),
    )
    text, steps = story(models)
    console.print(
        f"{STORY_TOKENS} tokens in {steps} steps of the target; each | ends a step. "
        "[green]Guessed, and it stood[/]; [red strike]\\[guessed, and it fell][/]; "
        "[bold]drawn by the target[/]:",
        highlight=False,
    )
    console.print(text)
    console.print()
    size = sum(weight.nbytes for weight in models.target.parameters()) / 1e6
    table = Table(
        title=f"{len(prompts())} requests, {AT_ONCE} at a time, up to {GUESSES} guesses",
        caption=f"a step reads {size:.1f} MB of weights once; tokens a step: of each request",
    )
    table.add_column("who guesses", no_wrap=True)
    titles = "steps", "tokens\na step", "tokens\ncomputed", "draft\nforwards", "guesses\nthat stood"
    for title in (*titles, "steps,\nT = 1"):
        table.add_column(title, justify="right")
    same, plain, written = True, {}, 0
    for name, proposer in models.proposers(sampled=False).items():
        greedy = serve(models.engine(proposer), models.tokenizer, 0.0)
        sampled = serve(models.engine(models.proposers(sampled=True)[name]), models.tokenizer, 1.0)
        plain = plain or {0: greedy.texts, 1: sampled.texts}
        same = same and plain == {0: greedy.texts, 1: sampled.texts}
        written = sum(map(len, greedy.texts.values()))
        stood = f"{greedy.stood} of {greedy.guessed:,}" if greedy.guessed else ""
        forwards = draft_forwards(proposer)
        table.add_row(
            name,
            str(greedy.steps),
            f"{written / greedy.passes:.2f}",
            f"{greedy.computed:,}",
            str(forwards) if forwards else "",
            stood,
            str(sampled.steps),
        )
    console.print(table)
    verdict = "[green]the same texts[/]" if same else "[red]NOT the same texts[/]"
    console.print(f"All wrote {verdict}, greedy ({written} tokens) and sampled.", highlight=False)


def draft_forwards(proposer: Proposer | None) -> int:
    """Forwards of the draft model, where there is one."""
    return getattr(proposer, "num_forwards", 0)


if __name__ == "__main__":
    main()
