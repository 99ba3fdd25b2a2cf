"""`LLM` on tiny models of random weights: every form of prompt, every promise about outputs."""

import json
import math
import os
import shutil

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import transformers

from nanovllm import LLM, RequestOutput, SamplingParams
from nanovllm.batching.events import Stepped
from nanovllm.fast import available
from nanovllm.fast.cache import FastCache
from nanovllm.generation.beam import BeamSearchParams
from nanovllm.generation.errors import EmptyPromptError, PromptTooLongError, RequestError
from nanovllm.generation.params import ParamsError
from nanovllm.generation.stop import StopStrings
from nanovllm.llm import OptionError
from nanovllm.llm.engine_options import GIB
from nanovllm.model.errors import ModelFolderError
from nanovllm.tokenization import ChatTemplateError, Tokenizer, TokenizerError
from tests.tiny_checkpoint import SMALL, TARGET, save_random

UNICODE = [
    "plain ascii",
    "naïve café, Ærøskøbing",
    "e\u0301 is not é",  # combining mark against precomposed letter
    "東京タワーは高い",
    "한국어 문장",
    "مرحبا بالعالم",
    "שלום עולם",
    "हिन्दी में क्षत्रिय",
    "ไทยไม่มีช่องว่าง",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷 👍🏽",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𒀀 𓀀",
    "a\u200bb\u200dc\ufeffd\u00a0e\u2028f",
    "tabs\tand\nlines\r\nand\x00nulls\x1b[31m",
    "   spaces   everywhere   ",
    "\u202eright to left override",
    "<|not a token|> <|im_end",
    "ﬁ ligature ½ ² Ⅷ",
    "x" * 60,
]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A Qwen3 of random weights with the bundled tokenizer and a context of 96."""
    folder = tmp_path_factory.mktemp("tiny")
    save_random(folder, **SMALL)
    return folder


@pytest.fixture(scope="session")
def llm(checkpoint):
    return LLM(checkpoint)


def run(llm, prompts, **params):
    return llm.generate(prompts, SamplingParams(**params), use_tqdm=False)


def ids_of(outputs):
    return [[list(answer.token_ids) for answer in output.outputs] for output in outputs]


class TestPrompts:
    def test_forms_of_one_prompt(self, llm):
        ids = llm.tokenizer.encode("The dog")
        forms = [
            "The dog",
            ids,
            {"prompt": "The dog"},
            {"prompt_token_ids": ids},
            torch.tensor(ids),
        ]
        outputs = [run(llm, form, temperature=0.0) for form in forms]
        assert all(len(each) == 1 and isinstance(each[0], RequestOutput) for each in outputs)
        assert {tuple(each[0].prompt_token_ids) for each in outputs} == {tuple(ids)}
        assert len({each[0].outputs[0].text for each in outputs}) == 1
        assert [each[0].prompt for each in outputs] == ["The dog", None, "The dog", None, None]

    def test_many_forms_together_keep_their_order(self, llm):
        ids = llm.tokenizer.encode("c c c c c c")
        prompts = ["a", "b b b b b b b b b", ids, {"prompt": "d d"}, {"prompt_token_ids": ids[:2]}]
        outputs = run(llm, prompts, temperature=0.0, max_tokens=3)
        encode = llm.tokenizer.encode
        assert [o.prompt_token_ids for o in outputs] == [
            encode("a"), encode("b b b b b b b b b"), ids, encode("d d"), ids[:2]
        ]  # fmt: skip
        assert [o.request_id for o in outputs] == sorted((o.request_id for o in outputs), key=int)

    def test_no_prompts(self, llm):
        assert llm.generate([], SamplingParams()) == []

    @pytest.mark.parametrize("text", UNICODE)
    def test_unicode(self, llm, text):
        (output,) = run(llm, text, temperature=0.0, max_tokens=4)
        assert llm.tokenizer.decode(output.prompt_token_ids) == text
        theirs = transformers.AutoTokenizer.from_pretrained(TARGET)
        assert output.prompt_token_ids == theirs.encode(text)

    def test_lone_surrogates_are_no_crash(self, llm):
        (output,) = run(llm, "bad \ud800 text", max_tokens=2)
        output.outputs[0].text.encode()

    def test_special_tokens_in_a_prompt_are_special_and_in_a_chat_are_not(self, llm):
        end = llm.tokenizer.encode("<|im_end|>", allowed_special="all")
        assert run(llm, "a<|im_end|>", max_tokens=1)[0].prompt_token_ids[-1:] == end
        message = {"role": "user", "content": "a<|im_end|>b"}
        (output,) = llm.chat([message], SamplingParams(max_tokens=1), use_tqdm=False)
        assert output.prompt_token_ids.count(end[0]) == 1

    @pytest.mark.parametrize("prompt", ["", [[]], {"prompt": ""}, {"prompt_token_ids": []}, [""]])
    def test_empty(self, llm, prompt):
        with pytest.raises(EmptyPromptError, match="no tokens"):
            run(llm, prompt)

    @pytest.mark.parametrize(
        "prompt", [5, None, [None], {"text": "a"}, [1.5], [True], b"a", {"prompt": 3}, ["a", 1]]
    )
    def test_not_a_prompt(self, llm, prompt):
        with pytest.raises(RequestError, match="prompt") as caught:
            run(llm, prompt)
        assert str(caught.value).endswith(".") and "\n" not in str(caught.value)

    def test_one_bad_prompt_among_many_is_named_before_anything_runs(self, llm):
        with pytest.raises(EmptyPromptError, match="Prompt 2 of 3"):
            run(llm, ["a", "", "b"])

    def test_too_long(self, llm):
        with pytest.raises(PromptTooLongError, match="96"):
            run(llm, [[5] * 96])
        (output,) = run(llm, [[5] * 95], max_tokens=9, ignore_eos=True)
        answer = output.outputs[0]
        assert (len(answer.token_ids), answer.finish_reason) == (1, "length")

    def test_ids_outside_the_vocabulary(self, llm):
        with pytest.raises(RequestError, match="token id"):
            run(llm, [[1, 999_999]])

    def test_params_per_prompt(self, llm):
        each = [SamplingParams(max_tokens=k, ignore_eos=True) for k in (1, 2, 3)]
        outputs = llm.generate(["a b c", "a", "a b"], each, use_tqdm=False)
        assert [len(o.outputs[0].token_ids) for o in outputs] == [1, 2, 3]
        with pytest.raises(RequestError, match="3 SamplingParams for 2 prompts"):
            llm.generate(["a", "b"], each, use_tqdm=False)
        with pytest.raises(RequestError, match="SamplingParams"):
            llm.generate(["a"], {"max_tokens": 3}, use_tqdm=False)


class TestSeeds:
    PARAMS = {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True}
    PROMPTS = ["The dog", "a", "One day a small fox went to the river and", "1 2 3", "x y"]

    def test_the_same_alone_and_in_any_batch(self, checkpoint, llm):
        alone = [ids_of(run(llm, p, seed=5, **self.PARAMS))[0] for p in self.PROMPTS]
        assert ids_of(run(llm, self.PROMPTS, seed=5, **self.PARAMS)) == alone
        small = LLM(checkpoint, max_num_seqs=2)
        assert ids_of(run(small, self.PROMPTS, seed=5, **self.PARAMS)) == alone
        backwards = ids_of(run(llm, self.PROMPTS[::-1], seed=5, **self.PARAMS))
        assert backwards[::-1] == alone

    def test_streaming_draws_the_same(self, llm):
        params = SamplingParams(seed=5, **self.PARAMS)
        for prompt in self.PROMPTS:
            *_, last = llm.stream(prompt, params)
            assert [list(last.output.outputs[0].token_ids)] == ids_of(
                run(llm, prompt, seed=5, **self.PARAMS)
            )[0]

    def test_another_seed_draws_another_text(self, llm):
        texts = {run(llm, "a", seed=s, **self.PARAMS)[0].outputs[0].text for s in range(4)}
        assert len(texts) == 4

    def test_the_seed_of_the_engine(self, checkpoint):
        def texts(seed):
            engine = LLM(checkpoint, seed=seed)
            first = ids_of(run(engine, ["a", "a", "b b b b"], **self.PARAMS))
            return first + ids_of(run(engine, ["a"], **self.PARAMS))

        once, again, other = texts(3), texts(3), texts(4)
        assert once == again != other
        assert once[0] != once[1] != once[3]  # the same prompt, but another request
        assert texts(None) != texts(None)

    def test_params_with_a_seed_leave_others_alone(self, checkpoint):
        mixed = [SamplingParams(seed=1, **self.PARAMS), SamplingParams(temperature=0.0)]
        first = LLM(checkpoint).generate(["a", "b"], mixed, use_tqdm=False)
        assert ids_of(first)[1] == ids_of(run(LLM(checkpoint), "b", temperature=0.0))[0]


class TestAnswers:
    def test_n(self, llm):
        params = {"temperature": 1.0, "seed": 2, "max_tokens": 6, "ignore_eos": True}
        outputs = run(llm, ["a", "b c d"], n=3, **params)
        for output in outputs:
            assert [answer.index for answer in output.outputs] == [0, 1, 2]
            assert len({tuple(answer.token_ids) for answer in output.outputs}) == 3
        single = run(llm, ["a", "b c d"], **params)
        assert [ids[0] for ids in ids_of(outputs)] == [ids[0] for ids in ids_of(single)]
        assert outputs[0].metrics.generation_tokens == 18

    def test_n_larger_than_a_batch(self, checkpoint, llm):
        params = {"temperature": 1.0, "seed": 2, "max_tokens": 4, "n": 5}
        assert ids_of(run(LLM(checkpoint, max_num_seqs=2), ["a", "b"], **params)) == ids_of(
            run(llm, ["a", "b"], **params)
        )

    def test_stop_string(self, llm):
        (free,) = run(llm, "The", temperature=0.0, max_tokens=30, ignore_eos=True)
        text = free.outputs[0].text
        stop = text[len(text) // 2 : len(text) // 2 + 3]
        (cut,) = run(llm, "The", temperature=0.0, max_tokens=30, ignore_eos=True, stop=stop)
        answer = cut.outputs[0]
        assert answer.text == text[: text.index(stop)]
        assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
        (kept,) = run(
            llm, "The", temperature=0.0, max_tokens=30, ignore_eos=True, stop=[stop],
            include_stop_str_in_output=True,
        )  # fmt: skip
        assert kept.outputs[0].text == text[: text.index(stop)] + stop
        streamed = list(
            llm.stream(
                "The", SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, stop=stop)
            )
        )
        assert "".join(step.text for step in streamed) == answer.text

    def test_a_long_stop_string_costs_no_more_a_token_than_a_short_one(self):
        class Cut(str):
            """Counts the pieces that are cut from it."""

            cuts = 0

            def __getitem__(self, key):
                Cut.cuts += 1
                return super().__getitem__(key)

        stops = StopStrings([Cut("a" + "b" * 9999)])
        assert (stops.push("xyz "), Cut.cuts) == ("xyz ", 4)
        assert (stops.push("no a"), stops.push("bb"), stops.flush()) == ("no ", "", "abb")

    def test_stop_token(self, llm):
        (free,) = run(llm, "The", temperature=0.0, max_tokens=20, ignore_eos=True)
        ids = list(free.outputs[0].token_ids)
        (cut,) = run(
            llm, "The", temperature=0.0, max_tokens=20, ignore_eos=True, stop_token_ids=[ids[5]]
        )
        answer = cut.outputs[0]
        assert list(answer.token_ids) == ids[: ids.index(ids[5]) + 1]
        assert (answer.finish_reason, answer.stop_reason) == ("stop", ids[5])

    def test_end_of_sequence(self, llm):
        bias = {"temperature": 0.0, "max_tokens": 9, "logit_bias": {2: 100.0}}
        answer = run(llm, "a", **bias)[0].outputs[0]
        assert (list(answer.token_ids), answer.text, answer.finish_reason) == ([2], "", "stop")
        answer = run(llm, "a", ignore_eos=True, **bias)[0].outputs[0]
        assert (len(answer.token_ids), answer.finish_reason) == (9, "length")
        answer = run(llm, "a", ignore_eos=True, skip_special_tokens=False, **bias)[0].outputs[0]
        assert answer.text == "<|im_end|>" * 9
        answer = run(llm, "a", min_tokens=3, **bias)[0].outputs[0]
        assert len(answer.token_ids) == 4

    def test_the_tokenizers_own_end_token_ends_too(self, checkpoint, tmp_path):
        shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
        for name in ("config.json", "generation_config.json"):
            config = json.loads((tmp_path / name).read_text())
            config.pop("eos_token_id", None)
            (tmp_path / name).write_text(json.dumps(config))
        answer = run(LLM(tmp_path), "a", temperature=0.0, logit_bias={2: 100.0})[0].outputs[0]
        assert answer.finish_reason == "stop"

    def test_max_tokens_none_goes_to_the_end_of_the_context(self, llm):
        (output,) = run(llm, "a", max_tokens=None, ignore_eos=True)
        total = len(output.prompt_token_ids) + len(output.outputs[0].token_ids)
        assert (total, output.outputs[0].finish_reason) == (96, "length")

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_logprobs(self, llm, temperature):
        (output,) = run(llm, "The", temperature=temperature, max_tokens=5, logprobs=3, seed=1)
        answer = output.outputs[0]
        assert len(answer.logprobs) == len(answer.token_ids)
        for token, position in zip(answer.token_ids, answer.logprobs, strict=True):
            assert token in position and len(position) in (3, 4)
            ranks = sorted(entry.rank for entry in position.values())
            assert ranks[:3] == [1, 2, 3]
            assert position[token].decoded_token == llm.tokenizer.decode([token])
            assert sum(math.exp(entry.logprob) for entry in position.values()) <= 1 + 1e-4
        chosen = [p[t].logprob for t, p in zip(answer.token_ids, answer.logprobs, strict=True)]
        assert answer.cumulative_logprob == pytest.approx(sum(chosen))
        assert run(llm, "The", max_tokens=1)[0].outputs[0].logprobs is None

    @pytest.mark.parametrize("seed", range(len(UNICODE)))
    @pytest.mark.few(3)
    def test_stream_pieces_join_to_the_text(self, llm, seed):
        params = SamplingParams(temperature=1.0, max_tokens=24, seed=seed, ignore_eos=True)
        steps = list(llm.stream(UNICODE[seed], params))
        (whole,) = llm.generate(UNICODE[seed], params, use_tqdm=False)
        answer = whole.outputs[0]
        assert "".join(step.text for step in steps) == answer.text
        assert [i for step in steps for i in step.token_ids] == list(answer.token_ids)
        assert [step.finished for step in steps] == [False] * (len(steps) - 1) + [True]
        assert steps[-1].output.outputs[0] == answer
        assert steps[-1].kv_tokens == len(whole.prompt_token_ids) + 23

    def test_stream_refuses_at_the_call(self, llm):
        with pytest.raises(EmptyPromptError):
            llm.stream("")
        with pytest.raises(RequestError, match="n is 2"):
            llm.stream("a", SamplingParams(n=2))

    def test_beam_search(self, llm):
        outputs = llm.beam_search(["The", "a b c"], BeamSearchParams(beam_width=3, max_tokens=6))
        for output in outputs:
            assert [answer.index for answer in output.outputs] == [0, 1, 2]
            scores = [a.cumulative_logprob / len(a.token_ids) for a in output.outputs]
            assert scores == sorted(scores, reverse=True)
        greedy = run(llm, "The", temperature=0.0, max_tokens=6)
        assert ids_of(llm.beam_search("The", beam_width=1, max_tokens=6)) == ids_of(greedy)
        with pytest.raises(EmptyPromptError):
            llm.beam_search("", beam_width=2)
        with pytest.raises(ParamsError):
            llm.beam_search("a", beam_width=0)

    def test_metrics(self, llm):
        outputs = run(llm, ["a b c", "a"], max_tokens=5, ignore_eos=True)
        for output in outputs:
            metrics = output.metrics
            assert 0 < metrics.ttft <= metrics.latency
            assert metrics.prompt_tokens == len(output.prompt_token_ids)
            assert metrics.generation_tokens == 5
            assert metrics.tokens_per_second == pytest.approx(5 / metrics.latency)
            assert output.num_cached_tokens == 0

    def test_progress(self, llm, capsys):
        llm.generate(["a", "b"], SamplingParams(max_tokens=2))
        assert "Processed prompts: 100%" in capsys.readouterr().err
        llm.generate(["a", "b"], SamplingParams(max_tokens=2), use_tqdm=False)
        assert capsys.readouterr().err == ""


class TestSharedEngine:
    PARAMS = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}

    @staticmethod
    def watched(checkpoint, **options):
        """An LLM, and the steps that its engine will take."""
        engine, steps = LLM(checkpoint, **options), []

        def watch(event):
            if isinstance(event, Stepped):
                steps.append(event)

        engine.runner.on_event = watch
        return engine, steps

    def test_requests_join_as_others_leave(self, checkpoint):
        engine, steps = self.watched(checkpoint, max_num_seqs=2)
        each = [SamplingParams(temperature=0.0, max_tokens=k, ignore_eos=True) for k in (8, 2, 2)]
        engine.generate([[5] * 9, [6] * 4, [7] * 3], each, use_tqdm=False)
        assert len(steps) == 8  # two static batches would take 8 + 2
        assert sum(c.length for step in steps for c in step.chunks) == 9 + 4 + 3 + 7 + 1 + 1

    def test_a_step_computes_no_more_than_its_budget(self, checkpoint):
        engine, steps = self.watched(checkpoint, max_num_seqs=4, max_num_batched_tokens=7)
        outputs = run(engine, [[5] * 30, [6] * 20], **self.PARAMS)
        assert max(sum(c.length for c in step.chunks) for step in steps) == 7
        assert ids_of(outputs) == ids_of(run(LLM(checkpoint), [[5] * 30, [6] * 20], **self.PARAMS))

    def test_streams_read_in_turn_share_their_steps(self, checkpoint):
        engine, steps = self.watched(checkpoint)
        alone = ids_of(run(engine, ["a b", "c d"], **self.PARAMS))
        steps.clear()
        streams = [engine.stream(p, SamplingParams(**self.PARAMS)) for p in ("a b", "c d")]
        last = [piece for pair in zip(*streams, strict=True) for piece in pair][-2:]
        assert [[list(piece.output.outputs[0].token_ids)] for piece in last] == alone
        assert len(steps) == 6

    def test_a_stream_that_is_left_is_aborted(self, checkpoint):
        engine, steps = self.watched(checkpoint)
        half = engine.stream("a b", SamplingParams(**self.PARAMS))
        next(half)
        engine.stream("never read", SamplingParams(**self.PARAMS))
        half.close()
        steps.clear()
        run(engine, "c d", **self.PARAMS)
        assert {len(step.chunks) for step in steps} == {1}
        engine.runner.engine.check()

    def test_a_request_that_fails_raises_its_error_and_spoils_nothing(self, checkpoint):
        engine = LLM(checkpoint)
        before = ids_of(run(engine, "a b", **self.PARAMS))
        decode = engine.tokenizer.decode_bytes
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(engine.tokenizer), "token_bytes", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                run(engine, ["a b", "c"], **self.PARAMS)
        assert decode([5]) and ids_of(run(engine, "a b", **self.PARAMS)) == before

    def test_an_interrupt_leaves_a_working_engine(self, checkpoint):
        engine = LLM(checkpoint)
        before = ids_of(run(engine, "a b", **self.PARAMS))
        kept = engine.runner.engine
        with pytest.MonkeyPatch.context() as patch:

            def interrupt(*_):
                raise KeyboardInterrupt

            patch.setattr(engine.model, "logits", interrupt)
            with pytest.raises(KeyboardInterrupt):
                run(engine, ["a b", "c"], **self.PARAMS)
        assert ids_of(run(engine, "a b", **self.PARAMS)) == before
        assert engine.runner.engine is kept

    def test_a_broken_engine_tells_all_and_is_replaced(self, checkpoint):
        engine = LLM(checkpoint)
        before = ids_of(run(engine, "a b", **self.PARAMS))
        other = engine.stream("c", SamplingParams(**self.PARAMS))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine.runner.engine, "step", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                run(engine, "a b", **self.PARAMS)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            next(other)
        assert ids_of(run(engine, "a b", **self.PARAMS)) == before

    def test_the_cache_lives_on_between_calls(self, checkpoint):
        engine, steps = self.watched(checkpoint)
        (first,) = run(engine, [[5] * 40], **self.PARAMS)
        steps.clear()
        (again,) = run(engine, [[5] * 40], **self.PARAMS)
        assert ids_of([first]) == ids_of([again])
        assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 32)  # two blocks of 16
        assert [step.chunks[0].length for step in steps] == [8, 1, 1, 1, 1, 1]
        *_, last = engine.stream([5] * 40, SamplingParams(**self.PARAMS))
        assert last.output.num_cached_tokens == 32

    def test_the_cache_can_be_off(self, checkpoint):
        engine = LLM(checkpoint, enable_prefix_caching=False)
        outputs = [run(engine, [[5] * 40], **self.PARAMS)[0] for _ in range(2)]
        assert ids_of(outputs[:1]) == ids_of(outputs[1:])
        assert [output.num_cached_tokens for output in outputs] == [0, 0]

    def test_a_chat_recomputes_no_earlier_turn(self, checkpoint):
        engine, steps = self.watched(checkpoint)
        talk = [{"role": "user", "content": "Hello there, how are you?"}]
        params = SamplingParams(temperature=0.0, max_tokens=12)
        (answer,) = engine.chat(talk, params, use_tqdm=False)
        talk.append({"role": "assistant", "content": answer.outputs[0].text})
        talk.append({"role": "user", "content": "And now?"})
        steps.clear()
        (answer,) = engine.chat(talk, params, use_tqdm=False)
        prompt = len(answer.prompt_token_ids)
        assert answer.num_cached_tokens >= 16
        assert steps[0].chunks[0].length == prompt - answer.num_cached_tokens

    def test_samples_share_the_prompts_blocks(self, checkpoint):
        engine, steps = self.watched(checkpoint, num_gpu_blocks_override=6)
        params = {"temperature": 1.0, "seed": 1, "max_tokens": 8, "ignore_eos": True, "n": 3}
        (shared,) = run(engine, [[5] * 40], **params)
        assert max(len(step.chunks) for step in steps) == 3  # 3 x 3 blocks would not fit
        (apart,) = run(LLM(checkpoint, max_num_seqs=1), [[5] * 40], **params)
        assert ids_of([shared]) == ids_of([apart])

    def test_a_cache_too_small_for_the_request_says_so(self, checkpoint):
        engine = LLM(checkpoint, num_gpu_blocks_override=2)
        with pytest.raises(RequestError, match=r"Prompt 2 of 2: .*more than the store"):
            run(engine, ["a", [5] * 40], **self.PARAMS)
        assert len(run(engine, "a", **self.PARAMS)) == 1

    @pytest.mark.parametrize("blocks", [3, 4, 6])
    def test_preemption_changes_no_answer(self, checkpoint, blocks):
        prompts = [[5 + i] * (9 + 5 * i) for i in range(5)]
        plenty = run(LLM(checkpoint), prompts, max_tokens=16, temperature=1.0, seed=4)
        engine = LLM(checkpoint, num_gpu_blocks_override=blocks)
        assert ids_of(run(engine, prompts, max_tokens=16, temperature=1.0, seed=4)) == ids_of(
            plenty
        )

    def test_an_engine_that_does_nothing_is_no_hang(self, checkpoint):
        engine = LLM(checkpoint)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine.runner.engine, "step", list)
            with pytest.raises(RuntimeError, match="does nothing"):
                run(engine, "a b", **self.PARAMS)


class TestChat:
    HELLO = [{"role": "user", "content": "Hello"}]

    def test_one_and_many(self, llm):
        params = SamplingParams(temperature=0.0, max_tokens=6)
        (one,) = llm.chat(self.HELLO, params, use_tqdm=False)
        longer = [*self.HELLO, {"role": "assistant", "content": "Hi"}, *self.HELLO]
        many = llm.chat([self.HELLO, longer], params, use_tqdm=False)
        assert many[0].outputs == one.outputs
        assert len(many[1].prompt_token_ids) > len(many[0].prompt_token_ids)
        theirs = transformers.AutoTokenizer.from_pretrained(TARGET)
        for output, messages in zip(many, (self.HELLO, longer), strict=True):
            text = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            assert output.prompt == text
            assert output.prompt_token_ids == theirs.encode(text, add_special_tokens=False)

    @pytest.mark.parametrize("messages", [[], "Hello", [{"content": "no role"}], [[]]])
    def test_not_messages(self, llm, messages):
        if messages == []:
            assert llm.chat(messages, use_tqdm=False) == []
            return
        with pytest.raises(ChatTemplateError):
            llm.chat(messages, use_tqdm=False)

    def test_no_template(self, checkpoint, tmp_path):
        shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
        (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        config.pop("chat_template", None)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        engine = LLM(tmp_path)
        assert run(engine, "a", max_tokens=1)
        with pytest.raises(ChatTemplateError, match="template"):
            engine.chat(self.HELLO, use_tqdm=False)


class TestOptions:
    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "auto", torch.float32])
    def test_dtypes(self, checkpoint, dtype):
        engine = LLM(checkpoint, dtype=dtype)
        assert len(run(engine, ["a", "b c"], max_tokens=3, ignore_eos=True)) == 2
        width = torch.empty((), dtype=engine.dtype).element_size()
        assert engine.kv_bytes_per_token == 2 * 2 * 2 * 8 * width

    @pytest.mark.parametrize(
        ("option", "says"),
        [
            ({"dtype": "int3"}, "float32, bfloat16, float16 or auto"),
            ({"device": "toaster"}, "not here"),
            ({"device": "meta"}, "computes nothing"),
            ({"max_model_len": 97}, "96"),
            ({"max_model_len": 1}, "from 2"),
            ({"max_num_seqs": 0}, "at least 1"),
            ({"max_num_batched_tokens": 2}, "at least max_num_seqs"),
            ({"scheduling_policy": "lifo"}, "no policy 'lifo'"),
            ({"block_size": 0}, "block_size must be"),
            ({"block_size": 2.5}, "block_size must be"),
            ({"num_gpu_blocks_override": 0}, "num_gpu_blocks_override must be"),
            ({"kv_cache_memory_bytes": 100}, "one block of 16 tokens takes 4096"),
            ({"num_gpu_blocks_override": 9, "kv_cache_memory_bytes": 9000}, "give one of them"),
            ({"enable_prefix_caching": "no"}, "True or False"),
            ({"max_num_seq": 4}, "did you mean max_num_seqs"),
        ],
    )
    def test_bad_options(self, checkpoint, option, says):
        with pytest.raises(OptionError, match=says):
            LLM(checkpoint, **option)

    @pytest.mark.skipif(available() is not None, reason=f"no compiled step here: {available()}")
    @pytest.mark.parametrize("kind", ["auto", "int8"])
    def test_the_compiled_steps_longer_heads_take_no_more_than_they_may(self, checkpoint, kind):
        """Its heads of 8 are filled up to 32: fewer blocks have room, here and in host memory."""
        sizes = {"kv_cache_memory_bytes": 1 << 20, "swap_space": 0.001, "kv_cache_dtype": kind}
        engine = LLM(checkpoint, enforce_eager=False, **sizes).runner.engine
        cache = engine.store.cache
        assert isinstance(cache, FastCache) and 0.9 * (1 << 20) < cache.nbytes <= 1 << 20
        host = cache._host if kind == "int8" else (cache.host_k, cache.host_v)
        assert 0.9 * 0.001 < sum(x.nbytes for x in host) / GIB <= 0.001
        with pytest.raises(OptionError, match="one block of 16 tokens takes"):
            LLM(checkpoint, enforce_eager=False, kv_cache_memory_bytes=4096 if kind == "auto" else
                16 * 96, kv_cache_dtype=kind)  # fmt: skip

    def test_max_model_len(self, checkpoint):
        engine = LLM(checkpoint, max_model_len=8)
        (output,) = run(engine, [[5] * 5], max_tokens=50, ignore_eos=True)
        assert len(output.outputs[0].token_ids) == 3
        with pytest.raises(PromptTooLongError):
            run(engine, [[5] * 8])

    def test_another_tokenizer(self, checkpoint, tmp_path):
        own = Tokenizer.from_pretrained(TARGET)
        for tokenizer in (own, TARGET, str(TARGET)):
            engine = LLM(checkpoint, tokenizer=tokenizer)
            assert engine.get_tokenizer().encode("a b") == own.encode("a b")

    def test_missing_pieces(self, checkpoint, tmp_path):
        with pytest.raises(ModelFolderError, match="no folder"):
            LLM(tmp_path / "nowhere")
        with pytest.raises(ModelFolderError, match="HF_HUB_OFFLINE"):
            LLM("someone/some-model-that-is-not-cached")
        shutil.copytree(checkpoint, tmp_path / "a")
        (tmp_path / "a" / "model.safetensors").unlink()
        with pytest.raises(ModelFolderError, match="safetensors"):
            LLM(tmp_path / "a")
        shutil.copytree(checkpoint, tmp_path / "b")
        (tmp_path / "b" / "tokenizer.json").unlink()
        with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
            LLM(tmp_path / "b")
        shutil.copytree(checkpoint, tmp_path / "c")
        config = json.loads((tmp_path / "c" / "config.json").read_text())
        (tmp_path / "c" / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
        with pytest.raises(ModelFolderError, match="mamba"):
            LLM(tmp_path / "c")


@pytest.mark.parametrize(
    "name", ["stop", "stop_token_ids", "allowed_token_ids", "bad_words", "bad_words_token_ids"]
)
@pytest.mark.parametrize("value", [5, 0, 1.5, object(), [[1], [None]], [{}], [None], [[[1]]]])
def test_what_is_no_list_of_its_kind_is_one_sentence(name: str, value: object) -> None:
    with pytest.raises(ParamsError, match=f"^{name} must"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "item"),
    [("stop", "a"), ("stop_token_ids", 1), ("allowed_token_ids", 1), ("bad_words", "a"),
     ("bad_words_token_ids", [1])],
)  # fmt: skip
def test_any_kind_of_list_will_do(name: str, item: object) -> None:
    kept = getattr(SamplingParams(**{name: [item]}), name)
    for given in ((item,), iter([item]), (one for one in [item])):
        assert getattr(SamplingParams(**{name: given}), name) == kept
