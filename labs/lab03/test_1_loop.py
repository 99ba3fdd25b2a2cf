"""Task 1: the generate loop, from a prompt to a finished completion."""

from collections.abc import Sequence

import pytest
import torch

from grader import expect
from grader.course.paths import ROOT
from nanovllm.generation import chunked, loop
from nanovllm.generation.events import (
    Completion,
    Finished,
    Logprob,
    Prefilled,
    Sampled,
    TokenGenerated,
)
from nanovllm.generation.latency import ManualClock
from nanovllm.generation.loop import Generation, Phase, generate
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.rows import argmax_sampler
from nanovllm.generation.sequence import Sequence as Sample
from nanovllm.generation.stop import StopStrings
from nanovllm.model.cache import ContiguousCache, forward_cached
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model, load_model
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
    """A detokenizer whose tokens are the given pieces of text; it holds a "~" at the end back."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces, self.rest = pieces, ""

    def push(self, token_id: int) -> str:
        text = self.rest + self.pieces[token_id]
        self.rest = "~" if text.endswith("~") else ""
        return text.removesuffix("~")

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


def _whole(model, token_ids):
    """The logits of every token of a text, read in one pass."""
    ids = torch.as_tensor(token_ids)
    return model.logits(forward_cached(model, ContiguousCache(model.config, len(ids)), ids))


def _run(model, prompt, params=None, **more) -> list:
    params = params or SamplingParams(temperature=0)
    return list(generate(model, prompt, params, sampler=argmax_sampler, **more))


def _shown(pieces, stops, include=False, armed=True):
    """What each push returned until one matched, and the match."""
    stop = StopStrings(stops, include)
    shown = []
    for piece in pieces:
        shown.append(stop.push(piece, armed))
        if stop.matched is not None:
            break
    return shown, stop.matched


@pytest.mark.check(task=1, points=3, title="A stop string is found, and its beginning held back")
def test_stop_strings():
    expect(
        _shown(["the E", "N", "D and more"], ["END"]),
        (["the ", "", ""], "END"),
        call='StopStrings(["END"]): push "the E", "N", "D and more"; what each showed, matched',
        cause="text that may still become a stop string must wait; text that cannot, must not",
    )
    expect(
        _shown(["one ENough", " EN", "DE"], ["END"]),
        (["one ENough", " ", ""], "END"),
        call='StopStrings(["END"]): push "one ENough", " EN", "DE"',
        cause="text that was held back and turned out harmless has to be shown after all",
    )
    expect(
        _shown(["aab", "x"], ["aabaac", "bx"]),
        (["", "aa"], "bx"),
        call='StopStrings(["aabaac", "bx"]): push "aab", "x"',
        cause="the longest end of the text that begins a stop string waits, not the shortest",
    )
    expect(
        _shown(["abcd"], ["d", "bc", "abcd"]),
        (["a"], "bc"),
        call='StopStrings(["d", "bc", "abcd"]): push "abcd"',
        cause="of several matches in one piece, the one that ends first wins",
    )
    expect(
        _shown(["xbc"], ["c", "bc"]),
        (["x"], "bc"),
        call='StopStrings(["c", "bc"]): push "xbc"',
        cause="of two that end together, the longer wins",
    )
    expect(
        _shown(["text E", "ND tail"], ["END"], include=True),
        (["text ", "END"], "END"),
        call='StopStrings(["END"], include_stop_str=True): push "text E", "ND tail"',
        cause="with include_stop_str the stop string is shown, and nothing after it",
    )
    stop = StopStrings(["END"])
    stop.push("the END")
    expect(
        [stop.push(" and"), stop.push("END"), stop.flush(), stop.matched],
        ["", "", "", "END"],
        call='StopStrings(["END"]): push "the END", then push " and", "END", flush, matched',
        cause="after a match there is nothing more to show",
    )
    stop = StopStrings(["END"])
    expect(
        [stop.push("the EN"), stop.flush(), stop.flush(), stop.matched],
        ["the ", "EN", "", None],
        call='StopStrings(["END"]): push "the EN", then flush twice, matched',
        cause="flush gives what was held back, once",
    )


@pytest.mark.check(task=1, points=1, title="While not armed, a stop string is ordinary text")
def test_stop_strings_not_armed():
    expect(
        _shown(["an END", " E"], ["END"], armed=False),
        (["an END", " "], None),
        call='StopStrings(["END"]): push "an END", " E" with armed=False',
        cause="while not armed, a complete stop string is ordinary text",
    )
    stop = StopStrings(["END"])
    expect(
        [stop.push("the EN", armed=False), stop.push("D."), stop.matched],
        ["the ", "", "END"],
        call='push "the EN" with armed=False, then "D." armed: what each showed, matched',
        cause="a stop string counts when its last character comes in an armed push",
    )
    stop = StopStrings(["a", "ab"])
    expect(
        [stop.push("a", armed=False), stop.push("c"), stop.matched],
        ["", "ac", None],
        call='StopStrings(["a", "ab"]): push "a" with armed=False, then "c" armed',
        cause='"a" was complete before the push was armed, so it never counts; it was only held '
        'back as the beginning of "ab"',
    )


def _by_letter(pieces, stops, include):
    """A slow model of StopStrings: one letter at a time; what each push shows, and the match."""
    waiting, shown, matched = "", [], None
    for piece, armed in pieces:
        out = ""
        for letter in piece if matched is None else "":
            waiting += letter
            ended = [stop for stop in stops if armed and waiting.endswith(stop)]
            if ended:
                matched = max(ended, key=len)
                out += waiting if include else waiting[: len(waiting) - len(matched)]
                waiting = ""
                break
            begun = [n for s in stops for n in range(1, len(s)) if waiting.endswith(s[:n])]
            keep = max(begun, default=0)
            out += waiting[: len(waiting) - keep]
            waiting = waiting[len(waiting) - keep :]
        shown.append(out)
    return [*shown, waiting], matched


def _by_push(pieces, stops, include):
    stop = StopStrings(stops, include)
    shown = [stop.push(piece, armed) for piece, armed in pieces]
    return [*shown, stop.flush()], stop.matched


@pytest.mark.check(
    task=1, points=3, title="Any text, cut anywhere, against a search by letters", stress=True
)
def test_stop_strings_random(rng):
    def wrong(pieces, stops, include):
        return _by_push(pieces, stops, include) != _by_letter(pieces, stops, include)

    def word(longest):
        return "".join(rng.choice(list("abc"), int(rng.integers(longest[0], longest[1]))))

    for _ in range(300):
        stops = [word((1, 5)) for _ in range(int(rng.integers(1, 4)))]
        armed_from = int(rng.choice([0, 0, 1, 3, 9]))
        pieces = [(word((0, 5)), i >= armed_from) for i in range(int(rng.integers(1, 8)))]
        include = bool(rng.integers(2))
        if wrong(pieces, stops, include):
            # The shortest history that still fails: leave out what can be left out.
            for i in reversed(range(len(pieces))):
                if wrong(pieces[:i] + pieces[i + 1 :], stops, include):
                    pieces = pieces[:i] + pieces[i + 1 :]
            for i in reversed(range(len(stops))):
                if len(stops) > 1 and wrong(pieces, stops[:i] + stops[i + 1 :], include):
                    stops = stops[:i] + stops[i + 1 :]
            pushes = [(text, "armed" if armed else "not armed") for text, armed in pieces]
            expect(
                _by_push(pieces, stops, include),
                _by_letter(pieces, stops, include),
                call=f"StopStrings({stops}, include_stop_str={include}): what each push and the "
                "last flush showed, matched",
                given={"pushes": pushes},
                cause="the shortest failing history of 300 random ones; expected: what a search "
                "finds that reads one letter at a time",
            )


@pytest.mark.check(task=1, points=2, title="Which token ids end a sample")
def test_ends_by_id():
    def ends(token_id, **more):
        sample = _sample(SamplingParams(stop_token_ids=[5], **more), eos_token_ids=(2, 3))
        for token in (8, 9):
            sample.append(Sampled(token), 0.0)
        sample.append(Sampled(token_id), 0.0)
        return sample.finish_reason

    tried = {
        "plain": {},
        "ignore_eos": {"ignore_eos": True},
        "min_tokens 2": {"min_tokens": 2},
        "min_tokens 3": {"min_tokens": 3},
    }
    expect(
        {name: [i for i in range(8) if ends(i, **more) == "stop"] for name, more in tried.items()},
        {"plain": [2, 3, 5], "ignore_eos": [5], "min_tokens 2": [2, 3, 5], "min_tokens 3": []},
        call="the ids that end a sample as its third token (finish_reason stop), of 0 to 7",
        given={"eos_token_ids": (2, 3), "stop_token_ids": [5]},
        cause="every end-of-sequence id counts, unless ignore_eos; stop_token_ids always do; none "
        "does within the first min_tokens tokens",
    )
    sample = _sample(SamplingParams(stop_token_ids=[2, 5]), eos_token_ids=(2, 3))
    _feed(sample, [2])
    ignoring = _sample(SamplingParams(stop_token_ids=[2], ignore_eos=True), eos_token_ids=(2, 3))
    _feed(ignoring, [2])
    expect(
        [sample.stop_reason, ignoring.stop_reason],
        [None, 2],
        call="stop_reason of an id that is end of sequence and stop id: plain, with ignore_eos",
        cause="an end of sequence that is not ignored has the reason None, a stop id its number",
    )


@pytest.mark.check(task=1, points=2, title="max_tokens counts the output, the context everything")
def test_limits():
    def length(max_tokens, max_model_len):
        sample = _sample(SamplingParams(max_tokens=max_tokens), max_model_len)
        _feed(sample, [9] * 30)
        return len(sample.output_token_ids), sample.finish_reason

    expect(
        [length(*limits) for limits in ((5, 50), (20, 10), (None, 10), (7, 10), (1, 10))],
        [(5, "length"), (7, "length"), (7, "length"), (7, "length"), (1, "length")],
        call="output tokens and finish_reason, after a prompt of 3, for (max_tokens, "
        "max_model_len) = (5, 50), (20, 10), (None, 10), (7, 10), (1, 10)",
        cause="max_tokens does not count the prompt; max_model_len does",
    )


@pytest.mark.check(task=1, points=3, title="A token becomes text, and may end the sample")
def test_append():
    pieces = ["<eos>", "He", "ll", "o E", "ND!", " E", "more", "<stop>", " E~"]

    def outcome(token_ids, **params):
        values = {"stop": ["END"], "max_tokens": 4, "stop_token_ids": [7], **params}
        sample = _sample(SamplingParams(**values), eos_token_ids=(0,), detokenizer=Spelled(pieces))
        events = _feed(sample, token_ids)
        texts = [event.text for event in events if isinstance(event, TokenGenerated)]
        last = events[-1]
        if not isinstance(last, Finished):
            return texts, None, None, None
        end = last.completion
        return texts, end.text, end.finish_reason, end.stop_reason

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
        outcome([1, 0], include_stop_str_in_output=True),
        (["He", "<eos>"], "He<eos>", "stop", None),
        call="append He|<eos> with include_stop_str_in_output=True",
        cause="include_stop_str_in_output also keeps the text of an end-of-sequence token",
    )
    expect(
        outcome([3, 4, 6, 4], min_tokens=2, max_tokens=9),
        (["o ", "END!", "more", "ND!"], None, None, None),
        call="append 'o E'|ND!|more|ND! with stop=['END'], min_tokens=2",
        cause="a stop string that is complete within the first min_tokens tokens is ordinary text",
    )
    expect(
        outcome([1, 3, 4], stop_token_ids=[4], include_stop_str_in_output=True),
        (["He", "o ", "END!"], "Heo END!", "stop", 4),
        call="append He|o E|ND! with stop=['END'], the id of ND! in stop_token_ids, "
        "include_stop_str_in_output=True",
        cause="the text of a stop token comes after what waited, and is not searched for stop "
        "strings",
    )
    expect(
        outcome([1, 2, 2, 8]),
        (["He", "ll", "ll", " E~"], "Hellll E~", "length", None),
        call="append He|ll|ll|' E' with max_tokens=4, the detokenizer still holding '~'",
        cause="at the end, held text has to come out: the stop string can no longer complete, "
        "and the detokenizer has a rest",
    )
    expect(
        outcome([1, 8], max_tokens=2, stop=["E~"]),
        (["He", " E~"], "He E~", "length", None),
        call="append He|' E' with stop=['E~'], max_tokens=2, the detokenizer still holding '~'",
        cause="what the detokenizer holds at the end is not searched for stop strings",
    )
    expect(
        outcome([1, 8, 0]),
        (["He", " ", "E~"], "He E~", "stop", None),
        call="append He|' E'|<eos>, the detokenizer holding '~' before the last",
        cause="a token whose text is left out does not reach the detokenizer, and what that held "
        "comes out",
    )
    expect(
        outcome([1, 3, 0]),
        (["He", "o ", "E"], "Heo E", "stop", None),
        call="append He|o E|<eos>",
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


@pytest.mark.check(task=1, points=1, title="Log-probabilities are kept")
def test_logprobs_kept():
    sample = _sample(SamplingParams(max_tokens=2, logprobs=1))
    found = [{8: Logprob(-0.5, 1)}, {9: Logprob(-2.0, 2), 4: Logprob(-0.25, 1)}]
    events = sample.append(Sampled(8, found[0]), 0.0) + sample.append(Sampled(9, found[1]), 1.0)
    end = events[-1].completion
    expect(
        [[event.logprobs for event in events[:2]], list(end.logprobs), end.cumulative_logprob],
        [found, found, -2.5],
        call="logprobs of the two TokenGenerated and of the completion, cumulative_logprob",
        cause="what came with a token goes into its event, and stays in sequence.logprobs",
    )


@pytest.mark.check(task=1, points=2, title="The prompt is read once, then one token a step")
def test_prefill_once(monkeypatch):
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
    expect(
        [steps[0][0], [event.time for step in steps for event in step]],
        [Prefilled(0, 3, 1.0), [1.0, 1.0, 2.0, 3.0, 4.0, 4.0]],
        call="the first event; the times of all events, one second a step",
        cause="times are those of clock()",
    )
    expect.raises(
        RuntimeError,
        generation.step,
        call="step() of a finished generation",
        cause="a finished generation must say so",
    )
    for module in (loop, chunked):
        monkeypatch.setattr(module, "chunked_prefill", _in_pieces)
    found = []
    for chunk_size in (2, 1):
        model = ScriptedModel([9, 8, 7, 6, 5, 4, 3])
        params = SamplingParams(n=2, seed=1, max_tokens=2)
        _run(model, [4, 5, 6, 7, 8], params, chunk_size=chunk_size)
        found.append(model.positions)
    expect(
        found,
        [[[0, 1], [2, 3], [4], [5], [5]], [[0], [1], [2], [3], [4], [5], [5]]],
        call="positions of each pass for a prompt of 5, n=2, max_tokens=2, chunk_size=2, then 1 "
        "(with a chunked_prefill that is right)",
        cause="with chunk_size the prompt is read by chunked_prefill, once for all samples",
    )


def _in_pieces(model, cache, token_ids, chunk_size, on_chunk=None):
    """A chunked_prefill to stand in for that of task 4."""
    for piece in token_ids[cache.length :].split(chunk_size):
        hidden = forward_cached(model, cache, piece)
    return model.logits(hidden[-1:])


@pytest.mark.check(task=1, points=2, title="Logits equal those of the whole text computed anew")
def test_equals_recompute(rng, seed):
    windows = (None, 4)[int(rng.integers(2))]
    config = ModelConfig(
        "qwen3", 40, 32, 2, 4, 2, 8, 48, 64, qk_norm=True, eos_token_ids=(3,),
        windows=(windows, None) if windows else (),
    )  # fmt: skip
    model = dummy_model(config, seed=seed % 1000)
    prompt = rng.integers(4, 40, size=int(rng.integers(1, 9))).tolist()
    rows = []

    def recording(logits, batch):
        rows.append(logits[0].clone())
        return argmax_sampler(logits, batch)

    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    events = list(generate(model, prompt, params, sampler=recording))
    expect(
        len(rows),
        12,
        call="rows of logits that reached the sampler, with max_tokens=12",
        given={"prompt": prompt},
        cause="one row of logits gives one token",
    )
    text = prompt + list(events[-1].completion.token_ids)
    expect(
        torch.stack(rows),
        _whole(model, text)[len(prompt) - 1 : -1],
        call="the logits of each step, against one pass over the whole text",
        given={"prompt": prompt},
        atol=5e-4,
        cause="the logits that choose token i are those of the token before it",
    )


@pytest.mark.check(task=1, points=1, title="The context fills to its last place")
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
    for prompt in ([], [4] * 8, [4] * 9):
        expect.raises(
            ValueError,
            lambda prompt=prompt: generate(model, prompt, sampler=argmax_sampler),
            call=f"generate with a prompt of {len(prompt)} tokens in a context of 8",
        )


@pytest.mark.check(task=1, points=1, title="n samples share one prefill")
def test_samples_share_the_prompt():
    model = ScriptedModel([9, 8, 7, 6, 5, 4, 3, 9])
    seeds = []

    def recording(logits, rows):
        seeds.extend(row.seed for row in rows)
        return argmax_sampler(logits, rows)

    params = SamplingParams(n=3, seed=5, max_tokens=3)
    events = list(generate(model, [4, 5], params, sampler=recording))
    expect(
        sorted(position for step in model.positions for position in step),
        [0, 1, 2, 2, 2, 3, 3, 3],
        call="the positions that n=3 samples of 3 tokens computed, after a prompt of 2 (sorted)",
        cause="the prompt is read once; each sample starts right behind it",
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


@pytest.fixture
def auto():
    """Transformers' two loaders; importing them takes seconds, which are not the check's."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM, AutoTokenizer


@pytest.mark.check(task=1, points=1, title="The bundled model's text equals transformers'")
def test_bundled_text(auto):
    AutoModelForCausalLM, AutoTokenizer = auto
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
        call='greedy text of models/target after "Once upon a time", 30 tokens, '
        f"stop={stop!r}: texts of the events joined, text, finish_reason",
        cause="the shown text ends right before the stop string, which may span tokens",
    )
