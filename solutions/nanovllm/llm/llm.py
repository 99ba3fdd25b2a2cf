"""`LLM`: a model, its tokenizer, its chat template, and an engine that lives on between calls."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nanovllm.generation.beam import BeamSearchParams
from nanovllm.generation.errors import RequestError, check_request
from nanovllm.generation.events import Finished, Prefilled, TokenGenerated
from nanovllm.generation.keys import sample_seed
from nanovllm.generation.params import SamplingParams
from nanovllm.llm.engine_options import read_engine_options
from nanovllm.llm.forks import check_fork, note_threads
from nanovllm.llm.kv_codes import check_kv_cache, token_bytes
from nanovllm.llm.prompts import AnyPrompt, Prompt, read_params, read_prompt, read_prompts
from nanovllm.llm.ranks import choose_level, load
from nanovllm.llm.read_options import (
    BUNDLED,
    OptionError,
    read_device,
    read_dtype,
    read_max_model_len,
)
from nanovllm.llm.results import beam_outputs, completion_output, prompt_output
from nanovllm.llm.runner import Call, Runner
from nanovllm.llm.tracking import Tracker, UseTqdm
from nanovllm.llm.weight_codes import check_quantization
from nanovllm.model.loader import resolve_folder
from nanovllm.outputs import CompletionOutput, PromptLogprobs, RequestOutput, StreamOutput
from nanovllm.tokenization.chat import ChatTemplate
from nanovllm.tokenization.open_ended import open_ended
from nanovllm.tokenization.template_tools import read_named_tokens, read_templates
from nanovllm.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:  # a release may lack lab 05
    from nanovllm.paging.compacting import Compaction

Message = Mapping[str, Any]
Conversation = Sequence[Message]


class LLM:
    """A language model that answers prompts; those of one call, or of calls by several threads at
    the same time, share the engine's steps.

    model: a folder or hub name in Hugging Face format; the bundled model if None. tokenizer:
    another folder or hub name, or a Tokenizer; the model's own if None. dtype: float32, bfloat16,
    float16, or auto (the checkpoint's); by default bfloat16 on a GPU that has it, else float32.
    device: cpu, or a GPU by its name: cuda, mps. max_model_len: tokens of prompt and answer
    together. seed: what requests without one of their own draw from; None: fresh randomness.
    engine_options: see EngineOptions; the engine is the best that the labs here allow.

    Raises ModelFolderError, TokenizerError, OptionError or, where ranks cannot start, ExecutorDied;
    each one sentence with the way out.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        tokenizer: str | Path | Tokenizer | None = None,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        max_model_len: int | None = None,
        seed: int | None = 0,
        **engine_options: Any,
    ) -> None:
        check_fork()
        self.options = read_engine_options(engine_options)
        self.level = choose_level(self.options)
        self.level.check_options(engine_options)
        check_kv_cache(self.options)
        check_quantization(self.options.quantization)
        self.folder = resolve_folder(model if model is not None else BUNDLED)
        self.name = self.folder.name if model is None else str(model)
        self.device = read_device(device)
        self.dtype = read_dtype(dtype, self.folder, self.device)
        self._template_folder = self.folder
        if isinstance(tokenizer, str | Path):
            self._template_folder = resolve_folder(tokenizer)
        self.tokenizer = (
            tokenizer
            if isinstance(tokenizer, Tokenizer)
            else Tokenizer.from_pretrained(self._template_folder)
        )
        self.model = load(self.folder, self.dtype, self.device, self.options)
        note_threads()
        stops = (*self.model.config.eos_token_ids, *sorted(self.tokenizer.stop_ids))
        # A chat model may stop at a token that only its tokenizer's files name.
        self.model.config = replace(self.model.config, eos_token_ids=tuple(dict.fromkeys(stops)))
        self.max_model_len = read_max_model_len(max_model_len, self.model.config.max_position)
        self.rung = self.level.make(self.model, self.tokenizer, self.max_model_len, self.options)
        self.seed = seed
        self.runner = Runner(self.rung)
        self._requests = count()
        self._most_blocks = weakref.WeakKeyDictionary[Any, int]()  # by engine, as it was made

    @property
    def engine_name(self) -> str:
        """Which engine answers, in a few words: `paged continuous batching (lab05)`."""
        return self.level.engine_name

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V that one token takes in all layers, scales and all."""
        return token_bytes(self.model.config, self.dtype.itemsize, self.options)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The model's chat template. Raises ChatTemplateError where there is none."""
        return ChatTemplate.from_pretrained(self._template_folder)

    @cached_property
    def open_template(self) -> ChatTemplate:
        """The same, open at the end of the last message. Raises ChatTemplateError as that."""
        folder = self._template_folder
        return ChatTemplate(open_ended(read_templates(folder)), read_named_tokens(folder))

    def get_tokenizer(self) -> Tokenizer:
        """Return the tokenizer."""
        return self.tokenizer

    def encode_chat(self, messages: Conversation, **variables: Any) -> list[int]:
        """Return the token ids of a conversation, up to where the assistant's answer begins.

        Special tokens that a message spells stay plain text. With `continue_final_message` (and
        without `add_generation_prompt`) the last message goes on.
        """
        template, variables = self._template_for(variables)
        return template.encode(self.tokenizer, messages, **variables)

    def _chat_prompt(self, messages: Conversation, **variables: Any) -> Prompt:
        template, seen = self._template_for(variables)
        return Prompt(template.render(messages, **seen), self.encode_chat(messages, **variables))

    def _template_for(self, variables: dict[str, Any]) -> tuple[ChatTemplate, dict[str, Any]]:
        if not variables.get("continue_final_message"):
            return self.chat_template, variables
        if variables.get("add_generation_prompt", True):
            raise RequestError(
                "continue_final_message goes on with the last message, so it needs "
                "add_generation_prompt=False."
            )
        seen = {name: v for name, v in variables.items() if name != "continue_final_message"}
        return self.open_template, seen

    def generate(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        *,
        priority: int | Sequence[int] | None = None,
        deadline: float | Sequence[float | None] | None = None,
    ) -> list[RequestOutput]:
        """Answer one or many prompts; outputs come in the order of the prompts.

        priority: lower first, as in vLLM, and deadline: seconds from now in which the answer should
        be complete; one for all prompts or one for each, where the scheduling policy reads it.

        A prompt is a text, a list of token ids, or a dict with `prompt` or `prompt_token_ids`; the
        special tokens that a text spells are special. Raises RequestError before anything is
        computed.
        """
        asked = read_prompts(prompts, self.tokenizer)
        params = read_params(sampling_params, len(asked))
        samples = {next(self._requests): each.n for each in params}
        ids = list(samples)
        with Tracker(samples, use_tqdm) as tracker:
            urgency = self._urgency(priority, deadline, len(asked))
            call = self._submit(ids, asked, params, urgency)
            answers: dict[int, list[CompletionOutput]] = {i: [] for i in ids}
            scores: dict[int, PromptLogprobs] = {}
            for event in self.runner.events(call):
                tracker(event)
                if isinstance(event, Finished):
                    answer = completion_output(event.completion, self.tokenizer)
                    answers[event.request_id].append(answer)
                elif isinstance(event, Prefilled) and event.logprobs is not None:
                    scores[event.request_id] = prompt_output(event.logprobs, self.tokenizer)
        for each in answers.values():
            each.sort(key=lambda answer: answer.index)
        return [
            _request_output(i, prompt, answers[i], tracker, call.cached.get(i, 0), scores.get(i))
            for i, prompt in zip(ids, asked, strict=True)
        ]

    def _urgency(self, priority: Any, deadline: Any, count: int) -> list[dict[str, Any]]:
        """What was said of each of so many prompts, as the engine's arguments."""
        if priority is None and deadline is None:
            return [{}] * count
        self.level.require("lab04", "priority" if priority is not None else "deadline")
        each = {"priority": 0 if priority is None else priority, "deadline": deadline}
        for name, given in each.items():
            each[name] = list(given) if isinstance(given, list | tuple) else [given] * count
            if len(each[name]) != count:
                raise RequestError(
                    f"there are {len(each[name])} values of {name} for {count} prompts; give one "
                    "for all, or one for each."
                )
        return [dict(zip(each, values, strict=True)) for values in zip(*each.values(), strict=True)]

    def _submit(
        self,
        ids: Sequence[int],
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        urgency: Sequence[Mapping[str, Any]] = (),
    ) -> Call:
        """Queue requests; if one is refused, none is. Raises RequestError, which names it."""
        params = [prompt.params(each) for prompt, each in zip(prompts, params, strict=True)]
        for place, (prompt, each) in enumerate(zip(prompts, params, strict=True), 1):
            self._check(prompt, each, _where(place, prompts))
        call = Call()
        rows = zip(ids, prompts, params, urgency or [{}] * len(ids), strict=True)
        for place, (i, prompt, each, more) in enumerate(rows, 1):
            try:
                self.runner.submit(call, i, prompt.token_ids, each, self._seed(i), **more)
            except RequestError as error:
                self.runner.drop(call)
                raise type(error)(f"{_where(place, prompts)}{error}") from None
        return call

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        *,
        priority: int | Sequence[int] | None = None,
        deadline: float | Sequence[float | None] | None = None,
        **variables: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or many; `variables` go to the chat template.

        priority, deadline: as those of `generate`.
        """
        one = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Any = [messages] if one else messages
        prompts = [self._chat_prompt(c, **variables) for c in conversations]
        return self.generate(
            prompts, sampling_params, use_tqdm, priority=priority, deadline=deadline
        )

    def stream(
        self, prompt: AnyPrompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[StreamOutput]:
        """Answer one prompt piece by piece; the last piece carries the RequestOutput.

        Raises RequestError at the call, not at the first piece.
        """
        asked = read_prompt(prompt, self.tokenizer)
        (params,) = read_params(sampling_params, 1)
        if params.n != 1:
            raise RequestError(f"stream gives one answer, but n is {params.n}; use generate for n.")
        request = next(self._requests)
        tracker = Tracker({request: 1}, use_tqdm=False)
        call = self._submit([request], [asked], [params])
        pieces = self._stream(call, request, asked, tracker)
        weakref.finalize(pieces, self.runner.drop, call)  # if nobody ever reads it
        return pieces

    def _stream(
        self, call: Call, request: int, prompt: Prompt, tracker: Tracker
    ) -> Iterator[StreamOutput]:
        prompt_tokens, scores = len(prompt.token_ids), None
        for event in self.runner.events(call):
            tracker(event)
            stored = prompt_tokens + max(tracker.generated - 1, 0)  # the newest is not, yet
            if isinstance(event, Finished):
                answer = completion_output(event.completion, self.tokenizer)
                cached = call.cached.get(request, 0)
                output = _request_output(request, prompt, [answer], tracker, cached, scores)
                yield StreamOutput("", [], stored, output)
            elif isinstance(event, TokenGenerated):
                yield StreamOutput(event.text, [event.token_id], stored)
            elif isinstance(event, Prefilled):
                if event.logprobs is not None:
                    scores = prompt_output(event.logprobs, self.tokenizer)
                yield StreamOutput("", [], stored)

    def beam_search(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        params: BeamSearchParams | None = None,
        use_tqdm: UseTqdm = False,
        **options: Any,
    ) -> list[RequestOutput]:
        """Find the likeliest answers to each prompt, best first, by BeamSearchParams or its names.

        Raises RequestError before anything is computed.
        """
        params = params or BeamSearchParams(**options)
        asked = read_prompts(prompts, self.tokenizer)
        for place, prompt in enumerate(asked, 1):
            self._check(prompt, SamplingParams(), _where(place, asked))
        ids = [next(self._requests) for _ in asked]
        outputs = []
        with Tracker(dict.fromkeys(ids, 1), use_tqdm) as tracker:
            for request, prompt in zip(ids, asked, strict=True):
                with self.runner.lock:
                    found = self.rung.beam_search(prompt.token_ids, params)
                answers = beam_outputs(found, self.tokenizer)
                tracker.add(request, sum(len(h.token_ids) for h in found))
                outputs.append(_request_output(request, prompt, answers, tracker))
        return outputs

    def compact(self, num_blocks: int | None = None) -> "Compaction":
        """Move what requests hold to the low end of the cache, and give the rest of it back.

        num_blocks: of the cache from now on, at most as many as at first; None leaves its size. No
        text changes.
        Raises OptionError, and nothing has changed, where this engine or its open requests do not
        allow it.
        """
        self.level.require("lab05", "compact")
        from nanovllm.paging.compacting import CompactionError, compact_engine

        engine = self.runner.engine
        most = self._most_blocks.setdefault(engine, engine.store.num_blocks)
        if isinstance(num_blocks, int) and num_blocks > most:
            raise OptionError(
                f"compact: num_blocks is {num_blocks}, but the cache was made with {most}; give at "
                "most as many."
            )
        try:
            with self.runner.lock:
                return compact_engine(engine, num_blocks)
        except CompactionError as error:
            raise OptionError(str(error)) from None

    def _check(self, prompt: Prompt, params: SamplingParams, where: str = "") -> None:
        try:
            check_request(
                prompt.token_ids,
                params,
                vocab_size=self.model.config.vocab_size,
                max_model_len=self.max_model_len,
                has_tokenizer=True,
            )
        except RequestError as error:
            raise type(error)(f"{where}{error}") from None

    def _seed(self, request: int) -> int | None:
        return None if self.seed is None else sample_seed(self.seed, request)


def _where(place: int, prompts: Sequence[Prompt]) -> str:
    return f"Prompt {place} of {len(prompts)}: " if len(prompts) > 1 else ""


def _request_output(
    request: int,
    prompt: Prompt,
    answers: list[CompletionOutput],
    tracker: Tracker,
    cached: int = 0,
    scores: PromptLogprobs | None = None,
) -> RequestOutput:
    metrics = tracker.metrics(request, len(prompt.token_ids), cached)
    return RequestOutput(
        str(request), prompt.text, prompt.token_ids, answers, metrics, prompt_logprobs=scores
    )
