"""The options that commands share, declared once."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer

from nanovllm.cli.errors import Refused

SAMPLING = "Sampling"
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Folder or hub name. (default: the bundled model)"),
]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16 or auto.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, ... (default: cuda where there is one)")
]
MaxModelLen = Annotated[
    int | None, typer.Option(help="Longest context in tokens. (default: the model's)")
]
Code = Annotated[
    str | None,
    typer.Option(
        help="Whose code: reference, mine, or lab02 (that lab mine). "
        "(default: yours where a lab is started, else the reference)"
    ),
]


def _option(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=SAMPLING, show_default=True)


@dataclass(frozen=True)
class SamplingOptions:
    """The fields of SamplingParams as options; None leaves SamplingParams' own default."""

    max_tokens: Annotated[int, _option("Most tokens in an answer.")] = 256
    temperature: Annotated[
        float, _option("0 takes the likeliest token.", "--temperature", "-t")
    ] = 0.0
    top_k: Annotated[int | None, _option("Only the k likeliest tokens.")] = None
    top_p: Annotated[float | None, _option("Only the likeliest tokens that hold this much.")] = None
    min_p: Annotated[
        float | None, _option("Only tokens at least this likely, relative to the best.")
    ] = None
    seed: Annotated[int | None, _option("The same seed gives the same answer.")] = None
    presence_penalty: Annotated[
        float | None, _option("Taken from tokens already in the answer.")
    ] = None
    frequency_penalty: Annotated[float | None, _option("The same, for each time they occur.")] = (
        None
    )
    repetition_penalty: Annotated[
        float | None, _option("Divides tokens seen, prompt included.")
    ] = None
    logit_bias: Annotated[list[str] | None, _option("ID=BIAS; may be repeated.")] = None
    min_tokens: Annotated[int | None, _option("No end before this many tokens.")] = None
    stop: Annotated[list[str] | None, _option("Stop at this text; may be repeated.")] = None
    stop_token_ids: Annotated[
        list[int] | None, _option("Stop at this token; may be repeated.", "--stop-token-id")
    ] = None
    ignore_eos: Annotated[bool | None, _option("Go on after an end token.", "--ignore-eos")] = None
    include_stop_str_in_output: Annotated[
        bool | None, _option("Keep the stop text.", "--include-stop")
    ] = None
    skip_special_tokens: Annotated[
        bool | None, _option("Show tokens such as <|im_end|>.", "--skip-special/--keep-special")
    ] = None

    def params(self, **more: Any) -> Any:
        """Return SamplingParams of what was given, and `more`."""
        from nanovllm.generation.params import SamplingParams

        given = {f.name: getattr(self, f.name) for f in fields(self)} | more
        given = {name: value for name, value in given.items() if value not in (None, [])}
        if "logit_bias" in given:
            given["logit_bias"] = dict(map(_bias, given["logit_bias"]))
        return SamplingParams(**given)


def _bias(pair: str) -> tuple[int, float]:
    token, _, bias = pair.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise Refused(
            f"--logit-bias {pair!r} is not of the form ID=BIAS; for example --logit-bias 42=-5."
        ) from None


def with_sampling(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `sampling` of `command` by the fields of SamplingOptions."""
    hints = get_type_hints(SamplingOptions, include_extras=True)
    kept = inspect.signature(command).parameters.values()
    added = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default,
                          annotation=hints[f.name])
        for f in fields(SamplingOptions)
    ]  # fmt: skip

    def flat(**given: Any) -> None:
        options = SamplingOptions(**{name: given.pop(name) for name in hints})
        command(**given, sampling=options)

    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in kept if p.name != "sampling"] + added
    flat.__name__, flat.__doc__ = command.__name__, command.__doc__
    flat.__signature__ = inspect.Signature(parameters)
    flat.__annotations__ = {p.name: p.annotation for p in parameters}
    return flat
