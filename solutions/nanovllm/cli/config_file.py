"""A command's options from a YAML file: the names of the options, checked before anything runs."""

import difflib
import json
import types
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, get_args

import typer
import yaml

from nanovllm.cli.errors import Refused

SECRETS = {"api_key": "NANOVLLM_API_KEY"}  # by option, the environment's name of it
OWN = ("config", "print_config", "help")
KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text, in quotes where it looks like a number",
    list[str]: "a list of texts",
}


class _NoDoubles(yaml.SafeLoader):
    """YAML in which a key may stand once: the library would take the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if name in seen:
                raise yaml.YAMLError(f"{name} stands there twice{key.start_mark}")
            seen.add(name)
        return super().construct_mapping(node, deep)


def read_config(path: Path, command: Callable[..., None]) -> dict[str, Any]:
    """The options in a file, by parameter of the command. Raises Refused."""
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), _NoDoubles)
    except OSError as error:
        raise Refused(f"--config {path} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())
        raise Refused(f"--config {path} is not YAML that can be used: {said}.") from None
    if not isinstance(found, Mapping | types.NoneType):
        raise Refused(f"--config {path} must hold lines such as `max-num-seqs: 8`, got {found!r}.")
    options: dict[str, Any] = {}
    for key, value in (found or {}).items():
        name = _name(str(key), path, command)
        if name in options:
            raise Refused(f"{key} stands twice in {path}, with - and with _; give it once.")
        options[name] = _value(name, value, path, command.__annotations__[name])
    return options


def _name(key: str, path: Path, command: Callable[..., None]) -> str:
    """The parameter that a key of the file means."""
    name = key.replace("-", "_")
    if name in SECRETS:
        raise Refused(
            f"{path} holds {key}, but secrets come from the environment: take it out, and set "
            f"{SECRETS[name]}."
        )
    known = [n for n in command.__annotations__ if n not in (*OWN, *SECRETS, "ctx", "return")]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        way = (
            f"did you mean {_shown(close[0])}?"
            if close
            else f"--help of {command.__name__} has them."
        )
        raise Refused(f"{path} has no option {key!r} to give; {way}")
    return name


def _value(name: str, value: Any, path: Path, annotation: Any) -> Any:
    """The value as the option takes it, which must be of the option's own kind."""
    if name == "speculative_config" and isinstance(value, Mapping):
        return json.dumps(value)
    declared = get_args(annotation)[0]
    kind = next((k for k in get_args(declared) if k is not type(None)), declared)
    kind = str if kind is Path else kind
    right = type(value) is kind or (kind is float and type(value) is int)
    if kind == list[str]:
        right = type(value) is list and all(type(one) is str for one in value)
    if not right:
        words = KINDS.get(kind, "of another kind")
        raise Refused(f"{_shown(name)} in {path} must be {words}, got {value!r}.")
    return value


def take_config(command: Callable[[], Callable[..., None]]) -> Callable[..., Path | None]:
    """An option's callback that makes a file's values the defaults of the command's options."""

    def take(ctx: typer.Context, path: Path | None) -> Path | None:
        if path is not None:
            ctx.default_map = read_config(path, command())
        return path

    return take


def as_yaml(values: Mapping[str, Any]) -> str:
    """Options as a file that --config takes; no secrets, nothing that was not given."""
    shown: dict[str, Any] = {}
    for name, value in values.items():
        if value is not None and name not in (*OWN, *SECRETS):
            given = str(value) if isinstance(value, Path) else value
            shown[_shown(name)] = json.loads(given) if name == "speculative_config" else given
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)


def _shown(name: str) -> str:
    return name.replace("_", "-")
