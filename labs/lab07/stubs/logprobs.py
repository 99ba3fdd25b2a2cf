"""Log-probabilities in the two forms that clients expect (given)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nanovllm.generation.events import Logprob
from nanovllm.tokenization.tokenizer import Tokenizer

FLOOR = -9999.0  # JSON has no -Infinity; what vLLM writes in its place
Scores = Mapping[int, Logprob]  # by token id: the one that stands there, and the likeliest


def id_as_text(token_id: int) -> str:
    """A token named by its id, as vLLM does: many tokens have the same text.

    >>> id_as_text(7)
    'token_id:7'
    """
    return f"token_id:{token_id}"


def prompt_logprobs(
    tokenizer: Tokenizer, scores: Sequence[Scores | None]
) -> list[dict[str, Any] | None]:
    """The `prompt_logprobs` of an answer: by token id; None for the first token, which is given."""
    return [
        {
            str(i): {
                "logprob": max(entry.logprob, FLOOR),
                "rank": entry.rank,
                "decoded_token": tokenizer.decode([i]),
            }
            for i, entry in entries.items()
        }
        if entries is not None
        else None
        for entries in scores
    ]


def completion_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[Scores | None],
    offset: int = 0,
    token_name: Callable[[int], str] | None = None,
) -> dict[str, list]:
    """The `logprobs` of a completion's choice: lists with one entry for each token.

    `tokens` as text, `token_logprobs`, `top_logprobs` (text to value), and `text_offset`, where
    each token begins, counted in characters from `offset` by the texts of `tokens`. A token
    without log-probabilities, the first of a prompt, has None. token_name: the text unless given.
    """
    name = token_name or (lambda token_id: tokenizer.decode([token_id]))
    found: dict[str, list] = {
        "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []
    }  # fmt: skip
    for token_id, entries in zip(token_ids, logprobs, strict=True):
        text = name(token_id)
        value = top = None
        if entries is not None:
            value = max(entries[token_id].logprob, FLOOR)
            top = {name(i): max(e.logprob, FLOOR) for i, e in entries.items()}
        found["tokens"].append(text)
        found["token_logprobs"].append(value)
        found["top_logprobs"].append(top)
        found["text_offset"].append(offset)
        offset += len(text)
    return found


def chat_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[Scores],
    top: int,
    token_name: Callable[[int], str] | None = None,
) -> dict[str, list]:
    """The `logprobs` of a chat's choice: `content` with an object for each token.

    Each has `token` as text, `logprob`, `bytes` (numbers, exact even where the text is half a
    character), and `top_logprobs`, the `top` likeliest in order of rank, in the same form.
    token_name: the text unless given.
    """

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        data = list(tokenizer.token_bytes(token_id))
        text = token_name(token_id) if token_name else tokenizer.decode([token_id])
        return {"token": text, "logprob": max(logprob, FLOOR), "bytes": data}

    content = []
    for token_id, entries in zip(token_ids, logprobs, strict=True):
        likeliest = sorted(entries.items(), key=lambda pair: pair[1].rank)[:top]
        content.append(
            entry(token_id, entries[token_id].logprob)
            | {"top_logprobs": [entry(i, e.logprob) for i, e in likeliest]}
        )
    return {"content": content}
