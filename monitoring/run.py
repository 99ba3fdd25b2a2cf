"""`make monitoring`: Debian's Prometheus and Alertmanager against a server on this machine."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import yaml

from monitoring.files import HERE, files
from tests.system_tools import FOLDER, find

LOOPBACK = "127.0.0.1"
Address = str  # host:port


@contextmanager
def prometheus(
    server: Address, port: int, alertmanager: Address | None = None, every: str = "5s"
) -> Iterator[Address]:
    """Prometheus with our rules, scraping one server; its data goes when it stops.

    Raises FileNotFoundError where there is no `prometheus`.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, text in files().items():
            if name.endswith(".yml"):
                (folder / name).write_text(text, encoding="utf-8")
        config = yaml.safe_load((folder / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": every, "evaluation_interval": every}
        config["scrape_configs"][0]["scrape_timeout"] = every
        config["alerting"]["alertmanagers"][0]["static_configs"] = [
            {"targets": [alertmanager] if alertmanager else []}
        ]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        (folder / "servers.yml").write_text(yaml.safe_dump([{"targets": [server]}]))
        where = f"{LOOPBACK}:{port}"
        words = ["--config.file=prometheus.yml", "--storage.tsdb.path=data",
                 f"--web.listen-address={where}", "--log.level=warn"]  # fmt: skip
        with _program("prometheus", words, folder, where):
            yield where


@contextmanager
def alertmanager(port: int) -> Iterator[Address]:
    """Alertmanager with our routes. Raises FileNotFoundError where there is none."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copy(HERE / "alertmanager.yml", place)
        where = f"{LOOPBACK}:{port}"
        words = ["--config.file=alertmanager.yml", "--storage.path=data",
                 f"--web.listen-address={where}", "--cluster.listen-address=",
                 "--log.level=warn"]  # fmt: skip
        with _program("prometheus-alertmanager", words, Path(place), where):
            yield where


@contextmanager
def _program(package: str, words: list[str], folder: Path, where: Address) -> Iterator[None]:
    path = _path(package)
    inside = []
    if Path(path).is_relative_to(FOLDER):  # only unpacked: its files are not where it looks
        share = str(FOLDER / "usr/share/prometheus")
        inside = [_path("bubblewrap"), "--dev-bind", "/", "/", "--tmpfs", "/usr/share",
                  "--ro-bind", share, "/usr/share/prometheus", "--die-with-parent"]  # fmt: skip
    process = subprocess.Popen([*inside, path, *words], cwd=folder)
    try:
        _wait(process, package, where)
        yield
    finally:
        process.terminate()
        process.wait(30)


def _wait(process: subprocess.Popen[bytes], package: str, where: Address) -> None:
    """Until it answers. Raises ChildProcessError where it ends before: its port is taken."""
    for tenths in range(300):
        time.sleep(0.1)
        if process.poll() is not None:
            raise ChildProcessError(
                f"{package} could not start at {where}; its reason stands above. Where the port is "
                "taken, say make monitoring PORTS='--prometheus-port 9091 --alertmanager-port 9094'"
            )
        with suppress(httpx.HTTPError):  # at first another program may answer there
            if tenths > 10 and httpx.get(f"http://{where}/-/ready", timeout=5).is_success:
                return
    raise ChildProcessError(f"{package} at {where} is not ready after 30 s.")


def _path(package: str) -> str:
    path = find(package)
    if path is None:
        raise FileNotFoundError(package)
    return path


def main() -> None:
    """Start both, say where to look, and stop both with Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make monitoring")
    parser.add_argument("--server", default="127.0.0.1:8000")
    parser.add_argument("--prometheus-port", type=int, default=9090)
    parser.add_argument("--alertmanager-port", type=int, default=9093)
    given = parser.parse_args()
    try:
        httpx.get(f"http://{given.server}/metrics", timeout=5).raise_for_status()
    except httpx.HTTPError as error:
        sys.exit(f"{given.server} has no metrics ({error}): start `nanovllm serve` first, or say "
                 "make monitoring SERVER=host:port.")  # fmt: skip
    try:
        with ExitStack() as stack:
            tells = stack.enter_context(alertmanager(given.alertmanager_port))
            asks = stack.enter_context(prometheus(given.server, given.prometheus_port, tells))
            print(
                f"Prometheus scrapes {given.server} every 5 s.\n"
                f"  graphs   http://{asks}/graph\n"
                f"  alerts   http://{asks}/alerts\n"
                f"  silence  amtool --alertmanager.url=http://{tells} silence add ...\n"
                f"  server   http://{given.server}/dashboard\n"
                f"  Grafana  import {HERE}/dashboards/*.json with http://{asks} as data source\n"
                "Ctrl-C stops both.",
                flush=True,
            )
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            signal.pause()
    except FileNotFoundError as error:
        sys.exit(f"{error} is not installed: python -m tests.system_tools, or apt-get install it.")
    except ChildProcessError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        print("stopped")


if __name__ == "__main__":
    main()
