"""Task 1: the generate loop, from a prompt to a finished completion."""

import tempfile
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grader import expect
from grader.course.paths import ROOT
from nanovllm.generation.events import Completion, Finished, Prefilled, Sampled, TokenGenerated
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.loop import Generation, Phase, generate
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.sampling import argmax_sampler
from nanovllm.generation.sequence import Sequence as Sample
from nanovllm.generation.stop import StopStrings, held_back
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import load_model
from nanovllm.tokenization.tokenizer import Tokenizer


class ScriptedModel(torch.nn.Module):
    """Its likeliest token depends on the position alone; it notes what it is asked to compute."""

    def __init__(self, script: Sequence[int], max_position: int = 64, eos: tuple = (2,)) -> None:
        super().__init__()
        self.config = ModelConfig(
            "llama", 16, 4, 1, 2, 1, 2, 4, max_position=max_position, eos_token_ids=eos
        )
        self.weight = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
        self.script = list(script)  # script[p]: the token that follows position p
        self.computed: list[list[int]] = []
        self.positions: list[list[int]] = []
        self.logit_rows: list[int] = []

    def forward(self, token_ids, positions, attend):
        self.computed.append(token_ids.tolist())
        self.positions.append(positions.tolist())
        count = len(token_ids)
        attend(0, torch.zeros(count, 2, 2), torch.zeros(count, 1, 2), torch.zeros(count, 1, 2))
        return positions.float()[:, None].repeat(1, 4)

    def logits(self, hidden):
        self.logit_rows.append(len(hidden))
        logits = torch.zeros(len(hidden), 16)
        for row, position in enumerate(hidden[:, 0].long().tolist()):
            logits[row, self.script[position % len(self.script)]] = 5.0
        return logits


class Spelled:
    """A detokenizer whose tokens are the given pieces of text."""

    def __init__(self, pieces: Sequence[str], rest: str = "") -> None:
        self.pieces, self.rest = pieces, rest

    def push(self, token_id: int) -> str:
        return self.pieces[token_id]

    def flush(self) -> str:
        return self.rest


def _sample(params: SamplingParams, max_model_len: int = 50, prompt=(7, 7, 7), **more) -> Sample:
    return Sample(prompt, params, max_model_len=max_model_len, seed=0, **more)


def _feed(sample: Sample, token_ids: Sequence[int]) -> list:
    """Append tokens until the sample ends; the events."""
    events = []
    for token_id in token_ids:
        events += sample.append(Sampled(token_id), now=0.0)
        if sample.finished:
            break
    return events


def _run(model, prompt, params=None, **more) -> list:
    params = params or SamplingParams(temperature=0)
    return list(generate(model, prompt, params, sampler=argmax_sampler, **more))


@pytest.mark.check(
    task=1,
    points=1,
    title="The beginning of a stop string is recognised",
    hints=(
        "Which is the longest end of the text that a stop string begins with?",
        "For each stop and each n from 1 to len(stop) - 1: does the text end with stop[:n]?",
        "max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), "
        "default=0)",
    ),
)
def test_held_back(rng):
    cases = [
        ("the EN", ["END"]),
        ("the EN", ["END", "E"]),
        ("aab", ["aabaac", "bx"]),
        ("abab", ["ababc"]),
        ("END", ["END"]),
        ("xE", ["END", "xEyz"]),
        ("plain", ["END"]),
        ("", ["END"]),
        ("plain", []),
        ("a", ["a"]),
        ("\n", ["\n\n"]),
    ]
    expect(
        [held_back(text, stops) for text, stops in cases],
        [2, 2, 3, 4, 0, 2, 0, 0, 0, 0, 1],
        call="[held_back(text, stops) for text, stops in cases]",
        given={"cases": cases},
        cause="a proper prefix is at least one character short of the whole stop string, and the "
        "longest suffix that is one decides",
    )
    for _ in range(40):
        text = "".join(rng.choice(list("ABX"), 6))
        stops = ["".join(rng.choice(list("AB"), int(rng.integers(1, 5)))) for _ in range(2)]
        begun = [s[:n] for s in stops for n in range(1, len(s)) if text[len(text) - n :] == s[:n]]
        expect(
            held_back(text, stops),
            max(map(len, begun), default=0),
            call=f"held_back({text!r}, {stops})",
            cause="only the end of the text counts, and only as far as a stop string begins so",
        )


