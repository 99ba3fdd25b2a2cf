"""`nanovllm serve`: the bundled model, or another, behind OpenAI's interface."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanovllm.cli.config_file import as_yaml, take_config
from nanovllm.cli.engine import load_engine, select_code
from nanovllm.cli.errors import Refused
from nanovllm.cli.listen import listen
from nanovllm.cli.options import (
    BatchingOptions,
    Code,
    Device,
    Dtype,
    MaxModelLen,
    Model,
    with_groups,
)
from nanovllm.cli.screen import complain
from nanovllm.cli.serve_lora import lora_server, refuse_beside_lora
from nanovllm.cli.serve_models import several

if TYPE_CHECKING:
    from nanovllm.llm import LLM
    from nanovllm.serving.app import Server
    from nanovllm.serving.config import ServeConfig
    from nanovllm.tokenization.chat import ChatTemplate

EVIDENCE = Path("nanovllm-evidence.json")
# What --supervise changes where nothing else is said: seconds of silence mean that it has hung.
SUPERVISED: dict[str, Any] = {"distributed_executor_backend": "mp", "executor_timeout": 30.0}


@with_groups
def serve(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            is_eager=True,
            callback=take_config(lambda: serve),
            help="A YAML file of these options; what stands here wins over it.",
        ),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show what would be served, as such a file.")
    ] = False,
    model: Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    served_model_name: Annotated[
        str | None, typer.Option(help="What clients call it. (default: the model's own name)")
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="NANOVLLM_API_KEY", help="Who may ask; may be repeated."),
    ] = None,
    max_queue: Annotated[int, typer.Option(help="Samples that may wait; more get a 503.")] = 256,
    rate_limit: Annotated[
        int | None, typer.Option(help="Tokens a minute for each API key. (default: no limit)")
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds until a request gets what there is so far.")
    ] = 600.0,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that open requests get when the server stops.")
    ] = 30.0,
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(help="Web pages whose scripts may ask, or *; may be repeated."),
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(help="prefill or decode: one of several servers. (default: does both)"),
    ] = None,
    kv_transfer: Annotated[
        str, typer.Option(help="How K and V go from one to another: tcp, shm or nixl.")
    ] = "tcp",
    kv_peer: Annotated[
        list[str] | None,
        typer.Option(help="host:port of a server that prefills for this one; may be repeated."),
    ] = None,
    supervise: Annotated[
        bool,
        typer.Option(
            "--supervise",
            help="An engine that dies or hangs is started again, and open answers go on.",
        ),
    ] = False,
    evidence: Annotated[
        Path | None,
        typer.Option(
            help="With --supervise: the report for a person when nothing helps; the server is "
            "not ready until it is moved away. (default: nanovllm-evidence.json)"
        ),
    ] = None,
    kept_weights: Annotated[
        Path | None,
        typer.Option(
            help="With --supervise: a folder for a copy of the weights; new engines read it where "
            "the model's own have changed. (default: none is kept)"
        ),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            help="A file that keeps accepted requests over a restart: Prefer: respond-async, "
            "Idempotency-Key."
        ),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(help="a=PATH,b=PATH: several models; the first to be asked for is loaded."),
    ] = None,
    models_memory_bytes: Annotated[
        int | None,
        typer.Option(min=1, help="With --models: for all of them. (default: as all need together)"),
    ] = None,
    enable_lora: Annotated[
        bool, typer.Option("--enable-lora", help="Serve --lora-modules beside the model.")
    ] = False,
    lora_modules: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PATH of a LoRA adapter, as peft writes it; may be repeated."),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    otlp: Annotated[
        str | None,
        typer.Option(help="URL of a collector that gets spans of each request (OTLP over HTTP)."),
    ] = None,
    batching: BatchingOptions = BatchingOptions(),  # noqa: B008, frozen
    dtype: Dtype = None,
    device: Device = None,
    max_model_len: MaxModelLen = None,
    code: Code = None,
) -> None:
    """Serve a model to OpenAI's clients: /v1/completions, /v1/chat/completions, /metrics, /docs."""
    if log_level not in ("debug", "info", "warning", "error"):
        raise Refused(f"--log-level {log_level} is not known: use debug, info, warning or error.")
    # OpenMP's idle threads spin by default: between two steps the event loop wants their processor.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    select_code(code)
    if print_config:
        typer.echo(_whole_config(ctx.params, batching, supervise), nl=False)
        return
    from nanovllm.serving.config import ServeConfig, ServeConfigError
    from nanovllm.serving.logs import configure_logs
    from nanovllm.serving.run import run

    traced = _tracing(otlp)
    given: dict[str, Any] = batching.given()
    if role or enable_lora:
        given |= {"enforce_eager": True}
    for option, path in (("--evidence", evidence), ("--kept-weights", kept_weights)):
        if path and not supervise:
            raise Refused(f"{option} goes with --supervise; add that, or leave {option} out.")
    if supervise:
        if role:
            raise Refused("--supervise does not go with --role; leave one of them out.")
        given = SUPERVISED | given
    if enable_lora or lora_modules:
        alone = {"--role": role, "--supervise": supervise, "--journal": journal}
        refuse_beside_lora(enable_lora and bool(lora_modules), alone)
    how = {"dtype": dtype, "device": device, "max_model_len": max_model_len}
    try:
        settings = ServeConfig(
            api_keys=tuple(api_key or ()),
            max_queue=max_queue,
            rate_limit=rate_limit,
            timeout=timeout,
            drain_timeout=drain_timeout,
            allowed_origins=tuple(allowed_origins or ()),
        )
        if models or models_memory_bytes:
            alone = {"--model": model, "--served-model-name": served_model_name, "--role": role,
                     "--supervise": supervise, "--journal": journal, "--otlp": otlp,
                     "--enable-lora": enable_lora}  # fmt: skip
            _refuse_beside_models(models, alone)
            server = several(models or "", models_memory_bytes, settings, how, given, _server)
            sock, name, said = listen(host, port), ", ".join(server.names), server.said
        else:
            llm = load_engine(model=model, **how, **given)
            llm.level.require("lab04", "nanovllm serve")
            settings = replace(settings, model_name=served_model_name or llm.name)
            sock, name = listen(host, port), settings.model_name
            where = host, sock.getsockname()[1]
            if role:
                server = _with_role(llm, settings, role, kv_transfer, where, kv_peer)
            elif lora_modules:
                server = lora_server(llm, settings, lora_modules, *_templates(llm))
            elif supervise:
                patience = given["executor_timeout"]
                server = _supervised(llm, settings, patience, evidence, kept_weights)
            else:
                server = _server(llm, settings)
            said = f"{llm.engine_name}; {llm.rung.describe(server.engine.engine)}"
    except ServeConfigError as error:
        raise Refused(str(error)) from None
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise Refused(
            f"the server cannot start: {what}; see that what it needs is there and may be read."
        ) from None
    _take_deadlines(server)
    if journal is not None:
        _keep(server, journal)
    if not models and device is not None and device.startswith("cuda"):
        _export_cards(server)
    configure_logs(log_level)
    shown = f"[{host}]" if ":" in host else host
    where = f"http://{shown}:{sock.getsockname()[1]}"
    complain(
        f"{name} is served at {where}/v1 (docs: {where}/docs, dashboard: {where}/dashboard); {said}"
    )
    with traced(server):
        run(server, sock)


