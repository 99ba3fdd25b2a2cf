"""deploy/: the commands in its files exist, and ports, names and times agree with each other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from nanovllm.cli import app
from tests.processes import ROOT

DEPLOY = ROOT / "deploy"


def read(name: str) -> list[dict[str, Any]]:
    return [part for part in yaml.safe_load_all((DEPLOY / name).read_text("utf-8")) if part]


def options(arguments: list[str]) -> list[tuple[str, str]]:
    """The options of a command, `--name=value` or `--name value`, in order."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    return list(zip(words[::2], words[1::2], strict=True))


def commands() -> dict[str, list[str]]:
    compose = read("compose.yaml")[0]["services"]
    found = {name: service["command"] for name, service in compose.items() if "command" in service}
    for file in ("engine", "router"):
        for part in read(f"kubernetes/{file}.yaml"):
            if "template" in part.get("spec", {}):
                (container,) = part["spec"]["template"]["spec"]["containers"]
                found[f"kubernetes {file}"] = container["args"]
    return found


@pytest.mark.parametrize("name", commands())
def test_every_option_exists_and_takes_its_value(name: str) -> None:
    command, *arguments = commands()[name]
    parser = typer.main.get_command(app).commands[command]
    words = [word for pair in options(arguments) for word in pair]
    parser.make_context(command, words)


def test_the_router_knows_every_engine_by_its_name_and_port() -> None:
    compose = read("compose.yaml")[0]["services"]
    engines = {
        name for name, service in compose.items() if service.get("command", [""])[0] == "serve"
    }
    asked = dict.fromkeys(
        v for k, v in options(compose["router"]["command"][1:]) if k == "--server"
    )
    assert set(asked) == {f"http://{name}:8000" for name in engines}
    scraped = read("prometheus.yml")[0]["scrape_configs"]
    targets = {
        target for job in scraped for one in job["static_configs"] for target in one["targets"]
    }
    assert targets == {f"{name}:8000" for name in engines} | {"router:8080"}
    service, engine, _ = read("kubernetes/engine.yaml")
    (container,) = read("kubernetes/router.yaml")[1]["spec"]["template"]["spec"]["containers"]
    asked = [v for k, v in options(container["args"][1:]) if k == "--server"]
    port = service["spec"]["ports"][0]["port"]
    name = f"{engine['metadata']['name']}-%d.{engine['spec']['serviceName']}"
    wanted = [f"http://{name % n}:{port}" for n in range(engine["spec"]["replicas"])]
    assert asked == wanted


@pytest.mark.parametrize("file", ["engine", "router"])
def test_labels_ports_and_times_agree(file: str) -> None:
    service, workload, *others = read(f"kubernetes/{file}.yaml")
    spec = workload["spec"]["template"]["spec"]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    selectors = [service["spec"]["selector"], workload["spec"]["selector"]["matchLabels"]]
    selectors += [other["spec"]["selector"]["matchLabels"] for other in others]
    assert all(selector == labels for selector in selectors)
    (container,) = spec["containers"]
    given = dict(options(container["args"][1:]))
    assert str(container["ports"][0]["containerPort"]) == given["--port"]
    annotations = workload["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == given["--port"]
    assert spec["terminationGracePeriodSeconds"] > float(given.get("--drain-timeout", 0)) + 5


def test_compose_waits_longer_than_a_drain() -> None:
    engine = read("compose.yaml")[0]["services"]["engine-0"]
    drain = float(dict(options(engine["command"][1:]))["--drain-timeout"])
    assert float(engine["stop_grace_period"].removesuffix("s")) > drain + 5


def test_the_image_copies_what_is_here() -> None:
    text = (DEPLOY / "Containerfile").read_text("utf-8")
    named = re.findall(r"^COPY (.+) \./$", text, re.MULTILINE)[0].split()
    assert named and all((ROOT / name).is_file() for name in named)


def test_the_image_has_all_that_a_server_needs(tmp_path: Path) -> None:
    """A folder with what is not left out, and nothing else, answers."""
    lines = (DEPLOY / "Containerfile.dockerignore").read_text("utf-8").splitlines()
    kept = [line.removeprefix("!") for line in lines if line.startswith("!")]
    assert "*" in lines and len(kept) > 5
    for name in kept:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    code = "import nanovllm.cli as cli; print(cli.__file__); cli.main()"
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "NANOVLLM_CODE": "reference"}
    for command in (["generate", "Once", "--max-tokens", "1"], ["serve", "--print-config"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *command],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(str(tmp_path)), "the code of the copy"
