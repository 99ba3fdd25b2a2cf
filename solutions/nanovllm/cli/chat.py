"""`nanovllm chat`: a conversation in the terminal, or over a pipe, one message a line."""

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanovllm.cli.conversation import Conversation
from nanovllm.cli.engine import announce, load_engine, params_of
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

if TYPE_CHECKING:
    from nanovllm.llm import LLM

_HELP = """\
/reset   forget the conversation (the system message stays)
/help    show this
/exit    leave; so does Ctrl-D
Ctrl-C   stops the answer, not the program"""
_PROMPT = "you> "


@with_groups
def chat(
    model: Model = None,
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    sampling: SamplingOptions = SamplingOptions(),  # noqa: B008, frozen
    batching: BatchingOptions = BatchingOptions(),  # noqa: B008, frozen
    dtype: Dtype = None,
    device: Device = None,
    max_model_len: MaxModelLen = None,
    code: Code = None,
) -> None:
    """Talk to the model; it sees the whole conversation, and computes only what is new in it."""
    llm = load_engine(
        code, model=model, dtype=dtype, device=device, max_model_len=max_model_len,
        seed=sampling.seed or 0, **batching.given(),
    )  # fmt: skip
    announce(llm)
    params = params_of(sampling)
    room = min(params.max_tokens or llm.max_model_len, llm.max_model_len // 4)
    talk = Conversation(llm.encode_chat, llm.max_model_len, room, system)
    interactive = sys.stdin.isatty()
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401, line editing and history in input()
        _note(f"{llm.name}, context {llm.max_model_len} tokens; /help lists the commands.")
    while (text := _read(interactive)) is not None:
        if not text.strip():
            continue
        if text.startswith("/"):
            if not _command(text.strip(), talk):
                return
            continue
        _turn(llm, talk, text, params, interactive)


def _read(interactive: bool) -> str | None:
    """Return the next message, or None at the end of input; Ctrl-C only clears the line."""
    while True:
        try:
            if interactive:
                return input(_PROMPT)
            line = sys.stdin.readline()
            return line.rstrip("\r\n") if line else None
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            if not interactive:
                raise
            print()
            _note("/exit or Ctrl-D leaves.")


def _command(text: str, talk: Conversation) -> bool:
    """Do what a line that begins with / says; return False to leave."""
    if text in ("/exit", "/quit"):
        return False
    if text == "/reset":
        talk.reset()
        _note("The conversation starts anew.")
    elif text == "/help":
        _note(_HELP)
    else:
        from nanovllm.cli.screen import safe

        _note(f"There is no command {safe(text)}; /help lists them.")
    return True


def _turn(llm: "LLM", talk: Conversation, text: str, params: Any, interactive: bool) -> None:
    from nanovllm.cli.meter import Meter
    from nanovllm.cli.screen import answer_screen, complain
    from nanovllm.generation.errors import RequestError

    try:
        ids, dropped = talk.ask(text)
    except RequestError as error:
        if not interactive:
            raise
        complain(str(error))
        return
    if dropped:
        _note(
            f"The context of {llm.max_model_len} tokens is full: the oldest {dropped} messages "
            "are forgotten; /reset starts anew."
        )
    meter, pieces = Meter(llm.max_model_len, llm.kv_bytes_per_token), []
    try:
        with answer_screen(meter) as screen:
            try:
                for step in llm.stream({"prompt_token_ids": ids}, params):
                    pieces.append(step.text)
                    screen.push(step)
                    if step.output and step.output.outputs[0].finish_reason == "length":
                        cut = meter.tokens == params.max_tokens
                        meter.note = "cut at --max-tokens" if cut else "cut, the context is full"
            except KeyboardInterrupt:
                meter.note = "stopped"
    except KeyboardInterrupt:  # a second one, while the screen closes
        pass
    talk.answered("".join(pieces))


def _note(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
