"""Task 5: static batching."""

import pytest
import torch

from grader import expect
from grader.course.paths import ROOT
from nanovllm.generation.events import Finished, Prefilled, TokenGenerated
from nanovllm.generation.loop import generate
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.rows import argmax_sampler
from nanovllm.generation.sequence import Sequence
from nanovllm.generation.static_batch import (
    StaticBatch,
    generate_static,
    pad_left,
    padded_mask,
    padded_positions,
)
from nanovllm.model.cache import ContiguousCache, forward_cached
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model, load_model
from nanovllm.tokenization.tokenizer import Tokenizer

CONFIGS = {
    "qwen3": ModelConfig("qwen3", 50, 32, 2, 4, 2, 8, 48, 40, qk_norm=True, eos_token_ids=(2,)),
    "mistral": ModelConfig(
        "mistral", 50, 32, 2, 4, 2, 8, 48, 40, windows=(4, 4), eos_token_ids=(2,)
    ),
    "gpt2": ModelConfig(
        "gpt2", 50, 32, 2, 4, 4, 8, 48, 16,
        tie_embeddings=True, qkv_bias=True, output_bias=True, mlp_bias=True, eos_token_ids=(2,),
    ),
}  # fmt: skip


@pytest.mark.check(
    task=5,
    points=2,
    title="Prompts are padded on the left",
)
def test_pad_left():
    token_ids, padding = pad_left([[5, 6, 7], [8], [9, 9]], pad_id=1)
    expect(
        [token_ids, padding],
        [torch.tensor([[5, 6, 7], [1, 1, 8], [1, 9, 9]]), torch.tensor([0, 2, 1])],
        call="pad_left([[5, 6, 7], [8], [9, 9]], pad_id=1)",
        cause="pads go before the prompt",
    )
    token_ids, padding = pad_left([(3, 4)])
    expect(
        [token_ids, padding],
        [torch.tensor([[3, 4]]), torch.tensor([0])],
        call="pad_left([(3, 4)])",
    )


@pytest.mark.check(
    task=5,
    points=1,
    title="Positions begin at each row's first real token",
)
def test_padded_positions():
    expect(
        padded_positions(torch.tensor([0, 3, 1]), width=4),
        torch.tensor([[0, 1, 2, 3], [0, 0, 0, 0], [0, 0, 1, 2]]),
        call="padded_positions([0, 3, 1], width=4)",
        cause="the padding shifts the columns, not the positions",
    )


@pytest.mark.check(
    task=5,
    points=3,
    title="Nobody looks at a pad, but a pad at itself",
)
def test_padded_mask():
    def seen(*given):
        return [
            ["".join(".x"[int(cell)] for cell in query) for query in row]
            for row in padded_mask(*given)
        ]

    padding = torch.tensor([0, 2])
    expect(
        seen(padding, 0, 4),
        [["x...", "xx..", "xxx.", "xxxx"], ["x...", ".x..", "..x.", "..xx"]],
        call="padded_mask(padding=[0, 2], start=0, num_columns=4), x marks what may be seen",
        cause="causal, pads hidden, and every column sees itself",
    )
    expect(
        seen(padding, 4, 1),
        [["xxxxx"], ["..xxx"]],
        call="padded_mask(padding=[0, 2], start=4, num_columns=1): a decode step",
        cause="the pads of the prompt stay hidden in every later step",
    )
    expect(
        seen(padding, 3, 2, 3),
        [[".xxx.", "..xxx"], ["..xx.", "..xxx"]],
        call="padded_mask(padding=[0, 2], start=3, num_columns=2, window=3)",
        cause="a window counts the column itself",
    )


def _whole(model, token_ids):
    """The logits of every token of a text, read in one pass."""
    ids = torch.as_tensor(token_ids)
    return model.logits(forward_cached(model, ContiguousCache(model.config, len(ids)), ids))


