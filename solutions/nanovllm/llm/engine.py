"""`LLM`: a model, its tokenizer and its chat template, answering prompts (labs 01 to 03)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import torch

from nanovllm.generation.beam import BeamSearchParams, beam_search
from nanovllm.generation.errors import RequestError, check_request
from nanovllm.generation.events import Event, Finished, TokenGenerated
from nanovllm.generation.keys import sample_seed
from nanovllm.generation.loop import generate
from nanovllm.generation.params import SamplingParams
from nanovllm.generation.static_batch import BatchWaste, generate_static
from nanovllm.llm.options import BUNDLED, OptionError, read_device, read_dtype, read_max_model_len
from nanovllm.llm.prompts import AnyPrompt, Prompt, read_params, read_prompt, read_prompts
from nanovllm.llm.results import beam_outputs, completion_output
from nanovllm.llm.tracking import Tracker, UseTqdm
from nanovllm.model.loader import load_model, resolve_folder
from nanovllm.outputs import CompletionOutput, RequestOutput, StreamOutput
from nanovllm.tokenization.chat import ChatTemplate
from nanovllm.tokenization.tokenizer import Tokenizer

Message = Mapping[str, Any]
Conversation = Sequence[Message]


class LLM:
    """A language model that answers prompts, alone or in static batches.

    model: a folder or hub name in Hugging Face format; the bundled model if None. tokenizer:
    another folder or hub name, or a Tokenizer; the model's own if None. dtype: float32, bfloat16,
    float16, or auto (the checkpoint's). max_model_len: tokens of prompt and answer together.
    seed: what requests without a seed of their own draw from; None means fresh randomness.

    Raises ModelFolderError, TokenizerError or OptionError, each one sentence with the way out.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        tokenizer: str | Path | Tokenizer | None = None,
        dtype: str | torch.dtype = "float32",
        device: str | torch.device | None = None,
        max_model_len: int | None = None,
        seed: int | None = 0,
        *,
        max_num_seqs: int = 16,
    ) -> None:
        if max_num_seqs < 1:
            raise OptionError(f"max_num_seqs is {max_num_seqs}, but must be at least 1.")
        self.folder = resolve_folder(model if model is not None else BUNDLED)
        self.name = self.folder.name if model is None else str(model)
        self.device = read_device(device)
        self.dtype = read_dtype(dtype, self.folder)
        self._template_folder = self.folder
        if isinstance(tokenizer, str | Path):
            self._template_folder = resolve_folder(tokenizer)
        self.tokenizer = (
            tokenizer
            if isinstance(tokenizer, Tokenizer)
            else Tokenizer.from_pretrained(self._template_folder)
        )
        self.model = load_model(self.folder, self.dtype, self.device)
        stops = (*self.model.config.eos_token_ids, *sorted(self.tokenizer.stop_ids))
        # A chat model may stop at a token that only its tokenizer's files name.
        self.model.config = replace(self.model.config, eos_token_ids=tuple(dict.fromkeys(stops)))
        self.max_model_len = read_max_model_len(max_model_len, self.model.config.max_position)
        self.max_num_seqs = max_num_seqs
        self.seed = seed
        self.waste = BatchWaste()  # of the last call of generate
        self._requests = count()

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V that one token takes in all layers."""
        config = self.model.config
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * self.dtype.itemsize

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The model's chat template. Raises ChatTemplateError where there is none."""
        return ChatTemplate.from_pretrained(self._template_folder)

    def get_tokenizer(self) -> Tokenizer:
        """Return the tokenizer."""
        return self.tokenizer

    def encode_chat(self, messages: Conversation, **variables: Any) -> list[int]:
        """Return the token ids of a conversation, up to where the assistant's answer begins.

        Special tokens that a message spells stay plain text.
        """
        return self.chat_template.encode(self.tokenizer, messages, **variables)

    def _chat_prompt(self, messages: Conversation, **variables: Any) -> Prompt:
        text = self.chat_template.render(messages, **variables)
        return Prompt(text, self.encode_chat(messages, **variables))

    def generate(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
    ) -> list[RequestOutput]:
        """Answer one or many prompts; outputs come in the order of the prompts.

        A prompt is a text, a list of token ids, or a dict with `prompt` or `prompt_token_ids`; the
        special tokens that a text spells are special. The longest prompts share a batch, so that
        little is padded. Raises RequestError before anything is computed.
        """
        asked = read_prompts(prompts, self.tokenizer)
        params = read_params(sampling_params, len(asked))
        for place, (prompt, one) in enumerate(zip(asked, params, strict=True), 1):
            self._check(prompt, one, f"Prompt {place} of {len(asked)}: " * (len(asked) > 1))
        ids = [next(self._requests) for _ in asked]
        order = sorted(range(len(asked)), key=lambda i: -len(asked[i].token_ids))
        with Tracker([params[i].n for i in order], use_tqdm) as tracker:
            result = generate_static(
                self.model,
                [asked[i].token_ids for i in order],
                [params[i] for i in order],
                tokenizer=self.tokenizer,
                max_model_len=self.max_model_len,
                seeds=[self._seed(ids[i]) for i in order],
                max_num_seqs=self.max_num_seqs,
                clock=tracker.clock,
                on_event=tracker,
            )
        self.waste = result.waste
        outputs: list[RequestOutput | None] = [None] * len(asked)
        for place, i in enumerate(order):
            answers = [completion_output(c, self.tokenizer) for c in result.completions[place]]
            outputs[i] = _request_output(ids[i], asked[i], answers, tracker, place)
        return outputs

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        **variables: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or many; `variables` go to the chat template."""
        one = bool(messages) and isinstance(messages[0], Mapping)
        conversations = [messages] if one else messages
        prompts = [self._chat_prompt(c, **variables) for c in conversations]
        return self.generate(prompts, sampling_params, use_tqdm)

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
        self._check(asked, params)
        request = next(self._requests)
        tracker = Tracker([1], use_tqdm=False)
        events = generate(
            self.model,
            asked.token_ids,
            params,
            tokenizer=self.tokenizer,
            max_model_len=self.max_model_len,
            seed=self._seed(request),
            clock=tracker.clock,
        )
        return self._stream(request, asked, events, tracker)

    def _stream(
        self, request: int, prompt: Prompt, events: Iterator[Event], tracker: Tracker
    ) -> Iterator[StreamOutput]:
        prompt_tokens = len(prompt.token_ids)
        for event in events:
            tracker(event)
            if isinstance(event, Finished):
                answers = [completion_output(event.completion, self.tokenizer)]
                output = _request_output(request, prompt, answers, tracker, 0)
                yield StreamOutput("", [], prompt_tokens + tracker.tokens[0] - 1, output)
            elif isinstance(event, TokenGenerated):  # the newest token is not in the cache yet
                stored = prompt_tokens + tracker.tokens[0] - 1
                yield StreamOutput(event.text, [event.token_id], stored)
            else:
                yield StreamOutput("", [], prompt_tokens)

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
            self._check(prompt, SamplingParams(), f"Prompt {place}: " * (len(asked) > 1))
        outputs = []
        with Tracker([1] * len(asked), use_tqdm) as tracker:
            for place, prompt in enumerate(asked):
                found = beam_search(
                    self.model, prompt.token_ids, params, max_model_len=self.max_model_len
                )
                answers = beam_outputs(found, self.tokenizer)
                tracker.add(place, sum(len(h.token_ids) for h in found))
                request = next(self._requests)
                outputs.append(_request_output(request, prompt, answers, tracker, place))
        return outputs

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


def _request_output(
    request: int, prompt: Prompt, answers: list[CompletionOutput], tracker: Tracker, place: int
) -> RequestOutput:
    metrics = tracker.metrics(place, len(prompt.token_ids))
    return RequestOutput(str(request), prompt.text, prompt.token_ids, answers, metrics)