def _first_end(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """What a reader of one character at a time would show, and the stop it meets."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.check(
    task=1,
    points=4,
    title="A stop string is found however the text is cut",
    hints=(
        "A stop string may be spread over many tokens, or one token may hold two of them.",
        "Add the piece to what is pending and search there; of the matches the one that ends first "
        "wins. Show the rest but for `held_back` characters.",
        "ends = [(pending.find(s) + len(s), s) for s in stops if s in pending]; take the smallest "
        "end, and show pending[:end - len(stop)].",
    ),
)
def test_stop_strings():
    def show(pieces, stops, include=False, armed=True):
        stop = StopStrings(stops, include)
        shown = []
        for piece in pieces:
            shown.append(stop.push(piece, armed))
            if stop.matched is not None:
                break
        return shown, stop.matched

    expect(
        show(["the E", "N", "D and more"], ["END"]),
        (["the ", "", ""], "END"),
        call='StopStrings(["END"]): push "the E", "N", "D and more"; what each showed, matched',
        cause="text that may still become a stop string must wait; text that cannot, must not",
    )
    expect(
        show(["one ENough", " EN", "DE"], ["END"]),
        (["one ENough", " ", ""], "END"),
        call='StopStrings(["END"]): push "one ENough", " EN", "DE"',
        cause="text that was held back and turned out harmless has to be shown after all",
    )
    expect(
        show(["abcd"], ["d", "bc", "abcd"]),
        (["a"], "bc"),
        call='StopStrings(["d", "bc", "abcd"]): push "abcd"',
        cause="of several matches in one piece, the one that ends first wins",
    )
    expect(
        show(["text E", "ND tail"], ["END"], include=True),
        (["text ", "END"], "END"),
        call='StopStrings(["END"], include_stop_str=True): push "text E", "ND tail"',
        cause="with include_stop_str the stop string is shown, and nothing after it",
    )
    expect(
        show(["an END", " E"], ["END"], armed=False),
        (["an END", " "], None),
        call='StopStrings(["END"]): push "an END", " E" with armed=False',
        cause="while not armed, a complete stop string is ordinary text",
    )

    @settings(derandomize=True, database=None, deadline=None, max_examples=50)
    @given(
        st.text(alphabet="abc", max_size=14),
        st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=3),
        st.lists(st.integers(1, 4), min_size=14, max_size=14),
    )
    def any_cut(text, stops, sizes):
        pieces, start = [], 0
        for size in sizes:
            pieces.append(text[start : start + size])
            start += size
        stop = StopStrings(stops)
        shown = ""
        for piece in pieces:
            shown += stop.push(piece)
            if stop.matched is not None:
                break
        expect(
            (shown + stop.flush(), stop.matched),
            _first_end(text, stops),
            call=f"StopStrings({stops!r}), fed {pieces!r}",
            cause="the shown text depends on how the tokens cut it",
        )

    any_cut()


@pytest.mark.check(
    task=1,
    points=3,
    title="Which token ids end a sample",
    hints=(
        "A model may have several end-of-sequence ids, and the request may add stop_token_ids.",
        "ignore_eos switches off the model's ids only. The first min_tokens tokens never end it.",
        "armed and ((token in eos and not ignore_eos) or token in params.stop_token_ids)",
    ),
)
def test_ends_by_id():
    settings_tried = {
        "plain": {},
        "ignore_eos": {"ignore_eos": True},
        "min_tokens 2": {"min_tokens": 2},
        "min_tokens 3": {"min_tokens": 3},
    }
    answers = {}
    for name, more in settings_tried.items():
        sample = _sample(SamplingParams(stop_token_ids=[5], **more), eos_token_ids=(2, 3))
        sample.output_token_ids += [8, 9, 9]
        answers[name] = [i for i in range(10) if sample.ends_by_id(i)]
    expect(
        answers,
        {"plain": [2, 3, 5], "ignore_eos": [5], "min_tokens 2": [2, 3, 5], "min_tokens 3": []},
        call="[i for i in range(10) if sequence.ends_by_id(i)], after 3 tokens of output",
        given={"eos_token_ids": (2, 3), "stop_token_ids": [5]},
        cause="every end-of-sequence id counts, unless ignore_eos; stop_token_ids always do",
    )


@pytest.mark.check(
    task=1,
    points=2,
    title="max_tokens counts the output, the context counts everything",
    hints=(
        "There are two limits, and they count different things.",
        "max_tokens may be None: then only the context ends it.",
        "num_tokens >= max_model_len or (max_tokens is not None and len(output) >= max_tokens)",
    ),
)
def test_out_of_room():
    def lengths(max_tokens, max_model_len):
        sample = _sample(SamplingParams(max_tokens=max_tokens), max_model_len)
        while not sample.out_of_room() and len(sample.output_token_ids) < 30:
            sample.output_token_ids.append(9)
        return len(sample.output_token_ids)

    expect(
        [lengths(*limits) for limits in ((5, 50), (20, 10), (None, 10), (7, 10), (1, 10))],
        [5, 7, 7, 7, 1],
        call="output tokens until sequence.out_of_room(), after a prompt of 3, for (max_tokens, "
        "max_model_len) = (5, 50), (20, 10), (None, 10), (7, 10), (1, 10)",
        cause="max_tokens does not count the prompt; max_model_len does",
    )


@pytest.mark.check(
    task=1,
    points=4,
    title="A token becomes text, and may end the sample",
    hints=(
        "Order: record the token, get its text, pass it through the stop strings, then decide.",
        "A token id that ends the sample adds no text (unless include_stop_str_in_output). Before "
        "the last event, show what the detokenizer and the stop strings still hold.",
        "Decide in the order: by_id -> stop; stops.matched -> stop; out_of_room -> length. On an "
        "end without a match: text += stops.push(detokenizer.flush(), armed=False) + stops.flush()",
    ),
)
def test_append():
    pieces = ["<eos>", "He", "ll", "o E", "ND!", " E", "more", "<stop>"]

    def outcome(token_ids, rest="", **params):
        values = {"stop": ["END"], "max_tokens": 4, "stop_token_ids": [7], **params}
        sample = _sample(
            SamplingParams(**values), eos_token_ids=(0,), detokenizer=Spelled(pieces, rest)
        )
        events = _feed(sample, token_ids)
        texts = [event.text for event in events if isinstance(event, TokenGenerated)]
        last = events[-1]
        if not isinstance(last, Finished):
            return texts, None, None, None
        return (
            texts,
            last.completion.text,
            last.completion.finish_reason,
            last.completion.stop_reason,
        )

    expect(
        outcome([1, 2, 3, 4, 6]),
        (["He", "ll", "o ", ""], "Hello ", "stop", "END"),
        call="append tokens spelling He|ll|o E|ND!|more with stop=['END'], max_tokens=4: texts, "
        "text, finish_reason, stop_reason",
        cause="a stop string wins over max_tokens reached by the same token, and is left out",
    )
    expect(
        outcome([1, 0]),
        (["He", ""], "He", "stop", None),
        call="append He|<eos>: texts, text, finish_reason, stop_reason",
        cause="the end-of-sequence token stops the sample and adds no text; its reason is None",
    )
    expect(
        outcome([1, 7]),
        (["He", ""], "He", "stop", 7),
        call="append He|<stop> with stop_token_ids=[7]",
        cause="a stop token adds no text, and stop_reason names its id",
    )
    expect(
        outcome([1, 7], include_stop_str_in_output=True),
        (["He", "<stop>"], "He<stop>", "stop", 7),
        call="append He|<stop> with stop_token_ids=[7], include_stop_str_in_output=True",
        cause="include_stop_str_in_output also keeps the text of a stop token",
    )
    expect(
        outcome([1, 2, 2, 5], rest="\ufffd"),
        (["He", "ll", "ll", " E\ufffd"], "Hellll E\ufffd", "length", None),
        call="append He|ll|ll|' E' with max_tokens=4, the detokenizer holding half a character",
        cause="at the end, held text has to come out: the stop string can no longer complete, "
        "and the detokenizer has a rest",
    )
    expect(
        outcome([1, 2, 2, 5]),
        (["He", "ll", "ll", " E"], "Hellll E", "length", None),
        call="append He|ll|ll|' E' with max_tokens=4",
        cause="text held back for a stop string comes out when the sample ends without it",
    )
    expect(
        outcome([1, 0, 6, 7], min_tokens=3),
        (["He", "<eos>", "more", ""], "He<eos>more", "stop", 7),
        call="append He|<eos>|more|<stop> with min_tokens=3",
        cause="the first min_tokens tokens never end the sample",
    )
    sample = _sample(SamplingParams(max_tokens=2), request_id=4, index=1)
    expect(
        _feed(sample, [8, 9]),
        [
            TokenGenerated(4, 1, 8, "", 0.0),
            TokenGenerated(4, 1, 9, "", 0.0),
            Finished(4, 1, Completion(1, (8, 9), "", "length"), 0.0),
        ],
        call="the events of a sample of two tokens",
        cause="one TokenGenerated a token, and Finished right after the last",
    )


@pytest.mark.check(
    task=1,
    points=3,
    title="The prompt is read once, then one token a step",
    hints=(
        "Count what goes through the model: n prompt tokens, then each new token once.",
        "The last generated token is never fed back; logits are asked for one row a step.",
        "prefill: logits(forward_cached(model, cache, prompt)[-1:]); decode: "
        "logits(forward_cached(model, cache, newest))",
    ),
)
def test_prefill_once():
    model = ScriptedModel([9, 8, 7, 6, 5, 4, 3, 9, 8, 7, 6])
    clock = ManualClock()
    params = SamplingParams(temperature=0, max_tokens=4)
    generation = Generation(model, [4, 5, 6], params, sampler=argmax_sampler, clock=clock)
    steps = []
    while generation.phase is not Phase.FINISHED and len(steps) < 10:
        clock.advance(1.0)
        steps.append(generation.step())
    expect(
        {"tokens": model.computed, "positions": model.positions, "logit rows": model.logit_rows},
        {
            "tokens": [[4, 5, 6], [7], [6], [5]],
            "positions": [[0, 1, 2], [3], [4], [5]],
            "logit rows": [1, 1, 1, 1],
        },
        call="what Generation.step() gave the model, for a prompt of 3 and max_tokens=4",
        cause="the prompt goes in once; then the newest token alone, at the position after the "
        "last; logits of the last row only",
    )
    expect(
        [type(event) for event in steps[0]] + [len(step) for step in steps],
        [Prefilled, TokenGenerated, 2, 1, 1, 2],
        call="the events of each step",
        cause="the first step reports the prompt and the first token, the last one the end",
    )
    expect(steps[0][0], Prefilled(0, 3, 1.0), call="the first event", cause="time is clock()")
    expect.raises(
        RuntimeError,
        generation.step,
        call="step() of a finished generation",
        cause="a finished generation must say so",
    )


@cache
def _tiny_qwen3():
    """A random Qwen3 of transformers', and the same weights in our Transformer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(11)
    config = Qwen3Config(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=48, max_position_embeddings=64,
        eos_token_id=3, pad_token_id=0, bos_token_id=1,
    )  # fmt: skip
    theirs = Qwen3ForCausalLM(config).eval()
    for weight in theirs.parameters():
        if weight.dim() > 1:
            weight.data.normal_(0, 0.4)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return theirs, load_model(folder)


@pytest.mark.check(
    task=1,
    points=2,
    title="Logits and tokens equal transformers'",
    hints=(
        "Compare step by step: is the first wrong row the prompt's, or the first decode's?",
        "A wrong first row: not the last token's. A wrong second: position or cache.",
        "The newest token stands at position cache.length; forward_cached sees to it.",
    ),
)
def test_equals_transformers(rng):
    theirs, ours = _tiny_qwen3()
    prompt = rng.integers(4, 40, size=int(rng.integers(1, 9))).tolist()
    rows = []

    def recording(logits, batch):
        rows.append(logits[0].clone())
        return argmax_sampler(logits, batch)

    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    events = list(generate(ours, prompt, params, sampler=recording))
    expect(
        len(rows),
        12,
        call="rows of logits that reached the sampler, with max_tokens=12",
        given={"prompt": prompt},
        cause="one row of logits gives one token",
    )
    tokens = list(events[-1].completion.token_ids)
    with torch.no_grad():
        wanted = theirs(torch.tensor([prompt + tokens])).logits[0]
    expect(
        torch.stack(rows),
        wanted[len(prompt) - 1 : -1],
        call="the logits of each step, against one pass of transformers over the whole text",
        given={"prompt": prompt},
        atol=2e-4,
        cause="the logits that choose token i are those of the token before it",
    )
    chosen = wanted[len(prompt) - 1 : -1].argmax(-1).tolist()
    expect(tokens, chosen, call="completion.token_ids, greedily", given={"prompt": prompt})


@pytest.mark.check(
    task=1,
    points=1,
    title="The context fills to its last place",
    hints=(
        "A prompt of length 1 is a prompt; a context of 8 holds 8 tokens, the last one included.",
        "The last token is drawn but never stored, so the cache needs one place fewer.",
        "Let out_of_room decide; do not look at cache.capacity.",
    ),
)
def test_context_limit():
    outcomes = []
    for prompt, max_model_len in (([4], 8), ([4, 5, 6, 7, 8, 9, 10], 8), ([4], 2)):
        model = ScriptedModel([9, 8, 7], max_position=8)
        params = SamplingParams(temperature=0, max_tokens=None)
        events = _run(model, prompt, params, max_model_len=max_model_len)
        completion = events[-1].completion
        outcomes.append((len(prompt) + len(completion.token_ids), completion.finish_reason))
    first_eos = _run(ScriptedModel([2]), [4, 5])[-1].completion
    outcomes.append((2 + len(first_eos.token_ids), first_eos.finish_reason))
    expect(
        outcomes,
        [(8, "length"), (8, "length"), (2, "length"), (3, "stop")],
        call="tokens in all and finish_reason, for prompts of 1, 7 and 1 in contexts of 8, 8 and "
        "2, and for a first token that is the end of sequence",
        cause="the loop ends one token early or late, or misses an end at the first token",
    )
    model = ScriptedModel([9, 8], max_position=8)
    for prompt, words in (([], "no tokens"), ([4] * 8, "8 tokens"), ([4] * 9, "9 tokens")):
        expect.raises(
            ValueError,
            lambda prompt=prompt: generate(model, prompt, sampler=argmax_sampler),
            match=words,
            call=f"generate with a prompt of {len(prompt)} tokens in a context of 8",
        )


@pytest.mark.check(
    task=1,
    points=1,
    title="n samples share one prefill",
    hints=(
        "What does the second sample need that the first one left behind?",
        "Its first token comes from the prompt's logits; the cache has to forget the first sample.",
        "if not sequence.output_token_ids: cache.truncate(len(prompt)); return self.prompt_logits",
    ),
)
def test_samples_share_the_prompt():
    model = ScriptedModel([9, 8, 7, 6, 5, 4, 3, 9])
    seeds = []

    def recording(logits, rows):
        seeds.append(rows[0].seed)
        return argmax_sampler(logits, rows)

    params = SamplingParams(n=3, seed=5, max_tokens=3)
    events = list(generate(model, [4, 5], params, sampler=recording))
    expect(
        model.positions,
        [[0, 1], [2], [3], [2], [3], [2], [3]],
        call="the positions that n=3 samples of 3 tokens computed, after a prompt of 2",
        cause="the prompt is read once; each later sample starts again right behind it",
    )
    ends = [event.completion for event in events if isinstance(event, Finished)]
    expect(
        [(end.index, end.token_ids) for end in ends],
        [(0, (8, 7, 6)), (1, (8, 7, 6)), (2, (8, 7, 6))],
        call="index and tokens of the three completions (the model is scripted, so all are equal)",
        cause="a sample goes on where another one ended",
    )
    expect.that(
        len(set(seeds)) == 3,
        "the three samples have seeds of their own",
        observed=[seeds.index(seed) for seed in seeds],
        call="the seeds that reached the sampler",
    )


@pytest.mark.check(
    task=1,
    points=1,
    title="The bundled model's text equals transformers'",
    hints=(
        "Does the text differ, or only where it ends?",
        "Joined, the texts of the events are the text of the completion.",
        "text += what append returns as its last event's text, before the Finished",
    ),
)
def test_bundled_text():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = ROOT / "models" / "target"
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    spelling = AutoTokenizer.from_pretrained(folder)
    prompt = spelling("Once upon a time", add_special_tokens=False).input_ids
    with torch.no_grad():
        ids = theirs.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False)
    wanted = spelling.decode(ids[0, len(prompt) :], skip_special_tokens=True)
    stop = wanted[20:26]

    params = SamplingParams(temperature=0, max_tokens=30)
    events = _run(load_model(folder), prompt, params, tokenizer=Tokenizer.from_pretrained(folder))
    expect(
        events[-1].completion.text,
        wanted,
        call='greedy text of models/target after "Once upon a time", 30 tokens',
        cause="tokens or text differ from transformers'",
    )
    params = SamplingParams(temperature=0, max_tokens=30, stop=stop)
    events = _run(load_model(folder), prompt, params, tokenizer=Tokenizer.from_pretrained(folder))
    shown = "".join(event.text for event in events if isinstance(event, TokenGenerated))
    expect(
        [shown, events[-1].completion.text, events[-1].completion.finish_reason],
        [wanted[: wanted.index(stop)], wanted[: wanted.index(stop)], "stop"],
        call=f"the same with stop={stop!r}: texts of the events joined, text, finish_reason",
        cause="the shown text ends right before the stop string, which may span tokens",
    )
