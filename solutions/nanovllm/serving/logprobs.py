"""Log-probabilities in the two forms that clients expect (given)."""

from collections.abc import Sequence
from typing import Any

from nanovllm.generation.events import Logprob
from nanovllm.tokenization.tokenizer import Tokenizer

FLOOR = -9999.0  # JSON has no -Infinity; what vLLM writes in its place


def completion_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[dict[int, Logprob]],
    offset: int = 0,
) -> dict[str, list]:
    """The `logprobs` of a completion's choice: lists with one entry for each token.

    `tokens` as text, `token_logprobs`, `top_logprobs` (text to value), and `text_offset`, where
    each token begins, counted in characters from `offset` by the texts of `tokens`.
    """
    found: dict[str, list] = {
        "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []
    }  # fmt: skip
    for token_id, entries in zip(token_ids, logprobs, strict=True):
        text = tokenizer.decode([token_id])
        found["tokens"].append(text)
        found["token_logprobs"].append(max(entries[token_id].logprob, FLOOR))
        found["top_logprobs"].append(
            {tokenizer.decode([i]): max(e.logprob, FLOOR) for i, e in entries.items()}
        )
        found["text_offset"].append(offset)
        offset += len(text)
    return found


def chat_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[dict[int, Logprob]],
    top: int,
) -> dict[str, list]:
    """The `logprobs` of a chat's choice: `content` with an object for each token.

    Each has `token` as text, `logprob`, `bytes` (numbers, exact even where the text is half a
    character), and `top_logprobs`, the `top` likeliest in order of rank, in the same form.
    """

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        data = list(tokenizer.token_bytes(token_id))
        text = tokenizer.decode([token_id])
        return {"token": text, "logprob": max(logprob, FLOOR), "bytes": data}

    content = []
    for token_id, entries in zip(token_ids, logprobs, strict=True):
        likeliest = sorted(entries.items(), key=lambda pair: pair[1].rank)[:top]
        content.append(
            entry(token_id, entries[token_id].logprob)
            | {"top_logprobs": [entry(i, e.logprob) for i, e in likeliest]}
        )
    return {"content": content}
