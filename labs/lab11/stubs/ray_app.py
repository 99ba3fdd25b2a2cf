"""The engine on Ray Serve; needs what requirements-ray.txt names (given)."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanovllm.serving.app import Server


def make_server(name: str, folder: Path, options: dict[str, Any]) -> Server:
    """The server of a model, in the process of its replica."""
    from nanovllm.llm import LLM
    from nanovllm.serving.app import Server
    from nanovllm.serving.config import ServeConfig

    llm = LLM(folder, **options)
    config = ServeConfig(model_name=name)
    return Server(llm.runner.engine, config, llm.chat_template, llm.open_template)


def build_app(folders: dict[str, Path], args: argparse.Namespace) -> Any:
    """The application: gateway, engine with its router, autoscaling and multiplexing."""
    from ray import serve  # pyright: ignore[reportMissingImports]

    from nanovllm.cluster.autoscaler import Autoscaler
    from nanovllm.cluster.ray_engine import Engine, Gateway
    from nanovllm.cluster.ray_parts import deployment_options

    def make(name: str) -> Server:
        options = {"kv_cache_memory_bytes": args.kv_cache_memory_bytes}
        return make_server(name, folders[name], options)

    sizes = args.target, args.min_replicas, args.max_replicas, args.up_delay, args.down_delay
    routing = {
        "policy": args.policy,
        "models_per_replica": args.models_per_replica,
        "several": len(folders) > 1,
    }
    engine = serve.deployment(Engine).options(
        ray_actor_options={"num_cpus": args.num_cpus},
        request_router_config={
            "request_router_class": "nanovllm.cluster._ray_request_router:Router",
            "request_router_kwargs": routing,
        },
        **deployment_options(Autoscaler(*sizes), args.capacity, args.drain_seconds),
    )
    gateway = serve.deployment(serve.ingress()(Gateway)).options(
        max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0}
    )
    return gateway.bind(engine.bind(make, args.models_per_replica), list(folders))


def options() -> argparse.ArgumentParser:
    """What the application may be told."""
    found = argparse.ArgumentParser(
        prog="python -m nanovllm.cluster.ray_app", description="The engine on Ray Serve.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    found.add_argument("--models", help="a=PATH,b=PATH; the bundled model if left out")
    found.add_argument("--models-per-replica", type=int, default=2, help="loaded at once")
    found.add_argument("--policy", default="prefix_aware", help="as of `nanovllm route`")
    found.add_argument("--min-replicas", type=int, default=1)
    found.add_argument("--max-replicas", type=int, default=3)
    found.add_argument("--target", type=float, default=4.0, help="ongoing requests a replica")
    found.add_argument("--up-delay", type=float, default=5.0, help="seconds")
    found.add_argument("--down-delay", type=float, default=20.0, help="seconds")
    found.add_argument("--capacity", type=int, default=8, help="requests at a time, a replica")
    found.add_argument("--drain-seconds", type=float, default=30.0)
    found.add_argument("--num-cpus", type=float, default=1.0, help="of a replica")
    found.add_argument("--kv-cache-memory-bytes", type=int, default=1 << 28, help="of a model")
    found.add_argument("--host", default="127.0.0.1")
    found.add_argument("--port", type=int, default=8000)
    return found


def main() -> None:
    """Deploy, and stay until Ctrl-C."""
    args = options().parse_args()
    if importlib.util.find_spec("ray") is None:
        sys.exit("ray is not installed here; use an environment with requirements-ray.txt.")
    from ray import serve  # pyright: ignore[reportMissingImports]

    from nanovllm.llm.read_options import BUNDLED
    from nanovllm.llm.several_models import read_models

    folders = read_models(args.models) if args.models else {BUNDLED.name: BUNDLED}
    serve.start(http_options={"host": args.host, "port": args.port})
    serve.run(build_app(folders, args), name="nanovllm", blocking=True)


if __name__ == "__main__":
    main()
