"""K and V as codes of eight or four bits, every row with a scale of its own."""

### BEGIN SOLUTION
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from nanovllm.model.config import ModelConfig
from nanovllm.quantization.kv_interface import Pairs, check_kind


def as_bytes(*parts: Tensor) -> UInt8[Tensor, "... R"]:
    """The bytes of these tensors, side by side along the last dimension."""
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=-1)


def scaled(x: Float[Tensor, "... D"], largest: float) -> tuple[Tensor, Tensor]:
    """The rows divided so that the largest value of each is `largest`; the scale of each [... 1].

    A row with NaN or an infinity has such a scale, too: whatever its codes are, it reads as NaN.
    """
    scale = x.abs().amax(dim=-1, keepdim=True) / largest
    return x / torch.where(scale > 0, scale, 1.0), scale


class Int8Rows:
    """D signed bytes, and the scale in float32."""

    @staticmethod
    def num_bytes(head_dim: int) -> int:
        return head_dim + 4

    @staticmethod
    def encode(x: Float[Tensor, "... D"]) -> UInt8[Tensor, "... R"]:
        steps, scale = scaled(x, 127.0)
        return as_bytes(steps.round().clamp(-127, 127).to(torch.int8), scale)

    @staticmethod
    def decode(rows: UInt8[Tensor, "... R"], head_dim: int) -> Float[Tensor, "... D"]:
        scale = rows[..., head_dim:].contiguous().view(torch.float32)
        return rows[..., :head_dim].view(torch.int8) * scale


class Fp8Rows:
    """D floats of 8 bits (4 of exponent, 3 of mantissa; the largest is 448), and the scale."""

    @staticmethod
    def num_bytes(head_dim: int) -> int:
        return head_dim + 4

    @staticmethod
    def encode(x: Float[Tensor, "... D"]) -> UInt8[Tensor, "... R"]:
        steps, scale = scaled(x, 448.0)
        return as_bytes(steps.clamp(-448, 448).to(torch.float8_e4m3fn), scale)

    @staticmethod
    def decode(rows: UInt8[Tensor, "... R"], head_dim: int) -> Float[Tensor, "... D"]:
        scale = rows[..., head_dim:].contiguous().view(torch.float32)
        return rows[..., :head_dim].view(torch.float8_e4m3fn).float() * scale


class Int4Rows:
    """Two codes a byte, then the step and the row's least value (0 at most), in bfloat16.

    bfloat16, for it has the range of float32: no row is too large or too small for its scale.
    """

    @staticmethod
    def num_bytes(head_dim: int) -> int:
        return (head_dim + 1) // 2 + 4

    @staticmethod
    def encode(x: Float[Tensor, "... D"]) -> UInt8[Tensor, "... R"]:
        low = x.amin(dim=-1, keepdim=True).clamp(max=0).bfloat16()
        high = x.amax(dim=-1, keepdim=True).clamp(min=0)
        step = ((high - low) / 15).bfloat16()
        codes = (x - low.float()) / torch.where(step > 0, step, 1.0).float()
        codes = codes.round().clamp(0, 15).to(torch.uint8)
        codes = torch.nn.functional.pad(codes, (0, x.shape[-1] % 2))
        return as_bytes(codes[..., ::2] | codes[..., 1::2] << 4, step, low)

    @staticmethod
    def decode(rows: UInt8[Tensor, "... R"], head_dim: int) -> Float[Tensor, "... D"]:
        step, low = rows[..., -4:].contiguous().view(torch.bfloat16).float().split(1, dim=-1)
        pairs = rows[..., :-4]
        codes = torch.stack([pairs & 15, pairs >> 4], dim=-1).flatten(-2)
        return codes[..., :head_dim] * step + low


ROWS = {"int8": Int8Rows, "int4": Int4Rows, "fp8": Fp8Rows}


class QuantizedCache:
    """One tensor of bytes [L, 2, B, P, G, R]: a row's codes and scale lie together.

    So to copy or to swap a block is to copy bytes, and a row can be written again at any time.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        num_host_blocks: int = 0,
        *,
        kind: str = "int8",
    ) -> None:
        check_kind(kind)
        self.kind, self.dtype, self.head_dim = kind, dtype, config.head_dim
        token = (block_size, config.num_kv_heads, ROWS[kind].num_bytes(config.head_dim))
        sizes = (config.num_layers, 2, num_blocks, *token)
        host_sizes = (config.num_layers, 2, num_host_blocks, *token)
        self.rows = torch.zeros(sizes, dtype=torch.uint8, device=device)
        self.host_rows = torch.zeros(host_sizes, dtype=torch.uint8)

    @staticmethod
    def bytes_per_token(config: ModelConfig, kind: str) -> int:
        check_kind(kind)
        return 2 * config.num_layers * config.num_kv_heads * ROWS[kind].num_bytes(config.head_dim)

    @property
    def num_blocks(self) -> int:
        return self.rows.shape[2]

    @property
    def block_size(self) -> int:
        return self.rows.shape[3]

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def write(
        self,
        layer: int,
        k: Float[Tensor, "T G D"],
        v: Float[Tensor, "T G D"],
        slot_mapping: Int[Tensor, "T"],
    ) -> None:
        kept = slot_mapping >= 0
        for rows, x in zip(self.rows[layer], (k, v), strict=True):
            rows.flatten(0, 1)[slot_mapping[kept]] = ROWS[self.kind].encode(x[kept].float())

    def read(
        self, layer: int, block_ids: Int[Tensor, "N"]
    ) -> tuple[Float[Tensor, "N P G D"], Float[Tensor, "N P G D"]]:
        decode = ROWS[self.kind].decode
        k, v = (decode(rows[block_ids], self.head_dim) for rows in self.rows[layer])
        return k.to(self.dtype), v.to(self.dtype)

    def copy_blocks(self, pairs: Pairs) -> None:
        _move(self.rows, self.rows, pairs)

    def swap_out(self, pairs: Pairs) -> None:
        _move(self.rows, self.host_rows, pairs)

    def swap_in(self, pairs: Pairs) -> None:
        _move(self.host_rows, self.rows, pairs)


def _move(source: Tensor, target: Tensor, pairs: Pairs) -> None:
    old, new = [old for old, _ in pairs], [new for _, new in pairs]
    target[:, :, new] = source[:, :, old].to(target.device)


### END SOLUTION
