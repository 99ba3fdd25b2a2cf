"""Bytes as printable characters, the alphabet in which GPT-2's files are written. Given code.

Byte-level BPE works on the 256 byte values, but its files are JSON and text, so each byte is
written as one visible character: printable Latin-1 stands for itself, the other 68 bytes are
moved to U+0100 and up. A space is written `Ġ`, a newline `Ċ`.
"""

from nanovllm.tokenization.errors import TokenizerError

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_MOVED = [byte for byte in range(256) if byte not in set(_PRINTABLE)]

BYTE_TO_CHAR: dict[int, str] = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(0x100 + index) for index, byte in enumerate(_MOVED)
}
CHAR_TO_BYTE: dict[str, int] = {char: byte for byte, char in BYTE_TO_CHAR.items()}
_TO_CHARS = {byte: ord(char) for byte, char in BYTE_TO_CHAR.items()}
_TO_BYTES = {ord(char): byte for char, byte in CHAR_TO_BYTE.items()}


def to_chars(data: bytes) -> str:
    """Write bytes in the printable alphabet.

    >>> to_chars(b" the\\n")
    'ĠtheĊ'
    """
    return data.decode("latin-1").translate(_TO_CHARS)


def to_bytes(chars: str) -> bytes:
    """Read what `to_chars` wrote; a character outside the alphabet raises TokenizerError.

    >>> to_bytes("Ġthe")
    b' the'
    """
    try:
        return bytes(map(CHAR_TO_BYTE.__getitem__, chars))
    except KeyError as error:
        raise TokenizerError(
            f"{chars!r} holds {error.args[0]!r}, which is not in the byte-level alphabet; "
            "this is not the file of a byte-level tokenizer."
        ) from None


def byte_token(byte: int) -> bytes:
    """The token that stands for one byte in a vocabulary with byte fallback.

    >>> byte_token(0xE4)
    b'<0xE4>'
    """
    return b"<0x%02X>" % byte


def well_formed(text: str) -> str:
    """Return text that UTF-8 can hold: surrogate pairs joined, lone surrogates made U+FFFD.

    A Python string may hold half of a UTF-16 pair (JSON's "\\\\ud83d" does that); no byte
    sequence in UTF-8 stands for it.

    >>> well_formed("a\\ud83d") == "a\\ufffd"
    True
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
