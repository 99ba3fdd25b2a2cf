"""What two bits leave of a model, by rounding and by what your methods get back."""

import copy
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from models.corpus.facts import FACTS
from nanovllm.model.loader import load_model
from nanovllm.model.transformer import Transformer
from nanovllm.quantization.held_out import (
    calibration_rows,
    held_out_loss,
    held_out_rows,
    hidden_states,
)
from nanovllm.quantization.linear import QuantizedLinear, linears
from nanovllm.quantization.methods import quantize
from nanovllm.quantization.scheme import Scheme
from nanovllm.tokenization.tokenizer import Tokenizer

TARGET = Path(__file__).resolve().parents[2] / "models" / "target"
ASKED = FACTS[::8]  # 63 of those that the model was trained on
SCHEME, CALIBRATION, JUDGED = Scheme(bits=2, group_size=64), 4, 2
METHODS = {"rtn": "rounding", "awq": "AWQ", "gptq": "GPTQ", "squeezellm": "SqueezeLLM"}


@torch.inference_mode()
def facts_right(model: Transformer, tokenizer: Tokenizer) -> int:
    """How many questions greedy decoding answers, word for word.

    One pass is enough: it says an answer if each of its tokens is the likeliest behind those
    before it.
    """
    asked = [tokenizer.encode(chat(fact.question), allowed_special="all") for fact in ASKED]
    told = [tokenizer.encode(f"{fact.stem} {fact.answer}.") for fact in ASKED]
    whole = [question + answer for question, answer in zip(asked, told, strict=True)]
    longest = max(map(len, whole))
    rows = torch.tensor([ids + [0] * (longest - len(ids)) for ids in whole])
    hidden = hidden_states(model, rows)
    said = model.logits(hidden.flatten(0, 1)).argmax(dim=-1).view(rows.shape)
    return sum(
        said[row, len(question) - 1 :][: len(answer)].tolist() == answer
        for row, (question, answer) in enumerate(zip(asked, told, strict=True))
    )


def chat(text: str) -> str:
    """A question as the bundled model was trained on it."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def megabytes(model: Transformer) -> float:
    """What the linears of the layers take; not quantized, in bfloat16."""
    bits = (
        linear.stored_bits if isinstance(linear, QuantizedLinear) else 16 * linear.weight.numel()
        for _, linear in linears(model)
    )
    return sum(bits) / 8e6


def main() -> None:
    """The bundled model, then each method's version of it."""
    console = Console()
    torch.set_num_threads(1)  # small products: more threads only wait for one another
    model, tokenizer = load_model(TARGET), Tokenizer.from_pretrained(TARGET)
    table = Table(
        title=f"2 bits, groups of 64, {CALIBRATION} rows of calibration",
        caption=f"loss: nats a token on {JUDGED} rows held out; facts: of {len(ASKED)}",
    )
    table.add_column("weights", no_wrap=True)
    for column in ("MB of the linears", "loss", "lost", "facts right"):
        table.add_column(column, justify="right")
    rows, whole = held_out_rows(JUDGED), 0.0
    for method, name in {"": "as they were", **METHODS}.items():
        tried = copy.deepcopy(model)
        if method:
            quantize(tried, method, SCHEME, calibration_rows(CALIBRATION))
        loss = held_out_loss(tried, rows)
        whole = loss if not method else whole
        right = facts_right(tried, tokenizer)
        lost = f"{loss - whole:.2f}" if method else ""
        table.add_row(name, f"{megabytes(tried):.2f}", f"{loss:.2f}", lost, str(right))
    console.print(table)


if __name__ == "__main__":
    main()
