"""Text of a token stream, piece by piece, never half a character."""

import codecs

from nanovllm.tokenization.tokenizer import Tokenizer


class StreamingDetokenizer:
    """Turns the tokens of one request into text as they come.

    Invariant: everything `push` returned, then `flush`, joined, is `tokenizer.decode` of all ids.
    A token costs its own bytes, however long the stream is.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self.tokenizer = tokenizer
        self.skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Return the text that this token completes, which may be none.

        Bytes that begin a character wait for the rest of it; bytes that can no longer become one
        are U+FFFD at once and hold up nothing. A skipped special token changes nothing.

        >>> from nanovllm.tokenization.bpe import train_bpe
        >>> stream = StreamingDetokenizer(Tokenizer(train_bpe([], 256)))
        >>> [stream.push(byte) for byte in "né".encode()]
        ['n', '', 'é']
        """
        ### BEGIN SOLUTION
        if token_id in self.skipped:
            return ""
        return self.decoder.decode(self.tokenizer.token_bytes(token_id))
        ### END SOLUTION

    def flush(self) -> str:
        """Return what is still held, as U+FFFD, at the end of the stream; then begin anew."""
        ### BEGIN SOLUTION
        rest = self.decoder.decode(b"", final=True)
        self.decoder.reset()
        return rest
        ### END SOLUTION