def _requests(rng, rows: int, longest: int = 9):
    lengths = rng.permutation([1, longest, *rng.integers(2, longest, size=rows - 2)])
    prompts = [rng.integers(3, 50, size=int(n)).tolist() for n in lengths]
    params = [
        SamplingParams(temperature=0, max_tokens=int(m), ignore_eos=True)
        for m in rng.permutation([1, 7, *rng.integers(2, 7, size=rows - 2)])
    ]
    return prompts, params


@pytest.mark.check(
    task=5,
    points=2,
    title="Every row gets the logits it gets alone",
)
@pytest.mark.filterwarnings("ignore")
def test_rows_as_alone(rng, seed):
    for family, config in CONFIGS.items():
        model = dummy_model(config, seed=seed % 1000)
        prompts, params = _requests(rng, rows=4)
        seen: dict[int, list] = {i: [] for i in range(4)}

        def recording(logits, rows, prompts=prompts, seen=seen):
            for row, values in zip(rows, logits, strict=True):
                seen[prompts.index(list(row.prompt_token_ids))].append(values.clone())
            return argmax_sampler(logits, rows)

        result = generate_static(model, prompts, params, sampler=recording)
        for i, prompt in enumerate(prompts):
            tokens = list(result.completions[i][0].token_ids)
            expect(
                len(tokens),
                params[i].max_tokens,
                call=f"the number of tokens of row {i}",
                given={"max_tokens": [p.max_tokens for p in params]},
                cause="rows end at different times, each by its own max_tokens",
            )
            expect(
                torch.stack(seen[i]),
                _whole(model, prompt + tokens)[len(prompt) - 1 : -1],
                call=f"the logits of row {i} in a batch of 4 ({family}), against that row alone",
                given={"prompt lengths": [len(p) for p in prompts]},
                atol=5e-4,
                cause="pads, positions or another row's cache got into this row",
            )


