"""Text of a token stream, piece by piece: `StreamingDetokenizer`."""

### BEGIN SOLUTION
from encodings.utf_8 import IncrementalDecoder

from nanovllm.tokenization.tokenizer import Tokenizer


class _Decoder(IncrementalDecoder):
    """Python's decoder waits for the third byte of a surrogate, which can be no character."""

    def decode(self, input: bytes, final: bool = False) -> str:
        text = super().decode(input, final)
        if b"\xed\xa0" <= self.getstate()[0] < b"\xee":
            text += super().decode(b"", final=True)
        return text


class StreamingDetokenizer:
    """Turns the tokens of one request into text as they come."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self.tokenizer = tokenizer
        self.skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self.decoder = _Decoder("replace")
        self.begun = False

    def push(self, token_id: int) -> str:
        """Return the text that this token completes, which may be none."""
        if token_id in self.skipped:
            return ""
        return self._shown(self.decoder.decode(self.tokenizer.token_bytes(token_id)))

    def flush(self) -> str:
        """Return what is still held, as U+FFFD, at the end of the stream; then begin anew."""
        rest = self._shown(self.decoder.decode(b"", final=True))
        self.decoder.reset()
        self.begun = False
        return rest

    def _shown(self, text: str) -> str:
        """The text without the space that SentencePiece put before it."""
        first = not self.begun
        self.begun = self.begun or text != ""
        return text.removeprefix(" ") if first and self.tokenizer.spec.strip_space else text


### END SOLUTION
