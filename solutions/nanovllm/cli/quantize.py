"""`nanovllm quantize`: a folder of fewer bits, and what it costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanovllm.cli.engine import select_code
from nanovllm.cli.errors import Refused
from nanovllm.cli.options import Code

if TYPE_CHECKING:
    from torch import Tensor

    from nanovllm.model.transformer import Transformer
    from nanovllm.quantization.scheme import Scheme

ROW = 512  # tokens of a row of calibration


def quantize(
    model: Annotated[str, typer.Argument(help="Folder or hub name, or bundled.")],
    to: Annotated[Path, typer.Option(help="The folder to write; it appears when it is whole.")],
    method: Annotated[str, typer.Option(help="rtn, gptq, awq, squeezellm, smoothquant.")] = "gptq",
    bits: Annotated[int, typer.Option(help="2, 3, 4 or 8 bits of a weight.")] = 4,
    group: Annotated[int, typer.Option(help="Columns that share a scale; -1 for whole rows.")] = 64,
    symmetric: Annotated[
        bool, typer.Option("--symmetric", help="No zero points: the middle code is 0.")
    ] = False,
    act_order: Annotated[
        bool, typer.Option("--act-order", help="gptq begins with the columns of large inputs.")
    ] = False,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Text to calibrate with. (default: the course's, for its tokenizer)"),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of 512 tokens of it.")] = 24,
    held_out: Annotated[
        int, typer.Option(min=0, max=32, help="Other rows, for the loss before and after.")
    ] = 32,
    format: Annotated[
        str | None,
        typer.Option(
            help="Who can read it: compressed-tensors, gptq or awq. (default: compressed-tensors; "
            "squeezellm has a format of its own)"
        ),
    ] = None,
    code: Code = None,
) -> None:
    """Quantize the linears of a model into a folder that vLLM and transformers read."""
    select_code(code)
    from nanovllm.llm.read_options import BUNDLED
    from nanovllm.llm.weight_codes import check_quantization
    from nanovllm.model.loader import load_model, resolve_folder

    check_quantization(method)
    from nanovllm.quantization.checkpoint import check_places, save_quantized
    from nanovllm.quantization.methods import check_method
    from nanovllm.quantization.scheme import Scheme
    from nanovllm.quantization.storing import check_layout

    scheme = Scheme(bits, None if group == -1 else group, symmetric)
    check_method(method, scheme)
    tables = method == "squeezellm"
    format = format or ("squeezellm" if tables else "compressed-tensors")
    if tables != (format == "squeezellm"):
        raise Refused(f"--format {format} has no place for what {method} makes; leave it out.")
    check_layout(format, bits)
    source = BUNDLED if model == "bundled" else resolve_folder(model)
    check_places(source, to)
    weights = load_model(source)
    known = _is_bundled_tokenizer(source)
    taken = None if method == "rtn" else _rows(source, calibration, rows, known, weights)
    judged = held_out if known else 0  # the rows are tokens of the bundled tokenizer
    before = _loss(weights, judged)
    was = _bytes(source)
    _quantize(weights, method, scheme, taken, act_order)
    save_quantized(weights, source, to, format)
    _report(to, weights, (was, _bytes(to)), (before, _loss(weights, judged)))


def _quantize(
    model: "Transformer", method: str, scheme: "Scheme", rows: "Tensor | None", act_order: bool
) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from nanovllm.quantization.methods import quantize

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(method, total=None)

        def show(done: int, of: int) -> None:
            progress.update(task, completed=done, total=of)

        quantize(model, method, scheme, rows, show, act_order)


def _is_bundled_tokenizer(folder: Path) -> bool:
    from nanovllm.llm.read_options import BUNDLED

    file = folder / "tokenizer.json"
    return file.is_file() and file.read_bytes() == (BUNDLED / file.name).read_bytes()


def _rows(
    source: Path, text: Path | None, count: int, known: bool, model: "Transformer"
) -> "Tensor":
    """Token ids [rows, tokens] to calibrate with."""
    import torch

    from nanovllm.quantization.held_out import calibration_rows
    from nanovllm.tokenization.tokenizer import Tokenizer

    if text is None:
        if not known:
            raise Refused(
                f"{source} has a tokenizer of its own, for which the course has no text: name "
                "some with --calibration FILE, or use --method rtn."
            )
        return calibration_rows(count)
    try:
        ids = Tokenizer.from_pretrained(source).encode(text.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"--calibration {text} cannot be read as text: {error}.") from None
    if len(ids) < 2:
        raise Refused(f"--calibration {text} holds no text; name a file with some pages of it.")
    length = min(ROW, model.config.max_position, len(ids))
    whole = len(ids) // length * length
    return torch.tensor(ids[:whole]).view(-1, length)[:count]


def _loss(model: "Transformer", rows: int) -> float | None:
    from nanovllm.quantization.held_out import held_out_loss, held_out_rows

    return held_out_loss(model, held_out_rows(rows)) if rows else None


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _report(
    to: Path,
    model: "Transformer",
    sizes: tuple[int, int],
    losses: tuple[float | None, float | None],
) -> None:
    import math

    from rich.console import Console
    from rich.table import Table

    from nanovllm.quantization.linear import linears

    stored = sum(linear.stored_bits for _, linear in linears(model))
    numbers = sum(linear.in_features * linear.out_features for _, linear in linears(model))
    table = Table(title=str(to))
    for column in ("", "before", "after"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("weights, MB", *(f"{size / 1e6:.2f}" for size in sizes))
    table.add_row("bits a weight, in linears", "", f"{stored / numbers:.2f}")
    known = [loss for loss in losses if loss is not None]
    if len(known) == len(losses):
        table.add_row("loss on rows held out, nats", *(f"{loss:.4f}" for loss in known))
        table.add_row("perplexity", *(f"{math.exp(loss):.4f}" for loss in known))
    Console().print(table)
