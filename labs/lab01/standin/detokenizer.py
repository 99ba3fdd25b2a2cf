"""Text of a token stream by Python's own incremental decoder."""

import codecs

from nanovllm.tokenization.tokenizer import Tokenizer


class StreamingDetokenizer:
    """Bytes in, whole characters out."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self.tokenizer = tokenizer
        self.skipped = tokenizer.special_ids if skip_special_tokens else ()
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """What this token completes."""
        if token_id in self.skipped:
            return ""
        return self.decoder.decode(self.tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """What is held still."""
        rest = self.decoder.decode(b"", final=True)
        self.decoder.reset()
        return rest
