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

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab01 task 3: Decoder")