def _tracing(url: str | None) -> "Callable[[Any], AbstractContextManager[object]]":
    """Spans for a collector, if there is one: without it nothing of OpenTelemetry is imported.

    Raises Refused.
    """
    if url is None:
        return nullcontext
    from nanovllm.serving.config import ServeConfigError
    from nanovllm.telemetry.otlp import endpoint, tracing

    try:
        where = endpoint(url)
    except ServeConfigError as error:
        raise Refused(str(error)) from None
    return lambda server: tracing(server, where)


def _export_cards(server: Any) -> None:
    """The cards' own counters, where they can be read."""
    from nanovllm.telemetry.cards import CardMetrics, nvml_reader

    read = nvml_reader()
    if read is not None:
        CardMetrics(server.metrics.registry, read)


def _refuse_beside_models(models: str | None, alone: dict[str, Any]) -> None:
    if not models:
        raise Refused("--models-memory-bytes is for several models; give --models a=PATH,b=PATH.")
    for option, value in alone.items():
        if value:
            raise Refused(f"{option} is for one model; leave it or --models out.")


def _whole_config(params: dict[str, Any], batching: BatchingOptions, supervise: bool) -> str:
    """Every option with its value, the engine's own defaults filled in. Raises OptionError."""
    from nanovllm.llm.engine_levels import OPTIONS_OF, choose
    from nanovllm.llm.engine_options import read_engine_options

    options = asdict(read_engine_options((SUPERVISED if supervise else {}) | batching.given()))
    filled = {n: options.get(n) if value is None else value for n, value in params.items()}
    top = choose(batching.engine).lab
    return as_yaml({n: value for n, value in filled.items() if OPTIONS_OF.get(n, "") <= top})


