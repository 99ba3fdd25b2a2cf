"""`nanovllm serve --models a=PATH,b=PATH`: several models under one budget of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nanovllm.cli.engine import load_engine

if TYPE_CHECKING:
    from nanovllm.cluster.model_specs import ModelSpec
    from nanovllm.cluster.models_server import ModelsServer
    from nanovllm.llm import LLM
    from nanovllm.serving.app import Server
    from nanovllm.serving.config import ServeConfig


def several(
    models: str,
    budget: int | None,
    config: ServeConfig,
    how: dict[str, Any],
    options: dict[str, Any],
    server_of: Callable[[LLM, ServeConfig], Server],
) -> ModelsServer:
    """The server of several models; none is loaded yet.

    how: LLM's dtype, device and max_model_len; options: its engine's. Raises OptionError,
    ModelFolderError, ClusterError for a model over the budget.
    """
    from nanovllm.cluster.models_server import ModelsServer
    from nanovllm.llm.several_models import model_specs, read_models

    folders = read_models(models)
    specs = model_specs(folders, **how, options=options)

    def make(spec: ModelSpec) -> Server:
        llm = load_engine(model=folders[spec.name], **how, **options)
        llm.level.require("lab04", "nanovllm serve")
        return server_of(llm, replace(config, model_name=spec.name))

    return ModelsServer(specs, budget or sum(spec.nbytes for spec in specs), make, config)
