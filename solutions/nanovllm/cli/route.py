"""`nanovllm route`: one address in front of several servers."""

from typing import Annotated

import typer

from nanovllm.cli.engine import select_code
from nanovllm.cli.errors import Refused
from nanovllm.cli.options import Code
from nanovllm.cli.screen import complain

Urls = list[str] | None


def route(
    server: Annotated[Urls, typer.Option(help="URL of a server; may be repeated.")] = None,
    prefill: Annotated[Urls, typer.Option(help="URL of one with --role prefill.")] = None,
    decode: Annotated[Urls, typer.Option(help="URL of one with --role decode.")] = None,
    policy: Annotated[
        str,
        typer.Option(help="round_robin, least_loaded, power_of_two, rendezvous or prefix_aware."),
    ] = "prefix_aware",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for a server's bytes.")] = 600.0,
    code: Code = None,
) -> None:
    """Send OpenAI's clients to one of several servers: /v1/..., /health, /metrics."""
    select_code(code)
    import uvicorn

    from nanovllm.cluster.router import Router, RouterConfig
    from nanovllm.serving.run import bind

    urls = (tuple(given or ()) for given in (server, prefill, decode))
    router = Router(RouterConfig(*urls, policy=policy, timeout=timeout))
    try:
        sock = bind(host, port)
    except OSError as error:
        raise Refused(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port."
        ) from None
    complain(f"the router listens at http://{host}:{sock.getsockname()[1]}/v1; policy {policy}")
    settings = uvicorn.Config(router.app, log_config=None, access_log=False, server_header=False)
    uvicorn.Server(settings).run(sockets=[sock])
