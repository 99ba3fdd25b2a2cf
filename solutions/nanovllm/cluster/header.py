"""What must be known of K and V before anybody reads them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

from nanovllm.cluster.errors import ForeignError, WireError

if TYPE_CHECKING:
    from nanovllm.model.transformer import Transformer
    from nanovllm.paging.cache import PagedCache

MAGIC = b"NVKV0001"
LONGEST = 4096  # bytes of a header
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Header:
    """Layers, tokens a block, K/V heads, dimensions a head, number format, whose model it is."""

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    model: str

    @classmethod
    def of(cls, cache: PagedCache, model: str) -> Header:
        """The header of what a cache holds. Raises WireError for a layout that is not [L,B,P,G,D].

        model: the fingerprint of the weights that computed it.
        """
        name = str(cache.k.dtype).removeprefix("torch.")
        if cache.k.ndim != 5 or name not in DTYPES:
            raise WireError(
                f"K and V of shape {tuple(cache.k.shape)} in {name} cannot be sent; use an engine "
                "with the plain step (enforce_eager) and kv_cache_dtype auto."
            )
        layers, _, positions, heads, dim = cache.k.shape
        return cls(layers, positions, heads, dim, name, model)

    def refuse_foreign(self, other: Header) -> None:
        """Raise ForeignError unless the other differs in block size at most.

        The sentence names a field that differs, by its name here.
        """
        ### BEGIN SOLUTION
        mine, theirs = asdict(self), asdict(other)
        for name in mine:
            if name != "block_size" and mine[name] != theirs[name]:
                raise ForeignError(
                    f"The received K and V have {name} {theirs[name]}, but this engine has "
                    f"{mine[name]}; connect engines of one model and dtype."
                )
        ### END SOLUTION

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that so many tokens need."""
        return -(-num_tokens // self.block_size)

    def nbytes(self, num_tokens: int) -> int:
        """Bytes of the K of so many tokens in whole blocks; V has as many."""
        places = self.num_blocks(num_tokens) * self.block_size
        each = self.num_kv_heads * self.head_dim * DTYPES[self.dtype].itemsize
        return self.num_layers * places * each


def encode(header: Header, num_tokens: int) -> bytes:
    """Magic, the length of what follows in four bytes, and the header as JSON."""
    text = json.dumps(asdict(header) | {"num_tokens": num_tokens}).encode()
    return MAGIC + len(text).to_bytes(4, "big") + text


def decode(data: bytes) -> tuple[Header, int, int]:
    """Header, tokens, and where the payload begins. Raises WireError."""
    start = len(MAGIC) + 4
    size = int.from_bytes(data[len(MAGIC) : start], "big")
    if data[: len(MAGIC)] != MAGIC or size > LONGEST or len(data) < start + size:
        raise WireError(f"These {len(data)} bytes do not begin with a header of K and V.")
    try:
        fields = json.loads(data[start : start + size])
        num_tokens = fields.pop("num_tokens")
        header = Header(**fields)
        sizes = (header.num_layers, header.block_size, header.num_kv_heads, header.head_dim)
        good = all(type(x) is int and x > 0 for x in (*sizes, num_tokens))
        good = good and isinstance(header.dtype, str)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WireError(f"The header of the received K and V cannot be read: {error}") from None
    if not good or header.dtype not in DTYPES:
        raise WireError(f"The header of the received K and V makes no sense: {header}.")
    return header, num_tokens, start + size


def fingerprint(model: Transformer) -> str:
    """Tells models apart by their shapes and a sample of each weight.

    Not a checksum: of each weight it reads 64 numbers, spread over all of it.
    """
    seen = hashlib.sha256(repr(model.config).encode())
    for name, weight in model.state_dict().items():
        flat = weight.detach().flatten()
        sample = flat[:: max(1, len(flat) // 64)][:64]
        seen.update(f"{name}{tuple(weight.shape)}".encode())
        seen.update(sample.float().cpu().numpy().tobytes())
    return seen.hexdigest()[:16]
