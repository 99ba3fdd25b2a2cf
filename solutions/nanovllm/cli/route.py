"""`nanovllm route`: one address in front of several servers, its own or others'."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from nanovllm.cli.engine import select_code
from nanovllm.cli.errors import Refused
from nanovllm.cli.listen import listen
from nanovllm.cli.options import Code
from nanovllm.cli.screen import complain

if TYPE_CHECKING:
    from nanovllm.cluster.router import Router, RouterConfig

Urls = list[str] | None
ENDS = "to start here and to stop at the end."


def route(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- OPTIONS OF nanovllm serve]", help="Each server started here gets them."
        ),
    ] = None,
    server: Annotated[Urls, typer.Option(help="URL of a server; may be repeated.")] = None,
    prefill: Annotated[Urls, typer.Option(help="URL of one with --role prefill.")] = None,
    decode: Annotated[Urls, typer.Option(help="URL of one with --role decode.")] = None,
    start: Annotated[int, typer.Option(min=0, help=f"Servers {ENDS}")] = 0,
    start_prefill: Annotated[
        int, typer.Option(min=0, help=f"Those with --role prefill {ENDS}")
    ] = 0,
    start_decode: Annotated[int, typer.Option(min=0, help=f"Those with --role decode {ENDS}")] = 0,
    policy: Annotated[
        str,
        typer.Option(help="round_robin, least_loaded, power_of_two, rendezvous or prefix_aware."),
    ] = "prefix_aware",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for a server's bytes.")] = 600.0,
    patience: Annotated[
        float, typer.Option(min=0.1, help="Seconds in which a server must say that it is well.")
    ] = 5.0,
    code: Code = None,
) -> None:
    """Send OpenAI's clients to one of several servers: /v1/..., /health, /metrics.

    nanovllm route --start-prefill 2 --start-decode 2 -- --model models/target
    """
    select_code(code)
    import uvicorn

    from nanovllm.bench.stop_signals import unwound_by_signals
    from nanovllm.cluster.router import RouterConfig

    _check(policy, {"--server": server, "--prefill": prefill, "--decode": decode})
    if arguments and not start + start_prefill + start_decode:
        raise Refused(
            f"{arguments[0]} is for servers started here, and there are none; give --start, or "
            "--start-prefill and --start-decode."
        )
    if bool(start_prefill) > bool(start_decode or decode):
        raise Refused("--start-prefill needs servers that decode; give --start-decode too.")
    with ExitStack() as stack:
        if start + start_prefill + start_decode:
            stack.enter_context(unwound_by_signals())
        both = [*(server or ()), *_started(stack, start, arguments)]
        first = [*(prefill or ()), *_started(stack, start_prefill, arguments, "prefill")]
        peers = [word for url in first for word in ("--kv-peer", url.split("//")[1])]
        second = _started(stack, start_decode, [*(arguments or ()), *peers], "decode")
        config = RouterConfig(
            tuple(both), tuple(first), (*(decode or ()), *second), policy, timeout
        )
        sock = listen(host, port)
        where = f"http://{host}:{sock.getsockname()[1]}/v1"
        complain(f"the router listens at {where}; policy {policy}")
        settings = uvicorn.Config(
            _router(config, patience).app, log_config=None, access_log=False, server_header=False
        )
        uvicorn.Server(settings).run(sockets=[sock])


def _check(policy: str, given: dict[str, Urls]) -> None:
    """Raises Refused, before anything is started."""
    import httpx

    from nanovllm.cluster.routing_interface import POLICIES

    if policy not in POLICIES:
        raise Refused(f"--policy {policy} is not known: use {', '.join(POLICIES)}.")
    for option, urls in given.items():
        for url in urls or ():
            try:
                parsed = httpx.URL(url)
            except httpx.InvalidURL:
                parsed = httpx.URL()
            if parsed.scheme not in ("http", "https") or not parsed.host:
                raise Refused(
                    f"{option} {url} is no address of a server: give a URL, such as "
                    "http://127.0.0.1:8000."
                )


def _router(config: "RouterConfig", patience: float) -> "Router":
    """The router that lab 12 makes of lab 11's, where it is written."""
    from nanovllm.cluster.router import Router
    from nanovllm.llm.lab_packages import why_missing

    why = why_missing("lab12")
    if why is None:
        from nanovllm.resilience.careful_router import CarefulRouter

        try:
            return CarefulRouter(config, patience=patience)
        except NotImplementedError as error:
            why = str(error)
    complain(f"no deadlines, no breakers, no streams that go on elsewhere: {why}")
    return Router(config)


def _started(
    stack: ExitStack, count: int, arguments: Sequence[str] | None, role: str = ""
) -> list[str]:
    """Addresses of servers that live as long as the stack. Raises Refused."""
    from nanovllm.bench.serve_client import ServerError
    from nanovllm.bench.serve_process import own_server

    words, urls = [*(arguments or ()), *(["--role", role] * bool(role))], []
    for number in range(count):
        try:
            url, pid = stack.enter_context(own_server(words))
        except ServerError as error:
            raise Refused(str(error)) from None
        complain(f"{role or 'server'} {number}: {url}, process {pid}")
        urls.append(url)
    return urls
