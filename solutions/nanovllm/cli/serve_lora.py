"""`nanovllm serve --enable-lora --lora-modules NAME=PATH`: a model and adapters of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nanovllm.cli.errors import Refused

if TYPE_CHECKING:
    from nanovllm.llm import LLM
    from nanovllm.serving.app import Server
    from nanovllm.serving.config import ServeConfig


def refuse_beside_lora(complete: bool, alone: dict[str, Any]) -> None:
    """Raise Refused unless both options are there and nothing that does not go with them."""
    if not complete:
        raise Refused("--enable-lora and --lora-modules NAME=PATH go together; give both.")
    for option, value in alone.items():
        if value:
            raise Refused(f"{option} does not go with --enable-lora; leave one of them out.")


def lora_server(llm: LLM, config: ServeConfig, modules: list[str], *templates: Any) -> Server:
    """A server of a model and its adapters. Raises Refused, OptionError, ModelFolderError."""
    from nanovllm.llm.lora_engine import lora_engine
    from nanovllm.llm.lora_server import LoraServer
    from nanovllm.llm.several_models import read_models

    folders = read_models(",".join(modules), "--lora-modules")
    if config.model_name in folders:
        raise Refused(
            f"--lora-modules names {config.model_name!r}, as the model is; choose another."
        )
    return LoraServer(folders, lora_engine(llm, folders), config, *templates)
