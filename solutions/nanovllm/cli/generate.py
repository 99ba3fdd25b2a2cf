"""`nanovllm generate`: one prompt streams, several share batches and end in a table."""

import contextlib
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanovllm.cli.begun import Begun, with_torch
from nanovllm.cli.engine import announce, load_engine, params_of
from nanovllm.cli.errors import Refused
from nanovllm.cli.options import (
    BatchingOptions,
    Code,
    Device,
    Dtype,
    MaxModelLen,
    Model,
    SamplingOptions,
    with_groups,
)
from nanovllm.cli.recording import Recording

if TYPE_CHECKING:
    from nanovllm.llm import LLM

_BEAM_OPTIONS = ("max_tokens", "ignore_eos", "seed")
_URGENCY: dict[str, Any] = {"priority": 0, "deadline": None}  # what it is where nobody says it
Prompt = str | dict[str, Any]


@with_groups
def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="One or more prompts.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="A prompt a line; .jsonl: an object a line with prompt "
            "or prompt_token_ids, and priority or deadline; - reads stdin.",
        ),
    ] = None,
    model: Model = None,
    sampling: SamplingOptions = SamplingOptions(),  # noqa: B008, frozen
    n: Annotated[int, typer.Option("--n", "-n", help="Answers a prompt.")] = 1,
    logprobs: Annotated[
        int | None, typer.Option(help="Log-probabilities of the k likeliest tokens, with --json.")
    ] = None,
    beam: Annotated[
        int | None, typer.Option(help="Beam search of this width in place of sampling.")
    ] = None,
    length_penalty: Annotated[
        float, typer.Option(help="With --beam: above 1 favours longer answers.")
    ] = 1.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a prompt on stdout.")
    ] = False,
    chat_template: Annotated[
        bool, typer.Option("--chat", help="Ask each prompt as a chat message.")
    ] = False,
    replay: Annotated[
        Path | None,
        typer.Option(
            help="Show who ran in which step, and write the run as a page to this .html file.",
        ),
    ] = None,
    batching: BatchingOptions = BatchingOptions(),  # noqa: B008, frozen
    dtype: Dtype = None,
    device: Device = None,
    max_model_len: MaxModelLen = None,
    code: Code = None,
) -> None:
    """Continue text: one prompt streams, several are answered in batches."""
    if beam is None and length_penalty != 1.0:
        raise Refused(
            "--length-penalty ranks what a beam search finds; add --beam 4, or leave it out."
        )
    if beam is not None:
        _check_beam(sampling, n=n, logprobs=logprobs, replay=replay)
    asked = _collect(prompts or [], file)
    begun = with_torch()
    llm = load_engine(
        code, model=model, dtype=dtype, device=device, max_model_len=max_model_len,
        seed=sampling.seed or 0, **batching.given(),
    )  # fmt: skip
    urgency = _urgency(asked)
    if beam is not None and urgency:
        raise Refused(f"--beam knows no {next(iter(urgency))}; leave one of them out.")
    recording = Recording(llm, replay) if replay else contextlib.nullcontext()
    given = [_as_chat(llm, prompt) for prompt in asked] if chat_template else asked
    if beam is not None:
        outputs = _beam(llm, given, sampling, beam, length_penalty)
    else:
        params = params_of(sampling, n=n, logprobs=logprobs)
        with recording:
            if len(given) == 1 and n == 1 and not as_json and not urgency:
                _stream(llm, given[0], params, begun)
                announce(llm)
                return
            outputs = _batch(llm, given, params, as_json, urgency)
    from nanovllm.cli.report import print_json, print_table

    labels = [prompt if isinstance(prompt, str) else None for prompt in asked]
    if as_json:
        print_json(outputs)
    else:
        print_table(outputs, labels)
    announce(llm)


