"""From ids back to bytes and text."""

from collections.abc import Iterable

from nanovllm.tokenization.byte_level import byte_token
from nanovllm.tokenization.errors import TokenizerError
from nanovllm.tokenization.hf_format import TokenizerSpec
from nanovllm.tokenization.pretokenize import SPACE


class Decoder:
    """Turns ids into bytes and text, as a `TokenizerSpec` says.

    Decoder(spec)
    token_bytes(token_id) -> bytes
    decode_bytes(token_ids) -> bytes
    decode(token_ids, skip_special_tokens=False) -> str

    What must hold:
    - The bytes of a token are those of the vocabulary; those of an added token are the UTF-8 of
      its content. An id that no token has (models round their vocabulary up) gives no bytes, a
      negative one raises TokenizerError.
    - With `spec.model.byte_fallback` the byte tokens (`byte_token`) give the byte that they stand
      for, and in the vocabulary's other tokens every `▁` gives a space.
    - `decode_bytes` is the bytes of all ids, joined: they may begin or end inside a character.
    - `decode` is their text. Bytes that are not UTF-8 become U+FFFD, as Python's own
      `bytes.decode("utf-8", "replace")` does it. With `skip_special_tokens` special tokens leave no
      trace. With `spec.strip_space` the text then loses one space at its beginning, if it has one.

    >>> from nanovllm.tokenization.hf_format import plain_spec
    >>> from nanovllm.tokenization.vocabulary import BPEModel
    >>> decoder = Decoder(plain_spec(BPEModel({b"caf\\xc3": 0, b"\\xa9": 1}, [], {"<|end|>": 2})))
    >>> decoder.decode([0, 1, 2]), decoder.decode([0, 2], skip_special_tokens=True)
    ('café<|end|>', 'caf\ufffd')
    """

    ### BEGIN SOLUTION
    def __init__(self, spec: TokenizerSpec) -> None:
        self.bytes_of: dict[int, bytes] = {id: token for token, id in spec.model.vocab.items()}
        if spec.model.byte_fallback:
            single = {byte_token(byte): bytes([byte]) for byte in range(256)}
            self.bytes_of = {
                id: single.get(token, token.replace(SPACE.encode(), b" "))
                for id, token in self.bytes_of.items()
            }
        self.bytes_of |= {token.id: token.content.encode() for token in spec.added_tokens}
        self.special = frozenset(token.id for token in spec.added_tokens if token.special)
        self.strip_space = spec.strip_space

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 0:
            raise TokenizerError(f"{token_id} is no token id; ids count from 0.")
        return self.bytes_of.get(int(token_id), b"")

    def decode_bytes(self, token_ids: Iterable[int]) -> bytes:
        return b"".join(map(self.token_bytes, token_ids))

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        skipped = self.special if skip_special_tokens else ()
        data = self.decode_bytes(id for id in token_ids if id not in skipped)
        text = data.decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strip_space else text

    ### END SOLUTION
