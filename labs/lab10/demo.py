"""One model on one rank and on many: the same texts, what each rank holds, what it sends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table

from nanovllm.batching.config import EngineConfig
from nanovllm.generation.events import Finished
from nanovllm.generation.params import SamplingParams
from nanovllm.model.accounting import kv_bytes_per_token
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import without_memory
from nanovllm.parallel.costs import ParallelCost, best_layout
from nanovllm.parallel.engine import ParallelEngine
from nanovllm.parallel.executor import Executor
from nanovllm.parallel.hardware import CARDS, LINKS, Cluster
from nanovllm.parallel.launch import start_threads
from nanovllm.parallel.remote import RemoteModel
from nanovllm.parallel.share_spec import ShareSpec
from nanovllm.parallel.threads import run_ranks
from nanovllm.parallel.transformer import ParallelTransformer
from nanovllm.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from nanovllm.parallel.communicator import Communicator
    from nanovllm.parallel.share import RankShare

TARGET = Path(__file__).resolve().parents[2] / "models" / "target"
PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a little",
    "List: 4821, Mia, Paris, 1176. Again: 4821,",
    "12 + 7 =",
)
LAYOUTS = [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2)]  # slices, stages
TOKENS, BLOCK = 24, 16
MID = ModelConfig("qwen3", 32000, 1024, 12, 16, 8, 64, 3072, 512, tie_embeddings=True, qk_norm=True)
LLAMA_8B = ModelConfig("llama", 128256, 4096, 32, 32, 8, 128, 14336, 8192)
STEPS = {"one request": (1, 2048, 1), "32 requests": (32, 65536, 32), "a prompt": (4096, 4096, 1)}


@dataclass(frozen=True)
class Seen:
    """A run of the prompts: its texts, and what the ranks hold and send."""

    texts: list[str]
    weight_bytes: int  # of the rank with most
    kv_bytes: int  # of a token there
    all_reduces: float  # a step, of rank 0
    messages: float  # a step, of the rank that sends most
    sent: float  # bytes a step, of that rank


def run(slices: int, stages: int, tokenizer: Tokenizer) -> Seen:
    """All prompts at once, with threads as ranks."""
    shares: list[RankShare] = []
    spec = ShareSpec(TARGET, torch.float32, "cpu", slices, stages, BLOCK, 64, 64, blocks=64)

    def load(comm: Communicator) -> RankShare:
        shares.append(spec.share(comm))
        return shares[-1]

    executor = Executor(start_threads(spec.size, load))
    model = RemoteModel(ModelConfig.from_pretrained(TARGET), torch.float32)
    engine = ParallelEngine(
        model, EngineConfig(), executor=executor, tokenizer=tokenizer, block_size=BLOCK
    )
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    for prompt in PROMPTS:
        engine.add_request(tokenizer.encode(prompt), params)
    texts, steps = {}, 0
    while engine.has_unfinished:
        steps += 1
        for event in engine.step():
            if isinstance(event, Finished):
                texts[event.request_id] = event.completion.text
    first = min(shares, key=lambda share: share.facts.rank).group.counts
    counts = [(share.group.counts, share.pipe.counts) for share in shares]
    row = max(executor.rows(), key=lambda row: row.weight_bytes)
    executor.close()
    return Seen(
        [texts[request] for request in sorted(texts)],
        row.weight_bytes,
        row.kv_bytes // (64 * BLOCK),
        first["all_reduce"].calls / steps,
        max(group.messages + pipe.messages for group, pipe in counts) / steps,
        max(group.bytes + pipe.bytes for group, pipe in counts) / steps,
    )


def cut_texts(console: Console) -> None:
    """The bundled model in every layout."""
    tokenizer = Tokenizer.from_pretrained(TARGET)
    table = Table(
        title=f"the bundled model, {len(PROMPTS)} prompts at once, ranks as threads",
        caption="MB, and KV of a token: of the rank with most; the rest: a step of one rank",
    )
    table.add_column("layout", no_wrap=True)
    for column in ("same", "MB", "KV bytes", "all-reduces", "messages", "KiB sent"):
        table.add_column(column, justify="right")
    alone: list[str] = []
    for slices, stages in LAYOUTS:
        seen = run(slices, stages, tokenizer)
        alone = alone or seen.texts
        same = sum(one == other for one, other in zip(alone, seen.texts, strict=True))
        table.add_row(
            f"TP {slices} x PP {stages}",
            f"{same} of {len(alone)}",
            f"{seen.weight_bytes / 1e6:.2f}",
            f"{seen.kv_bytes:,}",
            f"{seen.all_reduces:g}",
            f"{seen.messages:g}",
            f"{seen.sent / 1024:.1f}",
        )
    console.print(table)
    console.print(f"{PROMPTS[0]!r}: {alone[0]!r}\n", highlight=False)


def weight_bytes(comm: Communicator) -> int:
    """What this rank has of `mid`; nothing is loaded."""
    with without_memory():
        return sum(weight.nbytes for weight in ParallelTransformer(MID, comm).parameters())


def cut_mid(console: Console) -> None:
    """What two ranks share of a model that has to be read from memory for every token."""
    one, two = (max(run_ranks(ranks, weight_bytes)) / 1e6 for ranks in (1, 2))
    kv = kv_bytes_per_token(MID, 4) // 1024
    sent = (2 * MID.num_layers + 1) * MID.hidden_size * 4 + MID.vocab_size * 4 // 2
    console.print(
        f"mid (184 M weights, float32): {one:.0f} MB on one rank, {two:.0f} on each of two; "
        f"K and V of a token {kv} and {kv // 2} KiB.\nFor a token each of two sends "
        f"{sent / 1024:.0f} KiB, in {2 * MID.num_layers + 1} all-reduces and a gather.\n",
        highlight=False,
    )


def where_it_pays(console: Console) -> None:
    """The map of a cost model: the best layout on up to eight cards, by step and link."""
    table = Table(
        title="Llama 3.1 8B on up to eight H100",
        caption="the best layout by your costs, TP x PP, and how many times as fast as one card",
    )
    table.add_column("step")
    links = {"nvlink": "NVLink", "pcie5": "PCIe 5", "100gbe": "100 GbE", "gloo": "gloo"}
    for name in links.values():
        table.add_column(name, justify="right")
    for name, step in STEPS.items():
        cells = []
        for link in links:
            cluster = Cluster(CARDS["h100"], LINKS[link], LINKS["100gbe"])
            layout = best_layout(LLAMA_8B, cluster, 8, *step)
            one, best = (
                cost.seconds(*step)
                for cost in (
                    ParallelCost(LLAMA_8B, cluster),
                    ParallelCost(LLAMA_8B, cluster, layout),
                )
            )
            cells.append(f"{layout.tp} x {layout.pp}: {one / best:.1f}")
        table.add_row(name, *cells)
    console.print(table)
    console.print(
        "On two cores it does not pay: two ranks read no faster than two threads of one process, "
        "and wait for all-reduces besides.",
        highlight=False,
    )


def main() -> None:
    """Texts, then bytes, then the map."""
    torch.set_num_threads(1)  # ranks are threads: more would only wait for one another
    console = Console()
    cut_texts(console)
    cut_mid(console)
    where_it_pays(console)


if __name__ == "__main__":
    main()