def _collect(prompts: list[str], file: Path | None) -> list[Prompt]:
    found: list[Prompt] = list(prompts)
    if file is not None:
        found += _read(file)
    elif not found and not sys.stdin.isatty():
        found = [text] if (text := _stdin().removesuffix("\n")) else []
    if not found:
        raise Refused(
            'there is no prompt: give one, as in nanovllm generate "Once upon a time", or --file.'
        )
    return found


def _stdin() -> str:
    return sys.stdin.read().removeprefix("\ufeff")  # some editors' mark of UTF-8, no text


def _read(file: Path) -> list[Prompt]:
    try:
        text = _stdin() if str(file) == "-" else file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = "is not UTF-8 text" if isinstance(error, UnicodeError) else error.strerror
        raise Refused(
            f"cannot read the prompts of --file {file}: {why}; give a text file."
        ) from None
    lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if file.suffix != ".jsonl":
        return [line.removesuffix("\r") for _, line in lines]
    return [_json_prompt(file, number, line) for number, line in lines]


def _json_prompt(file: Path, number: int, line: str) -> Prompt:
    try:
        prompt = json.loads(line)
    except json.JSONDecodeError as error:
        raise Refused(
            f"{file}:{number} is not JSON: {error.msg}; write one object a line."
        ) from None
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, dict) and ("prompt" in prompt or "prompt_token_ids" in prompt):
        return {k: v for k, v in prompt.items() if k in ("prompt", "prompt_token_ids", *_URGENCY)}
    raise Refused(
        f'{file}:{number} has no prompt: write a string, {{"prompt": "..."}} or '
        '{"prompt_token_ids": [...]}.'
    )


def _urgency(asked: list[Prompt]) -> dict[str, list[Any]]:
    """What is said of each prompt, taken out of it; of a name that none has, nothing."""
    found: dict[str, list[Any]] = {}
    for name, none in _URGENCY.items():
        given = [prompt.pop(name, none) if isinstance(prompt, dict) else none for prompt in asked]
        if any(value != none or isinstance(value, bool) for value in given):
            found[name] = given
    return found


def _as_chat(llm: "LLM", prompt: Prompt) -> Prompt:
    text = prompt if isinstance(prompt, str) else prompt.get("prompt")
    if text is None:
        raise Refused("--chat needs prompts of text, not of token ids; leave it out.")
    return {"prompt_token_ids": llm.encode_chat([{"role": "user", "content": text}])}


def _stream(llm: "LLM", prompt: Prompt, params: Any, begun: Begun) -> None:
    from nanovllm.cli.meter import Meter
    from nanovllm.cli.screen import answer_screen

    steps = llm.stream(prompt, params)
    meter = Meter(llm.max_model_len, llm.kv_bytes_per_token)
    meter.begun = begun
    with answer_screen(meter) as screen:
        for step in steps:
            screen.push(step)


def _batch(
    llm: "LLM", prompts: list[Prompt], params: Any, quiet: bool, urgency: dict[str, list[Any]]
) -> list:
    from nanovllm.cli.report import Progress

    return llm.generate(prompts, params, use_tqdm=False if quiet else Progress, **urgency)


def _check_beam(
    sampling: SamplingOptions, n: int, logprobs: int | None, replay: Path | None
) -> None:
    given = [
        f.name
        for f in fields(sampling)
        if f.name not in _BEAM_OPTIONS and getattr(sampling, f.name) != f.default
    ]
    given += ["n"] * (n != 1) + ["logprobs"] * (logprobs is not None)
    given += ["replay"] * (replay is not None)
    if given:
        raise Refused(
            f"--beam finds the likeliest answers and draws none, so it takes no "
            f"--{given[0].replace('_', '-')}; leave out one of the two."
        )


def _beam(
    llm: "LLM", prompts: list[Prompt], sampling: SamplingOptions, width: int, penalty: float
) -> list:
    from nanovllm.cli.report import Progress

    return llm.beam_search(
        prompts,
        use_tqdm=Progress,
        beam_width=width,
        max_tokens=sampling.max_tokens,
        length_penalty=penalty,
        ignore_eos=bool(sampling.ignore_eos),
    )
