"""PolicyRouter as Ray imports it, by its name (given; needs ray)."""

from ray.serve.request_router import RequestRouter  # pyright: ignore[reportMissingImports]

from nanovllm.cluster.ray_router import PolicyRouter


class Router(PolicyRouter, RequestRouter):
    """One for each handle of the engine's deployment."""
