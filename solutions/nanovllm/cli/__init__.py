"""The command `nanovllm`, and its subcommands."""

import io
import os
import sys
from typing import Annotated

import typer

import nanovllm
from nanovllm.cli.bench import bench
from nanovllm.cli.bench_serve import bench_serve
from nanovllm.cli.chat import chat
from nanovllm.cli.describe import describe
from nanovllm.cli.errors import Refused, fail, is_unwritable
from nanovllm.cli.generate import generate
from nanovllm.cli.options import HELP
from nanovllm.cli.plan import plan
from nanovllm.cli.profile import profile
from nanovllm.cli.quantize import quantize
from nanovllm.cli.route import route
from nanovllm.cli.serve import serve
from nanovllm.cli.trace import trace

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode=HELP,
)
app.command()(generate)
app.command()(chat)
app.command()(serve)
app.command()(route)
app.command()(describe)
app.command()(profile)
app.command()(quantize)
app.command()(plan)
bench.command("serve")(bench_serve)
app.add_typer(bench, name="bench")
app.add_typer(trace, name="trace")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nanovllm {nanovllm.__version__}")
        raise typer.Exit()


@app.callback()
def _nanovllm(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Text from a language model, computed by the engine that you build lab by lab."""


def main() -> None:
    """Run the command line; errors are one sentence on stderr and an exit code, no traceback."""
    _stand_in_for_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    try:
        code = app(standalone_mode=False, prog_name="nanovllm")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has left, for example `| head`
        code = _drop_what_is_left()
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):  # typer and rich make this of one
            raise
        code = _drop_what_is_left()
    except Exception as error:
        code = fail(error)
        if is_unwritable(error):
            _drop_what_is_left()
    sys.exit(code if isinstance(code, int) else 0)


class _ClosedOutput(io.TextIOBase):
    def write(self, text: str) -> int:
        raise Refused("stdout is closed, and the answer goes there; leave it open.")


def _drop_what_is_left() -> int:
    """Python writes what is left in stdout at its end: that may not fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _stand_in_for_closed_streams() -> None:
    """Python has None for a closed stream (`>&-`): as stdin that is empty, as stdout it refuses."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115, it stays open
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