def _with_role(
    llm: "LLM",
    config: "ServeConfig",
    role: str,
    connector: str,
    where: tuple[str, int],
    peers: list[str] | None,
) -> "Server":
    """A server that does part of the work. Raises ClusterError, OptionError."""
    from nanovllm.cluster.disaggregated import DisaggregatedServer
    from nanovllm.cluster.role import RoleConfig
    from nanovllm.llm.connected import connected_engine

    mine = RoleConfig(role, connector, *where, tuple(peers or ()))
    engine = connected_engine(llm, mine.seconds)
    return DisaggregatedServer(mine, engine, config, *_templates(llm))


def _server(llm: "LLM", config: "ServeConfig") -> "Server":
    from nanovllm.serving.app import Server

    return Server(llm.runner.engine, config, *_templates(llm))


def _supervised(
    llm: "LLM",
    config: "ServeConfig",
    patience: float,
    evidence: Path | None,
    kept_weights: Path | None,
) -> "Server":
    """A server whose engine is made anew when it dies or hangs. Raises Refused."""
    from nanovllm.resilience.guardian import Guardian
    from nanovllm.resilience.supervisor import SupervisedEngine
    from nanovllm.serving.app import Server

    guardian = Guardian(_maker(llm, kept_weights), patience, evidence or EVIDENCE)
    engine: Any = SupervisedEngine(guardian.make, engine=guardian.guard(llm.runner.engine))
    server = Server(engine, config, *_templates(llm))
    guardian.attach(server)
    return server


def _maker(llm: "LLM", keep: Path | None) -> "Callable[[], Any]":
    """Makes an engine from the weights that the first one read, or none. Raises Refused."""
    from nanovllm.resilience.errors import ResilienceError
    from nanovllm.resilience.kept_weights import Weights

    try:
        weights = Weights(llm.folder, keep)
    except ResilienceError as error:
        raise Refused(str(error)) from None

    model: Any = llm.model

    def make() -> Any:
        folder = str(weights.readable())
        if hasattr(model, "folder"):  # on ranks; new ones read it
            model.folder = folder
        return llm.rung.make_engine()

    return make


def _take_deadlines(server: Any) -> None:
    """Deadlines in headers are honoured, where lab 12 is here."""
    from nanovllm.llm.lab_packages import why_missing

    if why_missing("lab12") is None:
        from nanovllm.resilience.take_deadline import TakeDeadline

        server.app.add_middleware(TakeDeadline)


def _keep(server: Any, path: Path) -> None:
    from starlette.middleware import Middleware

    from nanovllm.resilience.durable import Durable
    from nanovllm.resilience.errors import JournalError
    from nanovllm.resilience.journal import Journal

    try:
        layer = Middleware(Durable, journal=Journal(path))
    except JournalError as error:
        raise Refused(str(error)) from None
    server.app.user_middleware.append(layer)  # the innermost: behind keys, sizes and the log


def _templates(llm: "LLM") -> tuple["ChatTemplate | None", "ChatTemplate | None"]:
    from nanovllm.tokenization.errors import ChatTemplateError

    try:
        return llm.chat_template, llm.open_template
    except ChatTemplateError:
        return None, None