@pytest.mark.check(task=5, points=1, title="A row that has ended stays where it is")
def test_ended_rows(rng, seed):
    model = dummy_model(CONFIGS["gpt2"], seed=seed % 1000)
    prompts, lengths = [[5] * 9, [6, 7], [8] * 4], [2, 7, 4]
    sequences = [
        Sequence(
            prompt,
            SamplingParams(temperature=0, max_tokens=length, ignore_eos=True),
            max_model_len=16,
            seed=0,
        )
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    batch = StaticBatch(model, sequences, sampler=argmax_sampler)
    fed = []
    forward = model.forward

    def watching(token_ids, positions, attend):
        fed.append(positions.tolist())
        return forward(token_ids, positions, attend)

    model.forward = watching
    while batch.running:
        batch.step()
    expect(
        fed[1:],
        [[9, 2, 4], [10, 3, 5], [10, 4, 6], [10, 5, 7], [10, 6, 7], [10, 7, 7]],
        call="the positions of each decode step, for prompts of 9, 2 and 4 tokens that generate "
        "2, 7 and 4",
        cause="a row that has ended is fed its last token again, where that token stands: "
        "counting on would leave the context",
    )


@pytest.mark.check(
    task=5,
    points=2,
    title="The waste is counted",
)
def test_waste():
    model = dummy_model(CONFIGS["qwen3"])
    prompts = [[5] * 6, [6], [7] * 3]
    params = [SamplingParams(temperature=0, max_tokens=m, ignore_eos=True) for m in (2, 5, 1)]
    sequences = [
        Sequence(prompt, p, max_model_len=40, seed=0)
        for prompt, p in zip(prompts, params, strict=True)
    ]
    batch = StaticBatch(model, sequences, sampler=argmax_sampler)
    history, rows, logits = [], [], model.logits

    def counted(hidden):
        rows.append(hidden.numel() // hidden.shape[-1])
        return logits(hidden)

    model.logits = counted
    while batch.running:
        batch.step()
        waste = batch.waste
        history.append([waste.prompt, waste.padding, waste.decode, waste.idle, waste.kv_used])
    expect(
        history,
        [[10, 8, 0, 0, 10], [10, 8, 2, 1, 12], [10, 8, 3, 3, 13], [10, 8, 4, 5, 14],
         [10, 8, 5, 7, 15]],
        call="prompt, padding, decode, idle, kv_used after each step, for prompts of 6, 1, 3 "
        "tokens that generate 2, 5, 1",
        cause="an ended row is computed until the batch ends; the last token is never fed",
    )  # fmt: skip
    expect(
        rows,
        [3] * 5,
        call="rows of which model.logits was asked for logits in each step, in the same batch",
        cause="logits are asked for the last column only, one row a sequence",
    )


def _greedy(model, prompt, count):
    """Likeliest tokens without any cache: the whole text again for each."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(_whole(model, ids)[-1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.check(
    task=5,
    points=1,
    title="Batches, samples and events keep their owners",
)
def test_owners(rng, seed):
    model = dummy_model(CONFIGS["qwen3"], seed=seed % 1000)
    prompts, params = _requests(rng, rows=5)
    pad_left(prompts)
    events = []
    result = generate_static(
        model, prompts, params, max_num_seqs=2, sampler=argmax_sampler, on_event=events.append
    )
    expect(
        [list(samples[0].token_ids) for samples in result.completions],
        [_greedy(model, prompt, p.max_tokens) for prompt, p in zip(prompts, params, strict=True)],
        call="the tokens of generate_static for 5 prompts with max_num_seqs=2",
        given={"prompt lengths": [len(p) for p in prompts]},
        cause="the completions belong to the prompts, in their order, whatever the batches",
    )
    counts = [
        sum(isinstance(e, kind) and e.request_id == i for e in events)
        for i in range(5)
        for kind in (Prefilled, TokenGenerated, Finished)
    ]
    expect(
        counts,
        [n for p in params for n in (1, p.max_tokens, 1)],
        call="Prefilled, TokenGenerated and Finished events of each request",
        given={"max_tokens": [p.max_tokens for p in params]},
    )


REQUESTS = [
    SamplingParams(temperature=0, max_tokens=12),
    SamplingParams(temperature=1.0, top_k=20, seed=3, max_tokens=15, n=2),
    SamplingParams(temperature=0.8, top_p=0.9, max_tokens=9, logprobs=2),
    SamplingParams(temperature=0, max_tokens=20, stop=[" a", "the"]),
    SamplingParams(temperature=1.2, min_p=0.05, max_tokens=6, repetition_penalty=1.3),
    SamplingParams(temperature=0, max_tokens=18, logit_bias={2: 100.0}, min_tokens=4),
]


@pytest.mark.check(
    task=5,
    points=1,
    title="Requests of all kinds share a batch",
)
def test_requests_as_alone():
    folder = ROOT / "models" / "target"
    model, tokenizer = load_model(folder), Tokenizer.from_pretrained(folder)
    texts = ["Once upon a time", "The", "Mia's code is 7342.", "Tom went to", "2 + 3 =", "In"]
    prompts = [tokenizer.encode(text) for text in texts]
    pad_left(prompts)
    together = generate_static(model, prompts, REQUESTS, tokenizer=tokenizer, seeds=range(6))
    alone = []
    for i, params in enumerate(REQUESTS):
        events = generate(model, prompts[i], params, tokenizer=tokenizer, seed=i)
        alone.append([event.completion for event in events if isinstance(event, Finished)])
    expect(
        [
            [(a.token_ids, a.text, a.finish_reason) == (b.token_ids, b.text, b.finish_reason)
             for a, b in zip(mine, other, strict=True)]
            for mine, other in zip(together.completions, alone, strict=True)
        ],
        [[True], [True, True], [True], [True], [True], [True]],
        call="generate_static of six different requests: is each completion that of generate?",
        cause="a request's tokens must not depend on its batch mates",
    )  # fmt: skip
