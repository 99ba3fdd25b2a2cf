"""The options that commands share, declared once."""

import inspect
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer

from nanovllm.cli.errors import Refused

SAMPLING, ENGINE = "Sampling", "Engine"
# Panels cut the names of options where there is little room; plain lists do not.
HELP = "rich" if shutil.get_terminal_size().columns >= 120 else None
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Folder or hub name. (default: the bundled model)"),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="float32, bfloat16, float16 or auto; if left out, bfloat16 on a GPU, else float32."
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, or a GPU by its name: cuda, mps. (default: cpu)")
]
MaxModelLen = Annotated[
    int | None, typer.Option(help="Longest context in tokens. (default: the model's)")
]


def finite(value: float | None) -> float | None:
    """The check of an option that is a number, and neither nan nor inf."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def above_zero(value: float | None) -> float | None:
    """The check of an option that is above 0, and finite."""
    if value is not None and not value > 0:
        raise typer.BadParameter(f"{value:g} is not above 0.")
    return finite(value)


Code = Annotated[
    str | None,
    typer.Option(
        help="Whose code: reference, mine, or lab02 (that lab mine). "
        "(default: yours where a lab is started, else the reference)"
    ),
]


GUESSES = 'Lab 08, as JSON: {"method": "ngram", "num_speculative_tokens": 4}.'
KV_CODES = "Lab 09: K and V in int8, int4 or fp8; auto is the model's dtype."
SLICES = "Lab 10: slices of each layer, each in a process of its own."
STAGES = "Lab 10: stages of layers, in processes of their own."
WEIGHT_CODES = "Lab 09: int8, int4 or w8a8 rounds the weights; a quantized folder needs no word."


def _option(help: str, *names: str, panel: str = SAMPLING) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=True)


def _engine(help: str, *names: str) -> Any:
    return _option(help, *names, panel=ENGINE)


@dataclass(frozen=True)
class BatchingOptions:
    """The fields of EngineOptions as options; None leaves EngineOptions' own default."""

    max_num_seqs: Annotated[int | None, _engine("Most samples that run at once.")] = None
    max_num_batched_tokens: Annotated[int | None, _engine("Most tokens of a step.")] = None
    adaptive_token_budget: Annotated[
        bool | None, _engine("Let that limit follow the step time.", "--adaptive-token-budget")
    ] = None
    scheduling_policy: Annotated[
        str | None,
        _engine("fcfs, sjf, deadline, round-robin, priority, priority-with-ageing, size-queues."),
    ] = None
    block_size: Annotated[int | None, _engine("Tokens that a block of the KV cache holds.")] = None
    num_gpu_blocks_override: Annotated[
        int | None, _engine("Blocks of the KV cache, on whatever device.")
    ] = None
    kv_cache_memory_bytes: Annotated[
        int | None, _engine("Bytes of the KV cache, in place of a number of blocks.")
    ] = None
    gpu_memory_utilization: Annotated[
        float | None, _engine("Share of a GPU's memory for weights, K and V.")
    ] = None
    swap_space: Annotated[
        float | None, _engine("GiB of host memory for preempted requests. (default: 0)")
    ] = None
    enable_prefix_caching: Annotated[
        bool | None,
        _engine(
            "Requests that begin alike share blocks.",
            "--enable-prefix-caching/--no-enable-prefix-caching",
        ),
    ] = None
    enforce_eager: Annotated[
        bool | None, _engine("Never the compiled step, nor CUDA graphs.", "--enforce-eager")
    ] = None
    engine: Annotated[
        str | None,
        _engine("static (lab 03), continuous (04) or paged (05). (default: the best that is here)"),
    ] = None
    speculative_config: Annotated[str | None, _engine(GUESSES)] = None
    kv_cache_dtype: Annotated[str | None, _engine(KV_CODES)] = None
    quantization: Annotated[str | None, _engine(WEIGHT_CODES)] = None
    tensor_parallel_size: Annotated[int | None, _engine(SLICES)] = None
    pipeline_parallel_size: Annotated[int | None, _engine(STAGES)] = None
    distributed_executor_backend: Annotated[
        str | None, _engine("mp: the model is in a process of its own, also if it is one.")
    ] = None
    executor_timeout: Annotated[
        float | None, _engine("Seconds after which a silent rank is dead. (default: 300)")
    ] = None

    def given(self) -> dict[str, Any]:
        """What was asked for, by EngineOptions' names."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        given = {name: value for name, value in values.items() if value is not None}
        if "speculative_config" in given:
            given["speculative_config"] = speculative(given["speculative_config"])
        return given


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


def speculative(text: str) -> Any:
    """What --speculative-config says."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise Refused(
            f"--speculative-config is not JSON ({error}); "
            'for example --speculative-config \'{"method": "ngram"}\'.'
        ) from None


def _bias(pair: str) -> tuple[int, float]:
    token, _, bias = pair.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise Refused(
            f"--logit-bias {pair!r} is not of the form ID=BIAS; for example --logit-bias 42=-5."
        ) from None


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of `command` that is one of these dataclasses by its fields."""
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if kind in (SamplingOptions, BatchingOptions):
            groups[parameter.name] = kind
        else:
            changed = {"kind": inspect.Parameter.KEYWORD_ONLY, "annotation": kind}
            parameters.append(parameter.replace(**changed))
    for kind in groups.values():
        its = get_type_hints(kind, include_extras=True)
        parameters += [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default,
                              annotation=its[f.name])
            for f in fields(kind)
        ]  # fmt: skip

    def flat(**given: Any) -> None:
        filled = {
            name: kind(**{f.name: given.pop(f.name) for f in fields(kind)})
            for name, kind in groups.items()
        }
        command(**given, **filled)

    flat.__name__, flat.__doc__ = command.__name__, command.__doc__
    flat.__signature__ = inspect.Signature(parameters)
    flat.__annotations__ = {p.name: p.annotation for p in parameters}
    return flat
